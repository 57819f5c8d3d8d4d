// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/session_gate.h"

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

absl::Status SessionBusy(size_t waiting) {
  ErrorDetail detail;
  detail.reason = "SESSION_BUSY";
  detail.field = "session_id";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(waiting, " requests wait for this session already."), detail);
}

}  // namespace

SessionGate::SessionGate(const SessionLimits& limits, bool with_bos, StateStore* states)
    : table_(limits, with_bos, states) {}

absl::StatusOr<bool> SessionGate::Enter(Request* request) {
  if (!request->session_ref) return true;
  RIVULET_ASSIGN_OR_RETURN(Session* const session,
                           table_.Find(request->session_ref->id, request->session_ref->tenant));
  request->session = session;
  if (session->active == nullptr) {
    table_.Take(session, request);
    return true;
  }
  if (session->waiters.size() >= static_cast<size_t>(table_.limits().max_waiting)) {
    return SessionBusy(session->waiters.size());
  }
  session->waiters.push_back(request);
  return false;
}

absl::StatusOr<std::vector<Request*>> SessionGate::Close(Request* closing) {
  RIVULET_ASSIGN_OR_RETURN(Session* const session,
                           table_.Find(closing->session_ref->id, closing->session_ref->tenant));
  session->closed = true;
  std::vector<Request*> ended(session->waiters.begin(), session->waiters.end());
  if (session->active != nullptr) {
    ended.push_back(session->active);
  } else {
    table_.Erase(session);
  }
  return ended;
}

absl::Status SessionGate::SessionClosed() {
  ErrorDetail detail;
  detail.reason = "SESSION_CLOSED";
  return MakeError(absl::StatusCode::kCancelled, "The session was closed.", detail);
}

bool SessionGate::HasTurn(const Request& request) {
  return request.session != nullptr && request.session->active == &request;
}

void SessionGate::Leave(Request* request) {
  if (request->session != nullptr) std::erase(request->session->waiters, request);
}

Request* SessionGate::Release(Session* session, absl::Time now) {
  if (session->closed) {
    table_.Erase(session);
    return nullptr;
  }
  table_.GiveBack(session, now);
  if (session->waiters.empty()) return nullptr;
  Request* const next = session->waiters.front();
  session->waiters.pop_front();
  table_.Take(session, next);
  return next;
}

}  // namespace rivulet
