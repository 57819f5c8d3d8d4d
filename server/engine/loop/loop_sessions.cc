// SPDX-License-Identifier: Apache-2.0
// Sessions between two runs: whose turn it is, and where their states go.
#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "server/engine/loop/loop.h"

namespace rivulet {

void Loop::Enter(Request* request) {
  if (request->closes_session) return CloseSession(request);
  const absl::StatusOr<bool> its_turn = gate_.Enter(request);
  if (!its_turn.ok()) return EndRequest(request, its_turn.status());
  if (*its_turn) return Begin(request);
  request->life.Go(RequestLife::State::kWaitsForTurn);
}

void Loop::CloseSession(Request* closing) {
  const absl::StatusOr<std::vector<Request*>> ended = gate_.Close(closing);
  if (!ended.ok()) return EndRequest(closing, ended.status());
  for (Request* request : *ended) EndRequest(request, SessionGate::SessionClosed());
  EndRequest(closing, absl::OkStatus());
}

void Loop::Begin(Request* request) {
  const absl::Status status = request->Begin(gate_.table(), now_);
  if (!status.ok()) return EndRequest(request, status);
  FindState(request);
}

void Loop::FindState(Request* request) {
  request->life.Go(RequestLife::State::kFindsState);
  std::optional<FoundState> found = checkpoints_.Find(request);
  if (found) return ContinueFrom(request, std::move(*found));
  request->life.Go(RequestLife::State::kFetchesState);
}

void Loop::ContinueFrom(Request* request, FoundState found) {
  // A state of the prefix cache serves the session from now on.
  if (request->session != nullptr && found.kept.state != nullptr)
    request->session->Keep(found.kept);
  const absl::Status status =
      request->GoOnFrom({found.kept.fed, std::move(found.blob)}, gate_.table(), now_);
  if (!status.ok() || request->num_slots == 0) {
    checkpoints_.CountUse(*request);
    return EndRequest(request, status);
  }
  request->life.Go(RequestLife::State::kWaitsForSlots);
  AddToAdmission(request, request->num_slots);
}

void Loop::AddToAdmission(Request* request, int slots) {
  Request::Account& account = request->account;
  account.tenant_key = admission_.Add(request->id, account.tenant, account.priority, slots);
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
  if (better) request->GoOnFrom(std::move(*better), gate_.table(), now_).IgnoreError();
}

void Loop::Release(Session* session) {
  if (Request* const next = gate_.Release(session, now_)) Begin(next);
}

}  // namespace rivulet
