// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/live_request.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace rivulet {
namespace {

void CheckOrDie(bool holds, const char* what, RequestLife::State state) {
  if (holds) return;
  std::fprintf(stderr, "RequestLife: %s (state %d)\n", what, static_cast<int>(state));
  std::abort();
}

}  // namespace

bool RequestLife::Allowed(State from, State to) {
  if (to == State::kEnded) return from != State::kEnded;
  switch (from) {
    case State::kArrived:
      if (to == State::kWaitsForTurn) return true;
      [[fallthrough]];
    case State::kWaitsForTurn:
      return to == State::kPrepares || to == State::kClaims || to == State::kFindsState;
    case State::kPrepares:
      return to == State::kClaims || to == State::kFindsState;
    case State::kClaims:
      return to == State::kFindsState;
    case State::kFindsState:
      return to == State::kFetchesState || to == State::kWaitsForSlots;
    case State::kFetchesState:
      // The state may turn out to be lost: then the request looks for another.
      return to == State::kFindsState || to == State::kWaitsForSlots;
    case State::kWaitsForSlots:
      return to == State::kHoldsSlots;
    case State::kHoldsSlots:
      return to == State::kParked || to == State::kWaitsAgain;
    case State::kParked:
      return to == State::kWaitsAgain;
    case State::kWaitsAgain:
      return to == State::kHoldsSlots;
    case State::kEnded:
      return false;
  }
  return false;
}

void RequestLife::Go(State to) {
  CheckOrDie(Allowed(state_, to), "a step that is not allowed", state_);
  CheckOrDie(to != State::kParked || paused(), "parked although its reader reads", state_);
  CheckOrDie(state_ != State::kParked || to != State::kWaitsAgain || !paused(),
             "waits for slots although nobody reads it", state_);
  state_ = to;
}

void RequestLife::Pause(absl::Time now) {
  CheckOrDie(state_ == State::kHoldsSlots && !paused(), "paused twice or without slots", state_);
  paused_since_ = now;
}

bool RequestLife::Resume() {
  CheckOrDie(paused(), "resumed and was not paused", state_);
  paused_since_.reset();
  if (state_ != State::kParked) return false;
  Go(State::kWaitsAgain);
  return true;
}

KeptCheckpoint LiveRequest::DeepestState(PrefixCache* cache, int64_t most) {
  KeptCheckpoint best, of_cache;
  if (session != nullptr) best = session->From(most);
  if (cached) of_cache = cached->Find(cache, sequence_tokens(), most);
  return of_cache.fed > best.fed ? of_cache : best;
}

void LiveRequest::KeepState(int64_t fed, StatePtr state, PrefixCache* cache) {
  keep.NoteKept(fed);
  if (session != nullptr) session->Keep({fed, state});
  if (cached && keep.HasPoint(fed)) cached->Keep(cache, sequence_tokens(), fed, std::move(state));
}

bool LiveRequest::keeps_slots() const {
  return std::any_of(sequences.begin(), sequences.end(),
                     [](const auto& sequence) { return sequence->keeps_slot(); });
}

}  // namespace rivulet
