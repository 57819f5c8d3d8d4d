// SPDX-License-Identifier: Apache-2.0
// Chat templates (Jinja) of models, rendered by TemplateProcess. Tested by:
// tests/unit/client/cli/chat/chat_template_test.cc
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/chat/template_process.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// The file of --chat-template. Empty name: no file.
struct ChatTemplateFile {
  std::string name, text;
};
// Reads it; `name` may be empty. Errors: NOT_FOUND, INVALID_ARGUMENT (cannot be read, or is no
// template), naming the flag; FAILED_PRECONDITION as TemplateProcess::Run. A template that exceeds
// the limits of rendering is no error here.
absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::string& name,
                                                  TemplateProcess* process);

// Thread: one.
class ChatTemplate {
 public:
  // `special_tokens`: texts by role ("bos_token"). `shown`: names the template in messages.
  // `process` must live longer.
  ChatTemplate(const std::string& source, std::string shown,
               const std::map<std::string, std::string>& special_tokens, TemplateProcess* process);
  // The template of the file or, without a file, the model's own template. Errors:
  // FAILED_PRECONDITION (NO_CHAT_TEMPLATE).
  static absl::StatusOr<ChatTemplate> Of(const v1::GetModelReply& model,
                                         const ChatTemplateFile& file, TemplateProcess* process);

  // The prompt that makes the model continue the conversation with an answer. Errors: those of
  // TemplateProcess::Run, naming the template.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages) const;

  // The text that the template writes between an answer and the next question, without white space
  // at its end. A model that does not end its answer writes this text before it speaks for the
  // user. Empty if the template has no such text. Errors: those of TemplateProcess::Run, except
  // that a template may refuse the conversation by which this is found.
  absl::StatusOr<std::string> TurnEnd() const;

 private:
  absl::StatusOr<std::string> Run(TemplateProcess::Job job, absl::string_view messages) const;

  std::string source_, shown_, special_tokens_;  // the last as JSON
  TemplateProcess* process_;
};

// The texts of a model's special tokens by role, as templates name them.
std::map<std::string, std::string> SpecialTokensOf(const v1::GetModelReply& model);

}  // namespace rivulet
