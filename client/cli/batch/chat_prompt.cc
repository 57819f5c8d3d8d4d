// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/chat_prompt.h"

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {

absl::Status SetChatPrompt(const v1::GetModelReply& model, const std::vector<ChatMessage>&,
                           v1::GenerateRequest*) {
  ErrorDetail detail;
  detail.field = "messages";
  if (model.chat_template().empty()) {
    detail.reason = "NO_CHAT_TEMPLATE";
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("messages: the model ", model.summary().name(),
                                  " has no chat template; write the whole text as prompt"),
                     detail);
  }
  detail.reason = "CHAT_TEMPLATE_UNSUPPORTED";
  return MakeError(absl::StatusCode::kUnimplemented,
                   "messages: rivulet batch does not render chat templates; write the whole text "
                   "as prompt, or use /v1/chat/completions of the HTTP gateway",
                   detail);
}

}  // namespace rivulet
