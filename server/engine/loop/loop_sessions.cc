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
  const KeptCheckpoint best = request->BestState(&cache_);
  if (best.state == nullptr) return GoOnFrom(request, best, nullptr);
  BlobPtr blob = states_.Use(best.state.get());
  if (blob != nullptr) return GoOnFrom(request, best, std::move(blob));
  states_.Fetch(best.state.get());
  fetching_.push_back({request, best});
}

void Loop::GoOnFrom(Request* request, const KeptCheckpoint& kept, BlobPtr blob) {
  // A state of the prefix cache serves the session from now on.
  if (request->session != nullptr && kept.state != nullptr) request->session->Keep(kept);
  const absl::Status status = request->GoOnFrom({kept.fed, std::move(blob)}, &sessions_, now_);
  if (!status.ok() || request->num_slots == 0) {
    CountCacheUse(*request);
    return EndRequest(request, status);
  }
  request->waits_for_slots = true;
  request->tenant_key =
      admission_.Add(request->id, request->tenant, request->priority, request->num_slots);
}

bool Loop::TakeFetchedStates() {
  if (!states_.Collect()) return false;
  std::vector<std::pair<Fetching, BlobPtr>> fetched;
  std::erase_if(fetching_, [&](const Fetching& entry) {
    if (StateStore::fetching(*entry.state.state)) return false;
    fetched.emplace_back(entry, states_.Use(entry.state.state.get()));
    return true;
  });
  states_.Fit();  // what was fetched is held by now
  for (auto& [entry, blob] : fetched) {
    if (blob == nullptr) {
      FindState(entry.request);  // it could not be read: another one, or none
    } else {
      GoOnFrom(entry.request, entry.state, std::move(blob));
    }
  }
  return true;
}

// Requests that began alike may have left a state since it came.
void Loop::FindBetterState(Request* request) {
  if (!request->looks_again) return;
  const KeptCheckpoint best = request->BestState(&cache_);
  if (best.fed <= request->start.fed || !best.state->in_memory()) return;
  // It feeds at least one token, so nothing of this ends it.
  request->GoOnFrom({best.fed, states_.Use(best.state.get())}, &sessions_, now_).IgnoreError();
}

void Loop::CountCacheUse(const Request& request) {
  if (!request.cached) return;
  ++(request.start.fed > 0 ? cache_hits_ : cache_misses_);
}

absl::Status Loop::KeepState(Sequence* sequence) {
  Request* const request = sequence->request;
  const int64_t fed = sequence->fed();
  if (!request->keep.Due(fed)) return absl::OkStatus();
  // What was drawn and is held back may yet be dropped.
  if (request->session != nullptr && fed > request->session->total()) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(std::vector<float> values, slots_.Read(sequence->slot));
  request->KeepState(fed, states_.Keep(std::move(values)), &cache_);
  return absl::OkStatus();
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
  std::erase_if(fetching_, [request](const Fetching& entry) { return entry.request == request; });
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
  const bool saved_first = std::any_of(saving_.begin(), saving_.end(), [&](const Saving& saving) {
    return saving.session == session;
  });
  if (!saved_first) Release(session);
}

void Loop::Release(Session* session) {
  if (session->closed) return sessions_.Erase(session);
  sessions_.GiveBack(session, now_);
  if (session->waiters.empty()) return;
  Request* const next = session->waiters.front();
  session->waiters.pop_front();
  Begin(next);
}

absl::Status Loop::SaveStates() {
  for (Saving& saving : saving_) {
    // What was drawn and then dropped (a stop string) may have been fed: such a state is of no use.
    const bool fits = saving.fed > saving.start && saving.fed <= saving.session->total();
    if (saving.session->closed || !fits || saving.session->Keeps(saving.fed)) continue;
    RIVULET_ASSIGN_OR_RETURN(std::vector<float> values, slots_.Read(std::move(saving.left)));
    saving.session->Keep({saving.fed, states_.Keep(std::move(values))});
  }
  for (const Saving& saving : std::exchange(saving_, {})) Release(saving.session);
  return absl::OkStatus();
}

}  // namespace rivulet
