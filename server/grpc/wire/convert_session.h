// SPDX-License-Identifier: Apache-2.0
// As convert.h, for the messages about sessions.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "model/base/error.h"
#include "model/model.h"
#include "rivulet/v1/session.pb.h"
#include "rivulet/v1/session_service.pb.h"
#include "server/engine/request.h"
#include "server/engine/session_calls.h"
#include "server/sessions/snapshot.h"

namespace rivulet {

// The caller sets the tenant in all of these. Errors: INVALID_ARGUMENT (SESSION_ID_MALFORMED,
// MARK_LENGTH, IDLE_TIMEOUT_OUT_OF_RANGE, REWIND_TARGET_MISSING), naming the field by its path.
absl::StatusOr<SessionRef> ToSessionRef(const v1::SessionRef& wire);
// The session of a request that names it only by its id.
absl::StatusOr<SessionRef> ToSessionRef(const std::string& session_id);
absl::StatusOr<SessionRef> ToSessionRef(const v1::RewindSessionRequest& request);
absl::StatusOr<SessionRef> ToSessionRef(const v1::SnapshotSessionRequest& request);
// The error for a request without a session: INVALID_ARGUMENT (SESSION_MISSING).
template <typename Request>
absl::StatusOr<SessionRef> RequiredSession(const Request& request) {
  if (request.has_session()) return ToSessionRef(request.session());
  return InvalidField("SESSION_MISSING", "session", "session is required");
}
absl::StatusOr<OpenSpec> ToOpenSpec(const v1::OpenSessionRequest& request);
absl::StatusOr<ForkSpec> ToForkSpec(const v1::ForkSessionRequest& request);
// The caller sets the deadline, too. Errors: also PAGE_TOKEN_MALFORMED.
absl::StatusOr<ListSpec> ToListSpec(const v1::ListSessionsRequest& request);

// Errors: INVALID_ARGUMENT (`reason`) if `wire` is no valid Duration; the caller checks the range.
absl::StatusOr<absl::Duration> ToDuration(absl::string_view reason, absl::string_view field,
                                          const google::protobuf::Duration& wire);
// Nullopt where `wire` is null. Errors: INVALID_ARGUMENT (IDLE_TIMEOUT_OUT_OF_RANGE) if it is no
// valid Duration; the engine checks the range.
absl::StatusOr<std::optional<absl::Duration>> ToIdleTimeout(const google::protobuf::Duration* wire);

// Convert the image of a session of `model` to a snapshot and back. ToSnapshot leaves the values of
// the state out. REQUIRES: the snapshot was checked against the model.
Snapshot ToSnapshot(const SessionImage& image, const Model& model, absl::string_view numerics_id);
RestoreSpec ToRestoreSpec(Snapshot snapshot);

// Exact to the microsecond, rounded towards zero.
void ToWire(absl::Duration duration, google::protobuf::Duration* wire);
void ToWire(const SessionProgress& progress, v1::SessionProgress* wire);
void ToWire(const Durability& durability, v1::Durability* wire);
void ToWire(const SessionInfo& info, absl::string_view model, v1::Session* wire);
void ToWire(const SessionPage& page, absl::string_view model, v1::ListSessionsReply* reply);

}  // namespace rivulet
