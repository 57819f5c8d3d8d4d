// SPDX-License-Identifier: Apache-2.0
// Errors of the engine, about what the client sent. The engine knows every prompt as
// "prompt.tokens", what is scored or appended as "content.tokens", and what is wrong with a session
// as "session_id", "position", "mark", "sequence_hash" or "tokens"; the client knows the paths of
// its request: "prompt.text", "content.image_values", "session.position", "to.mark".
#pragma once

#include "absl/status/status.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/session_service.pb.h"

namespace rivulet {

// `status` with its field, where it names one, as the path in `request`. Thread: any.
absl::Status NameWireField(const absl::Status& status, const v1::GenerateRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::ScoreRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::AppendRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::ForkSessionRequest& request);
absl::Status NameWireField(const absl::Status& status, const v1::RewindSessionRequest& request);

// Of every other request: the engine's names are its paths.
template <typename Request>
absl::Status NameWireField(const absl::Status& status, const Request& /*request*/) {
  return status;
}

}  // namespace rivulet
