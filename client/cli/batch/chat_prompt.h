// SPDX-License-Identifier: Apache-2.0
// ChatPrompts: the prompts of conversations, as the models' chat templates write them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/chat/chat_template.h"
#include "client/cli/chat/template_process.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// Holds the template of each model, and a process that renders templates. Thread: one.
class ChatPrompts {
 public:
  // Reads the template in the file `name`, which then replaces the templates of all models; empty:
  // no file. Errors: those of ReadChatTemplate.
  absl::Status ReadFile(const std::string& name);
  const ChatTemplateFile& file() const { return file_; }

  // Sets the prompt of `request`. If `request` has no stop string, also sets the text at which the
  // model would speak for the user. Errors: FAILED_PRECONDITION (NO_CHAT_TEMPLATE); the errors of
  // TemplateProcess::Run.
  absl::Status Set(const v1::GetModelReply& model, const std::vector<ChatMessage>& messages,
                   v1::GenerateRequest* request);

 private:
  struct Template {
    ChatTemplate chat_template;
    std::string turn_end;
  };
  absl::StatusOr<Template> TemplateOf(const v1::GetModelReply& model);

  TemplateProcess process_;
  ChatTemplateFile file_;
  // By the name of the model. An error holds for every conversation with the model: a template that
  // exceeds the limits on a short conversation is not tried again.
  std::map<std::string, absl::StatusOr<Template>> templates_;
};

}  // namespace rivulet
