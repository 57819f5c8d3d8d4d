// SPDX-License-Identifier: Apache-2.0
// Templates of conversations, as models come with them: Jinja.
// Tested by: tests/unit/client/cli/chat/chat_template_test.cc
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// What --chat-template names. No name: nothing.
struct ChatTemplateFile {
  std::string name, text;
};
// Reads it; `name` may be empty. Errors: NOT_FOUND, INVALID_ARGUMENT (cannot be read, or is no
// template), naming the flag.
absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::string& name);

// Thread: one.
class ChatTemplate {
 public:
  // `special_tokens`: texts by role ("bos_token"). `shown`: whose template it is, for messages.
  // Errors: INVALID_ARGUMENT with what is wrong and where.
  static absl::StatusOr<ChatTemplate> Parse(const std::string& source, std::string shown,
                                            std::map<std::string, std::string> special_tokens);
  // That of the file or, without one, what the model brings. Errors: those of Parse;
  // FAILED_PRECONDITION (NO_CHAT_TEMPLATE).
  static absl::StatusOr<ChatTemplate> Of(const v1::GetModelReply& model,
                                         const ChatTemplateFile& file);
  ChatTemplate(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt of a conversation that the model is to continue with an answer. Errors:
  // INVALID_ARGUMENT (the template does not accept the conversation, or uses what the engine does
  // not know) with the reason and the place.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages) const;

  // What the template writes between an answer and the next question, without space at its end:
  // where a model that does not end by itself begins to speak for the user. Empty if the template
  // tells none.
  std::string TurnEnd() const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);

  std::unique_ptr<Program> program_;
};

// The texts of a model's special tokens by role, as templates name them.
std::map<std::string, std::string> SpecialTokensOf(const v1::GetModelReply& model);

}  // namespace rivulet
