// SPDX-License-Identifier: Apache-2.0
// The calls of SessionService.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/connection.h"
#include "rivulet/client.h"

namespace rivulet {
namespace {

using Stub = v1::SessionService::Stub;

// Bytes of a snapshot in one message of RestoreSession. The message stays below any size limit of a
// server, and is complete in time on a slow link (RESTORE_TOO_SLOW).
constexpr size_t kChunkBytes = size_t{64} << 10;

}  // namespace

absl::StatusOr<v1::OpenSessionReply> Client::OpenSession(const v1::OpenSessionRequest& request,
                                                         const CallOptions& options) const {
  Call call(*connection_, options);
  auto reply = connection_->Unary(*connection_->sessions, &Stub::OpenSession, request, &call);
  if (reply.ok()) connection_->cookies.Set(reply->session().session_id(), call.cookie());
  return reply;
}

absl::StatusOr<v1::AppendReply> Client::Append(const v1::AppendRequest& request,
                                               const CallOptions& options) const {
  // Without a position the tokens would be appended twice.
  return connection_->OnSession(
      request.session().session_id(), options, request.session().has_position(), [&](Call* call) {
        return connection_->Unary(*connection_->sessions, &Stub::Append, request, call);
      });
}

absl::StatusOr<v1::ForkSessionReply> Client::ForkSession(const v1::ForkSessionRequest& request,
                                                         const CallOptions& options) const {
  const auto fork = [&](Call* call) {
    auto reply = connection_->Unary(*connection_->sessions, &Stub::ForkSession, request, call);
    if (!reply.ok()) return reply;
    for (const v1::Session& forked : reply->sessions()) {
      connection_->cookies.Set(forked.session_id(), call->cookie());
    }
    return reply;
  };
  return connection_->OnSession(request.session().session_id(), options, /*repeats=*/false, fork);
}

absl::StatusOr<v1::RewindSessionReply> Client::RewindSession(
    const v1::RewindSessionRequest& request, const CallOptions& options) const {
  return connection_->OnSession(request.session_id(), options, true, [&](Call* call) {
    return connection_->Unary(*connection_->sessions, &Stub::RewindSession, request, call);
  });
}

absl::Status Client::CloseSession(const v1::CloseSessionRequest& request,
                                  const CallOptions& options) const {
  const auto reply = connection_->OnSession(request.session_id(), options, true, [&](Call* call) {
    return connection_->Unary(*connection_->sessions, &Stub::CloseSession, request, call);
  });
  if (reply.ok()) connection_->cookies.Forget(request.session_id());
  return reply.status();
}

absl::StatusOr<v1::GetSessionReply> Client::GetSession(const v1::GetSessionRequest& request,
                                                       const CallOptions& options) const {
  return connection_->OnSession(request.session_id(), options, true, [&](Call* call) {
    return connection_->Unary(*connection_->sessions, &Stub::GetSession, request, call);
  });
}

absl::StatusOr<v1::ListSessionsReply> Client::ListSessions(const v1::ListSessionsRequest& request,
                                                           const CallOptions& options) const {
  return connection_->Unary(*connection_->sessions, &Stub::ListSessions, request, options);
}

std::string Client::SessionCookie(absl::string_view session_id) const {
  return connection_->cookies.Get(session_id);
}

absl::Status Client::SetSessionCookie(absl::string_view session_id,
                                      absl::string_view cookie) const {
  // gRPC cannot send other characters.
  if (!std::all_of(cookie.begin(), cookie.end(), absl::ascii_isprint)) {
    return absl::InvalidArgumentError(absl::StrCat("cookie: \"", absl::CHexEscape(cookie),
                                                   "\"; only printable ASCII can be sent"));
  }
  connection_->cookies.Set(session_id, cookie);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Client::SnapshotSession(const v1::SnapshotSessionRequest& request,
                                                    const CallOptions& options) const {
  const auto read = [&](Call* call) -> absl::StatusOr<std::string> {
    const auto reader = connection_->sessions->SnapshotSession(call->context(), request);
    v1::SnapshotSessionReply part;
    std::string snapshot;
    while (reader->Read(&part)) snapshot += part.chunk();
    absl::Status status = FromGrpcStatus(reader->Finish());
    if (!status.ok()) return status;
    return snapshot;
  };
  return connection_->OnSession(request.session_id(), options, true, read);
}

absl::StatusOr<v1::RestoreSessionReply> Client::RestoreSession(v1::RestoreSessionRequest request,
                                                               absl::string_view snapshot,
                                                               const CallOptions& options) const {
  Call call(*connection_, options);
  v1::RestoreSessionReply reply;
  const auto writer = connection_->sessions->RestoreSession(call.context(), &reply);
  // Sends one message even if the snapshot has no bytes: it names the model.
  do {
    request.set_chunk(std::string(snapshot.substr(0, kChunkBytes)));
    snapshot.remove_prefix(std::min(snapshot.size(), kChunkBytes));
    if (!writer->Write(request)) break;  // the server has ended the call; Finish says why
    request.Clear();
  } while (!snapshot.empty());
  writer->WritesDone();
  absl::Status status = FromGrpcStatus(writer->Finish());
  if (!status.ok()) return status;
  connection_->cookies.Set(reply.session().session_id(), call.cookie());
  return reply;
}

}  // namespace rivulet
