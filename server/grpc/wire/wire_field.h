// SPDX-License-Identifier: Apache-2.0
// Translates the field that an error of the engine names for the client. The engine calls every
// prompt "prompt.tokens", scored or appended tokens "content.tokens", and the parts of a session
// "session_id", "position", "mark", "sequence_hash" and "tokens". The client knows the paths of its
// request: "prompt.text", "content.image_values", "session.position", "to.mark".
#pragma once

#include "absl/status/status.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/session_service.pb.h"

namespace rivulet {

// `status` with its field, where it has one, replaced by the path in `request`. Thread: any.
absl::Status NameWireField(const absl::Status& status, const v1::GenerateRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::ScoreRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::AppendRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::ForkSessionRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::RewindSessionRequest& request);

// For all other requests: their paths are the engine's names.
template <typename Request>
absl::Status NameWireField(const absl::Status& status, const Request& /*request*/) {
  return status;
}

}  // namespace rivulet
