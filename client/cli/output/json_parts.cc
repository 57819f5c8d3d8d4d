// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/json_parts.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "client/cli/output/text.h"

namespace rivulet {

void AppendJson(float value, std::string* out) {
  if (std::isfinite(value)) {
    AppendNumber(value, out);
  } else {
    out->append("null");
  }
}

void AppendJson(int32_t value, std::string* out) { AppendNumber(int64_t{value}, out); }

void AppendJson(const v1::TopLogprobs& top, std::string* out) {
  out->push_back('{');
  AppendJsonList("token_ids", top.token_ids(), out);
  out->push_back(',');
  AppendJsonList("logprobs", top.logprobs(), out);
  out->push_back('}');
}

std::string FinishReasonName(v1::FinishReason reason) {
  const std::string name = absl::AsciiStrToLower(v1::FinishReason_Name(reason));
  return std::string(absl::StripPrefix(name, "finish_reason_"));
}

}  // namespace rivulet
