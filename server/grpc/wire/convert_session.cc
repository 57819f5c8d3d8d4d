// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/convert_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

constexpr size_t kMaxMarkBytes = 64;
// The limit of a Duration, by its specification.
constexpr int64_t kMaxSeconds = 315'576'000'000;
constexpr int32_t kMaxNanos = 999'999'999;

absl::StatusOr<SessionId> ParseId(const std::string& text, absl::string_view field) {
  const std::optional<SessionId> id = SessionId::Parse(text);
  if (id) return *id;
  return InvalidField("SESSION_ID_MALFORMED", field,
                      absl::StrCat(field, " is ", Quoted(text),
                                   "; a session id is 32 of 0-9 a-f and not all zero"));
}

absl::Status CheckMark(const std::string& mark, size_t least, absl::string_view field) {
  if (mark.size() >= least && mark.size() <= kMaxMarkBytes) return absl::OkStatus();
  return InvalidField("MARK_LENGTH", field,
                      absl::StrCat(field, " is ", mark.size(), " bytes long; allowed: ", least,
                                   " to ", kMaxMarkBytes));
}

}  // namespace

absl::StatusOr<SessionRef> ToSessionRef(const v1::SessionRef& wire) {
  SessionRef ref;
  RIVULET_ASSIGN_OR_RETURN(ref.id, ParseId(wire.session_id(), "session.session_id"));
  RIVULET_RETURN_IF_ERROR(CheckMark(wire.mark(), 0, "session.mark"));
  if (wire.has_position()) ref.position = wire.position();
  ref.mark = wire.mark();
  if (wire.has_sequence_hash()) ref.hash = wire.sequence_hash();
  return ref;
}

absl::StatusOr<SessionRef> ToSessionRef(const std::string& session_id) {
  SessionRef ref;
  RIVULET_ASSIGN_OR_RETURN(ref.id, ParseId(session_id, "session_id"));
  return ref;
}

absl::StatusOr<SessionRef> ToSessionRef(const v1::RewindSessionRequest& request) {
  RIVULET_ASSIGN_OR_RETURN(SessionRef ref, ToSessionRef(request.session_id()));
  switch (request.to_case()) {
    case v1::RewindSessionRequest::kPosition:
      ref.position = request.position();
      return ref;
    case v1::RewindSessionRequest::kMark:
      RIVULET_RETURN_IF_ERROR(CheckMark(request.mark(), 1, "to.mark"));
      ref.mark = request.mark();
      return ref;
    case v1::RewindSessionRequest::TO_NOT_SET:
      break;
  }
  return InvalidField("REWIND_TARGET_MISSING", "to", "to is required: one of position or mark");
}

absl::StatusOr<SessionRef> ToSessionRef(const v1::SnapshotSessionRequest& request) {
  RIVULET_ASSIGN_OR_RETURN(SessionRef ref, ToSessionRef(request.session_id()));
  if (request.has_position()) ref.position = request.position();
  return ref;
}

absl::StatusOr<ListSpec> ToListSpec(const v1::ListSessionsRequest& request) {
  ListSpec spec;
  spec.page_size = request.page_size();
  const std::string& token = request.page_token();
  if (token.empty()) return spec;
  // As absl::Hex writes it: 16 digits, and no white space, which SimpleHexAtoi would accept.
  const bool digits = std::all_of(token.begin(), token.end(), absl::ascii_isxdigit);
  if (token.size() != 16 || !digits || !absl::SimpleHexAtoi(token, &spec.after)) {
    return InvalidField("PAGE_TOKEN_MALFORMED", "page_token",
                        absl::StrCat("page_token is ", Quoted(token),
                                     "; it must be the next_page_token of a reply, or absent"));
  }
  return spec;
}

absl::StatusOr<OpenSpec> ToOpenSpec(const v1::OpenSessionRequest& request) {
  OpenSpec spec;
  if (request.has_seed()) spec.seed = request.seed();
  RIVULET_ASSIGN_OR_RETURN(
      spec.idle_timeout,
      ToIdleTimeout(request.has_idle_timeout() ? &request.idle_timeout() : nullptr));
  return spec;
}

absl::StatusOr<ForkSpec> ToForkSpec(const v1::ForkSessionRequest& request) {
  ForkSpec spec;
  RIVULET_ASSIGN_OR_RETURN(spec.session, RequiredSession(request));
  if (request.has_count()) spec.count = request.count();
  if (request.has_seed()) spec.seed = request.seed();
  return spec;
}

