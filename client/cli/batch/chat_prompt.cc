// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/chat_prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

absl::Status Refused(const absl::Status& status) {
  ErrorDetail detail = GetErrorDetail(status);
  if (detail.reason.empty()) detail.reason = "CHAT_TEMPLATE_REFUSED";
  detail.field = "messages";
  return MakeError(status.code(), absl::StrCat("messages: ", status.message()), detail);
}

}  // namespace

absl::Status ChatPrompts::ReadFile(const std::string& name) {
  RIVULET_ASSIGN_OR_RETURN(file_, ReadChatTemplate(name, &process_));
  return absl::OkStatus();
}

absl::StatusOr<ChatPrompts::Template> ChatPrompts::TemplateOf(const v1::GetModelReply& model) {
  RIVULET_ASSIGN_OR_RETURN(ChatTemplate chat_template, ChatTemplate::Of(model, file_, &process_));
  RIVULET_ASSIGN_OR_RETURN(std::string end, chat_template.TurnEnd());
  return Template{std::move(chat_template), std::move(end)};
}

absl::Status ChatPrompts::Set(const v1::GetModelReply& model,
                              const std::vector<ChatMessage>& messages,
                              v1::GenerateRequest* request) {
  auto found = templates_.find(model.summary().name());
  if (found == templates_.end()) {
    found = templates_.emplace(model.summary().name(), TemplateOf(model)).first;
  }
  if (!found->second.ok()) return Refused(found->second.status());
  const Template& found_template = *found->second;
  const absl::StatusOr<std::string> prompt = found_template.chat_template.Render(messages);
  if (!prompt.ok()) return Refused(prompt.status());
  request->set_text(*prompt);
  request->set_add_special_tokens(false);  // the template writes them
  // A text of a form has an end of its own.
  const bool has_end = !request->stop().strings().empty() || request->has_constraint();
  if (!has_end && !found_template.turn_end.empty()) {
    request->mutable_stop()->add_strings(found_template.turn_end);
  }
  return absl::OkStatus();
}

}  // namespace rivulet
