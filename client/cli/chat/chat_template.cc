// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/chat_template.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"

namespace rivulet {

ChatTemplate::ChatTemplate(const std::string& source, std::string shown,
                           const std::map<std::string, std::string>& special_tokens,
                           TemplateProcess* process)
    : source_(JsonString(source)), shown_(std::move(shown)), process_(process) {
  for (const auto& [role, text] : special_tokens) {
    absl::StrAppend(&special_tokens_, special_tokens_.empty() ? "" : ",", JsonString(role), ":",
                    JsonString(text));
  }
}

absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::string& name,
                                                  TemplateProcess* process) {
  if (name.empty()) return ChatTemplateFile();
  constexpr size_t kMostTemplateBytes = 1 << 20;
  absl::StatusOr<std::string> text = ReadSmallFile(name, kMostTemplateBytes);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("--chat-template: ", name));
  if (absl::StripAsciiWhitespace(*text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--chat-template: ", name, " is empty"));
  }
  ChatTemplateFile file{absl::StrCat("--chat-template ", name), *std::move(text)};
  if (FirstInvalidUtf8(file.text) < file.text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(file.name, " is not valid UTF-8"));
  }
  const absl::Status status = ChatTemplate(file.text, file.name, {}, process).TurnEnd().status();
  if (!status.ok() && GetErrorDetail(status).reason != "CHAT_TEMPLATE_TOO_HARD") return status;
  return file;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Of(const v1::GetModelReply& model,
                                              const ChatTemplateFile& file,
                                              TemplateProcess* process) {
  if (!file.name.empty()) {
    return ChatTemplate(file.text, file.name, SpecialTokensOf(model), process);
  }
  const std::string& name = model.summary().name();
  if (model.chat_template().empty()) {
    ErrorDetail detail;
    detail.reason = "NO_CHAT_TEMPLATE";
    detail.field = "messages";
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("the model ", Quoted(name),
                     " has no chat template; --chat-template FILE gives one (Jinja, as in the "
                     "chat_template.jinja of models that have one)"),
        detail);
  }
  return ChatTemplate(model.chat_template(), absl::StrCat("chat template of ", name),
                      SpecialTokensOf(model), process);
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages) const {
  std::string list;
  for (const ChatMessage& message : messages) {
    absl::StrAppend(&list, list.empty() ? "[" : ",", "{\"role\":", JsonString(message.role),
                    ",\"content\":", JsonString(message.content), "}");
  }
  return Run(TemplateProcess::Job::kRender, absl::StrCat(list.empty() ? "[" : list, "],"));
}

absl::StatusOr<std::string> ChatTemplate::TurnEnd() const {
  return Run(TemplateProcess::Job::kTurnEnd, "");
}

absl::StatusOr<std::string> ChatTemplate::Run(TemplateProcess::Job job,
                                              absl::string_view messages) const {
  absl::StatusOr<std::string> result =
      process_->Run(job, absl::StrCat("[", source_, ",", messages, "{", special_tokens_, "}]"));
  const ErrorDetail detail = GetErrorDetail(result.status());
  if (detail.field != "messages") return result;
  absl::string_view message = result.status().message();
  absl::ConsumePrefix(&message, "the model's chat template: ");  // named here in full
  return MakeError(result.status().code(), absl::StrCat(shown_, ": ", message), detail);
}

std::map<std::string, std::string> SpecialTokensOf(const v1::GetModelReply& model) {
  std::map<std::string, std::string> special;
  for (const v1::SpecialToken& token : model.special_tokens()) {
    for (const std::string& role : token.roles()) special[role] = token.content();
  }
  return special;
}

}  // namespace rivulet
