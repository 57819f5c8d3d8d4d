// SPDX-License-Identifier: Apache-2.0
// Sessions between two runs: whose turn it is, and where their states go.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/engine/loop/loop.h"

namespace rivulet {
namespace {

absl::Status SessionClosed() {
  ErrorDetail detail;
  detail.reason = "SESSION_CLOSED";
  return MakeError(absl::StatusCode::kCancelled, "The session was closed.", detail);
}

absl::Status SessionBusy(size_t waiting) {
  ErrorDetail detail;
  detail.reason = "SESSION_BUSY";
  detail.field = "session_id";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(waiting, " requests wait for this session already."), detail);
}

}  // namespace

void Loop::Enter(Request* request) {
  if (request->session_ref) {
    const absl::StatusOr<Session*> found =
        sessions_.Find(request->session_ref->id, request->session_ref->tenant);
    if (!found.ok()) return EndRequest(request, found.status());
    request->session = *found;
    if (request->closes_session) return CloseSession(request);
    auto& waiters = request->session->waiters;
    if (request->session->active != nullptr) {
      if (waiters.size() >= static_cast<size_t>(sessions_.limits().max_waiting)) {
        return EndRequest(request, SessionBusy(waiters.size()));
      }
      waiters.push_back(request);
      return;
    }
  }
  Begin(request);
}

void Loop::Begin(Request* request) {
  if (request->session != nullptr) sessions_.Take(request->session, request);
  const absl::Status status = request->Begin(&sessions_, now_);
  request->begun = status.ok();
  if (!status.ok()) return EndRequest(request, status);
  FindState(request);
}

void Loop::FindState(Request* request) {
  std::optional<FoundState> found = checkpoints_.Find(request);
  if (found) ContinueFrom(request, std::move(*found));
}

void Loop::ContinueFrom(Request* request, FoundState found) {
  // A state of the prefix cache serves the session from now on.
  if (request->session != nullptr && found.kept.state != nullptr)
    request->session->Keep(found.kept);
  const absl::Status status =
      request->GoOnFrom({found.kept.fed, std::move(found.blob)}, &sessions_, now_);
  if (!status.ok() || request->num_slots == 0) {
    checkpoints_.CountUse(*request);
    return EndRequest(request, status);
  }
  request->waits_for_slots = true;
  request->tenant_key =
      admission_.Add(request->id, request->tenant, request->priority, request->num_slots);
}

bool Loop::TakeFetchedStates() {
  std::vector<Checkpoints::Fetched> fetched;
  if (!checkpoints_.TakeFetched(&fetched)) return false;
  for (auto& [request, found] : fetched) {
    if (found.blob == nullptr) {
      FindState(request);  // it could not be read: another one, or none
    } else {
      ContinueFrom(request, std::move(found));
    }
  }
  return true;
}

// Requests that began alike may have left a state since it came.
void Loop::FindBetterState(Request* request) {
  if (!request->looks_again) return;
  std::optional<Checkpoint> better = checkpoints_.FindBetter(request);
  // It feeds at least one token, so nothing of this ends it.
  if (better) request->GoOnFrom(std::move(*better), &sessions_, now_).IgnoreError();
}

void Loop::CloseSession(Request* closing) {
  Session* const session = std::exchange(closing->session, nullptr);
  session->closed = true;
  while (!session->waiters.empty()) EndRequest(session->waiters.front(), SessionClosed());
  if (session->active != nullptr) {
    EndRequest(session->active, SessionClosed());
  } else {
    sessions_.Erase(session);
  }
  EndRequest(closing, absl::OkStatus());
}

void Loop::LeaveQueues(Request* request) {
  if (std::exchange(request->waits_for_slots, false)) admission_.Remove(request->id);
  checkpoints_.Leave(*request);
  readers_.Leave(request);
  if (request->session != nullptr) std::erase(request->session->waiters, request);
}

void Loop::SettleClientSession(Request* request, const absl::Status& end) {
  const bool its_own = request->session != nullptr && request->session->active == request;
  if (its_own && request->begun) request->Settle(end);
}

void Loop::LeaveClientSession(Request* request) {
  Session* const session = request->session;
  if (session == nullptr || session->active != request) return;
  if (!checkpoints_.Saves(*session)) Release(session);
}

void Loop::Release(Session* session) {
  if (session->closed) return sessions_.Erase(session);
  sessions_.GiveBack(session, now_);
  if (session->waiters.empty()) return;
  Request* const next = session->waiters.front();
  session->waiters.pop_front();
  Begin(next);
}

}  // namespace rivulet
