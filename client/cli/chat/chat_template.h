// SPDX-License-Identifier: Apache-2.0
// Conversations as prompts, and the parts of the replies: what the gateway does, too, by the same
// worker (TemplateProcess). Tested by: tests/unit/client/cli/chat/chat_template_test.cc
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/chat/template_process.h"
#include "nlohmann/json.hpp"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// The file of --chat-template. Empty name: no file.
struct ChatTemplateFile {
  std::string name, text;
};
// Reads it; `name` may be empty. Errors: NOT_FOUND, INVALID_ARGUMENT (cannot be read, or is no
// template), naming the flag; FAILED_PRECONDITION as TemplateProcess::Run. A template that exceeds
// the limits of rendering is no error here.
absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::string& name,
                                                  TemplateProcess* process);

// What a reply to one request adds to the message, by its text. Thread: one. Copyable.
class ReplyParts {
 public:
  ReplyParts() = default;  // all text is content
  // `made`: of the worker's chats.chat(). `id`: with which the ids of calls begin. `process` must
  // live longer.
  ReplyParts(const nlohmann::ordered_json& made, absl::string_view id, TemplateProcess* process);

  enum class End : char { kNot, kEnd, kCut };  // kCut: the model would have gone on
  struct Added {
    nlohmann::ordered_json delta;    // members of a message: reasoning_content, content, tool_calls
    nlohmann::ordered_json message;  // at the end: the message, if that is all
    bool calls = false;              // there have been tool calls
    std::string code, error;         // why the text could not be divided, and is content; or ""
  };
  Added Add(absl::string_view text, End end);

 private:
  std::string reading_, progress_;  // JSON for the worker; "": all text is content
  std::string untold_;              // what is content if the worker fails
  bool calls_ = false;
  TemplateProcess* process_ = nullptr;
};

// Thread: one.
class ChatTemplate {
 public:
  // The template of the file or, without a file, the model's own template. `process` must live
  // longer. Errors: FAILED_PRECONDITION (NO_CHAT_TEMPLATE).
  static absl::StatusOr<ChatTemplate> Of(const v1::GetModelReply& model,
                                         const ChatTemplateFile& file, TemplateProcess* process);

  // Sets what `request` has of a conversation: its prompt; the constraint that calls need, or its
  // own behind the reasoning; the reasoning; and, without stop strings and a constraint, the text
  // at which the model would speak for the user. `body`: an object with the parameters of OpenAI's
  // chat completions that the worker's chats.py names. `id`: with which the ids of calls begin.
  // Errors: those of TemplateProcess::Run; errors about the template name it.
  absl::StatusOr<ReplyParts> Apply(const nlohmann::ordered_json& body, absl::string_view id,
                                   v1::GenerateRequest* request) const;

 private:
  ChatTemplate(const v1::GetModelReply& model, const std::string& source, std::string shown,
               TemplateProcess* process);

  std::string shown_;             // names the template in messages
  nlohmann::ordered_json asked_;  // what all conversations have in common, for the worker
  TemplateProcess* process_;
};

}  // namespace rivulet
