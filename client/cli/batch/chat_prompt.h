// SPDX-License-Identifier: Apache-2.0
// ChatPrompts: the prompts of conversations, as the models' chat templates write them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/chat/chat_template.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// Keeps the template of each model. Thread: one.
class ChatPrompts {
 public:
  // `file`: used for all models instead of their own.
  explicit ChatPrompts(ChatTemplateFile file) : file_(std::move(file)) {}

  // Sets the prompt of `request` and, where it has no stop string, the one at which the model would
  // speak for the user. Errors: FAILED_PRECONDITION (NO_CHAT_TEMPLATE), INVALID_ARGUMENT
  // (CHAT_TEMPLATE_REFUSED: the template refuses the messages, or cannot be read).
  absl::Status Set(const v1::GetModelReply& model, const std::vector<ChatMessage>& messages,
                   v1::GenerateRequest* request);

 private:
  struct Form {
    ChatTemplate form;
    std::string turn_end;
  };
  const ChatTemplateFile file_;
  std::map<std::string, Form> forms_;  // by the name of the model
};

}  // namespace rivulet