absl::StatusOr<absl::Duration> ToDuration(absl::string_view reason, absl::string_view field,
                                          const google::protobuf::Duration& wire) {
  const int64_t seconds = wire.seconds();
  const int32_t nanos = wire.nanos();
  if (seconds < -kMaxSeconds || seconds > kMaxSeconds) {
    return InvalidField(reason, field,
                        absl::StrCat(field, " has ", seconds, " seconds; allowed: ", -kMaxSeconds,
                                     " to ", kMaxSeconds));
  }
  if (nanos < -kMaxNanos || nanos > kMaxNanos) {
    return InvalidField(
        reason, field,
        absl::StrCat(field, " has ", nanos, " nanos; allowed: ", -kMaxNanos, " to ", kMaxNanos));
  }
  if (seconds != 0 && nanos != 0 && (seconds < 0) != (nanos < 0)) {
    return InvalidField(reason, field,
                        absl::StrCat(field, " has ", seconds, " seconds and ", nanos,
                                     " nanos, which differ in sign"));
  }
  return absl::Seconds(seconds) + absl::Nanoseconds(nanos);
}

absl::StatusOr<std::optional<absl::Duration>> ToIdleTimeout(
    const google::protobuf::Duration* wire) {
  if (wire == nullptr) return std::optional<absl::Duration>();
  return ToDuration("IDLE_TIMEOUT_OUT_OF_RANGE", "idle_timeout", *wire);
}

Snapshot ToSnapshot(const SessionImage& image, const Model& model, absl::string_view numerics_id) {
  Snapshot snapshot;
  SetFingerprint(model, &snapshot);
  snapshot.numerics_id = std::string(numerics_id);
  snapshot.tenant = image.tenant;
  snapshot.seed = image.seed;
  snapshot.sequence_hash = image.history.hash();
  const auto tokens = image.history.tokens();
  snapshot.tokens.assign(tokens.begin(), tokens.end());
  for (int64_t i = 0; i < image.history.size(); ++i) {
    snapshot.generated.push_back(image.history.generated(i));
  }
  snapshot.marks = image.marks;
  if (image.state.state != nullptr) snapshot.fed = image.state.fed;
  return snapshot;
}

RestoreSpec ToRestoreSpec(Snapshot snapshot) {
  RestoreSpec spec;
  for (size_t i = 0; i < snapshot.tokens.size(); ++i) {
    spec.history.Append(snapshot.tokens[i], snapshot.generated[i]);
  }
  spec.seed = snapshot.seed;
  spec.marks = std::move(snapshot.marks);
  spec.fed = snapshot.fed;
  spec.state = std::move(snapshot.state);
  return spec;
}

void ToWire(absl::Duration duration, google::protobuf::Duration* wire) {
  const int64_t microseconds = absl::ToInt64Microseconds(duration);
  wire->set_seconds(microseconds / 1000000);
  wire->set_nanos(static_cast<int32_t>(microseconds % 1000000 * 1000));
}

void ToWire(const Durability& durability, v1::Durability* wire) {
  wire->set_durable(durability.complete);
  wire->set_position(durability.position);
  wire->set_other_numerics_id(durability.other_numerics_id);
}

void ToWire(const SessionProgress& progress, v1::SessionProgress* wire) {
  wire->set_position(progress.position);
  wire->set_sequence_hash(progress.hash);
}

void ToWire(const SessionInfo& info, absl::string_view model, v1::Session* wire) {
  wire->set_session_id(info.id.ToString());
  wire->set_model(std::string(model));
  ToWire({info.position, info.hash, info.seed}, wire->mutable_progress());
  wire->set_seed(info.seed);
  for (const auto& [name, position] : info.marks) (*wire->mutable_marks())[name] = position;
  ToWire(info.idle_timeout, wire->mutable_idle_timeout());
  ToWire(info.idle, wire->mutable_idle());
  wire->set_state_bytes(info.state_bytes);
  wire->set_busy(info.busy);
  wire->set_state_disk_bytes(info.state_disk_bytes);
}

void ToWire(const SessionPage& page, absl::string_view model, v1::ListSessionsReply* reply) {
  for (const SessionInfo& info : page.sessions) ToWire(info, model, reply->add_sessions());
  if (page.next == 0) return;
  reply->set_next_page_token(absl::StrCat(absl::Hex(page.next, absl::kZeroPad16)));
}

}  // namespace rivulet
