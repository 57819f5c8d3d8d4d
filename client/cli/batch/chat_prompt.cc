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

absl::Status ChatPrompts::Set(const v1::GetModelReply& model,
                              const std::vector<ChatMessage>& messages,
                              v1::GenerateRequest* request) {
  auto found = forms_.find(model.summary().name());
  if (found == forms_.end()) {
    absl::StatusOr<ChatTemplate> form = ChatTemplate::Of(model, file_);
    if (!form.ok()) return Refused(form.status());
    std::string end = form->TurnEnd();
    found = forms_.emplace(model.summary().name(), Form{*std::move(form), std::move(end)}).first;
  }
  const absl::StatusOr<std::string> prompt = found->second.form.Render(messages);
  if (!prompt.ok()) return Refused(prompt.status());
  request->set_text(*prompt);
  request->set_add_special_tokens(false);  // the template writes them
  if (request->stop().strings().empty() && !found->second.turn_end.empty()) {
    request->mutable_stop()->add_strings(found->second.turn_end);
  }
  return absl::OkStatus();
}

}  // namespace rivulet
