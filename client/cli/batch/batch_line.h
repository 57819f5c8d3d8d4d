// SPDX-License-Identifier: Apache-2.0
// One line of the input of `rivulet batch`, in OpenAI's batch form,
//   {"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"ROMEO:"}}
// or in the short form, which is only the body:
//   {"custom_id":"a","prompt":"ROMEO:","max_tokens":100}
//   {"messages":[{"role":"user","content":"Hello"}]}
//   {"score":"To be, or not to be"}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cli/chat/chat_template.h"
#include "nlohmann/json.hpp"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// A generation whose prompt is to be rendered from messages.
struct ChatRequest {
  v1::GenerateRequest generate;         // without a prompt
  nlohmann::ordered_json conversation;  // the other parameters, for ChatTemplate::Apply
  ReplyParts parts = {};                // once it is applied
};

struct BatchLine {
  bool openai = false;                   // the form of the line, and so of its result
  std::optional<std::string> custom_id;  // also of a line that is wrong, if it can be read
  std::variant<v1::GenerateRequest, ChatRequest, v1::ScoreRequest> request;
  bool tokens_wanted = false;  // the result has the ids besides the text

  const std::string& model() const;
};

// Values for fields that a line does not set. `model` of both requests is the default model.
struct BatchDefaults {
  v1::GenerateRequest generate;  // model, sampling, priority, cache, max_tokens where given
  v1::ScoreRequest score;        // model, priority
};

// Fills `line`, on an error as far as the text was parsed. Errors: INVALID_ARGUMENT with reason,
// field ("top_p", without "body."; "" for the line as a whole) and the value. The server checks
// ranges.
absl::Status ParseBatchLine(absl::string_view text, const BatchDefaults& defaults, BatchLine* line);

}  // namespace rivulet
