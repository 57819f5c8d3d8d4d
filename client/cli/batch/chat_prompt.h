// SPDX-License-Identifier: Apache-2.0
// The prompt of a conversation, as the model's chat template writes it.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/batch/batch_line.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// Sets the prompt of `request`. Errors: INVALID_ARGUMENT (NO_CHAT_TEMPLATE), UNIMPLEMENTED
// (CHAT_TEMPLATE_UNSUPPORTED).
absl::Status SetChatPrompt(const v1::GetModelReply& model, const std::vector<ChatMessage>& messages,
                           v1::GenerateRequest* request);

}  // namespace rivulet
