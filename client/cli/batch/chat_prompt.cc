// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/chat_prompt.h"

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {

absl::Status ChatPrompts::ReadFile(const std::string& name) {
  RIVULET_ASSIGN_OR_RETURN(file_, ReadChatTemplate(name, &process_));
  return absl::OkStatus();
}

absl::Status ChatPrompts::Set(const v1::GetModelReply& model, int64_t number, ChatRequest* chat) {
  auto found = templates_.find(model.summary().name());
  if (found == templates_.end()) {
    absl::StatusOr<ChatTemplate> made = ChatTemplate::Of(model, file_, &process_);
    found = templates_.emplace(model.summary().name(), std::move(made)).first;
  }
  if (!found->second.ok()) return found->second.status();
  RIVULET_ASSIGN_OR_RETURN(
      chat->parts, found->second->Apply(chat->conversation, absl::StrCat("call_", number, "_"),
                                        &chat->generate));
  return absl::OkStatus();
}

}  // namespace rivulet
