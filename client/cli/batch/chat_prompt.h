// SPDX-License-Identifier: Apache-2.0
// ChatPrompts: the prompts of conversations, as the models' chat templates write them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/batch/batch_line.h"
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

  // ChatTemplate::Apply for line `number`. Errors: FAILED_PRECONDITION (NO_CHAT_TEMPLATE); the
  // errors of TemplateProcess::Run.
  absl::Status Set(const v1::GetModelReply& model, int64_t number, ChatRequest* chat);

 private:
  TemplateProcess process_;
  ChatTemplateFile file_;
  // By the name of the model. An error holds for every conversation with the model.
  std::map<std::string, absl::StatusOr<ChatTemplate>> templates_;
};

}  // namespace rivulet
