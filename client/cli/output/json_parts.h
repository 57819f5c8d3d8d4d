// SPDX-License-Identifier: Apache-2.0
// Parts of the JSON lines about a reply. Written as text, without a JSON tree, because there is a
// line for each token.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// A number; null if it is not finite. An impossible token has log-probability -inf, which JSON
// cannot express.
void AppendJson(float value, std::string* out);
void AppendJson(int32_t value, std::string* out);
// `{"token_ids":[...],"logprobs":[...]}`
void AppendJson(const v1::TopLogprobs& top, std::string* out);

// `"name":[...]`; append(entry, out) writes an entry.
template <typename List, typename Append>
void AppendJsonList(absl::string_view name, const List& list, std::string* out,
                    const Append& append) {
  absl::StrAppend(out, "\"", name, "\":[");
  bool first = true;
  for (const auto& entry : list) {
    if (!std::exchange(first, false)) out->push_back(',');
    append(entry, out);
  }
  out->push_back(']');
}
// The same by AppendJson.
template <typename List>
void AppendJsonList(absl::string_view name, const List& list, std::string* out) {
  AppendJsonList(name, list, out,
                 [](const auto& entry, std::string* to) { AppendJson(entry, to); });
}

// FINISH_REASON_STOP_TOKEN is "stop_token".
std::string FinishReasonName(v1::FinishReason reason);

}  // namespace rivulet
