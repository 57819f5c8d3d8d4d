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

absl::StatusOr<ChatPrompts::Form> ChatPrompts::FormOf(const v1::GetModelReply& model) {
  RIVULET_ASSIGN_OR_RETURN(ChatTemplate form, ChatTemplate::Of(model, file_, &process_));
  RIVULET_ASSIGN_OR_RETURN(std::string end, form.TurnEnd());
  return Form{std::move(form), std::move(end)};
}

absl::Status ChatPrompts::Set(const v1::GetModelReply& model,
                              const std::vector<ChatMessage>& messages,
                              v1::GenerateRequest* request) {
  auto found = forms_.find(model.summary().name());
  if (found == forms_.end()) {
    found = forms_.emplace(model.summary().name(), FormOf(model)).first;
  }
  if (!found->second.ok()) return Refused(found->second.status());
  const Form& form = *found->second;
  const absl::StatusOr<std::string> prompt = form.form.Render(messages);
  if (!prompt.ok()) return Refused(prompt.status());
  request->set_text(*prompt);
  request->set_add_special_tokens(false);  // the template writes them
  if (request->stop().strings().empty() && !form.turn_end.empty()) {
    request->mutable_stop()->add_strings(form.turn_end);
  }
  return absl::OkStatus();
}

}  // namespace rivulet
