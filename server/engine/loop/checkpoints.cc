// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/checkpoints.h"

#include <algorithm>
#include <span>
#include <utility>

#include "model/base/error.h"

namespace rivulet {

Checkpoints::Checkpoints(const EngineOptions& options, const StateSize& size, bool with_bos,
                         StateStamp stamp, DiskTier disk, std::function<void()> wake)
    : states_(options.states, size, std::move(stamp), std::move(disk), std::move(wake)),
      cache_(options.prefix_cache),
      bos_(with_bos ? 1 : 0) {}

void Checkpoints::KeepWarm(WarmState warm) {
  const auto seen = static_cast<size_t>(std::max<int64_t>(0, warm.fed - bos_));
  cache_.Share(std::span<const int32_t>(warm.tokens).first(seen),
               states_.Pin(std::move(warm.state), warm.fed));
}

std::optional<FoundState> Checkpoints::Find(LiveRequest* request) {
  const KeptCheckpoint best = request->BestState(&cache_);
  if (best.state == nullptr) return FoundState{best, nullptr};
  ViewPtr view = states_.Use(best.state.get());
  if (view != nullptr) return FoundState{best, std::move(view)};
  states_.Fetch(best.state.get());
  fetching_.push_back({request, best});
  return std::nullopt;
}

bool Checkpoints::TakeFetched(std::vector<Fetched>* fetched) {
  fetched->clear();
  if (!states_.Collect()) return false;
  std::erase_if(fetching_, [&](const Fetching& entry) {
    if (StateStore::fetching(*entry.state.state)) return false;
    fetched->push_back({entry.request, {entry.state, states_.Use(entry.state.state.get())}});
    return true;
  });
  states_.Fit();  // fetched states are held by now
  return true;
}

std::optional<FoundState> Checkpoints::FindBetter(LiveRequest* request) {
  const KeptCheckpoint best = request->BestState(&cache_);
  if (best.fed <= request->start.fed || !best.state->in_memory()) return std::nullopt;
  return FoundState{best, states_.Use(best.state.get())};
}

void Checkpoints::CountUse(const LiveRequest& request) {
  if (!request.cached) return;
  ++(request.start.fed > 0 ? hits_ : misses_);
}

absl::Status Checkpoints::KeepAfterRun(Sequence* sequence, Slots* slots) {
  LiveRequest* const request = sequence->request;
  const int64_t fed = sequence->fed();
  if (!request->keep.Due(fed)) return absl::OkStatus();
  // Drawn tokens that are held back may still be dropped.
  if (request->session != nullptr && fed > request->session->total()) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(StatePtr state,
                           slots->Keep({sequence->slot, {}, sequence->segments}, fed, &states_));
  sequence->segments = state->segments();
  request->KeepState(fed, std::move(state), &cache_);
  return absl::OkStatus();
}

void Checkpoints::SaveSoon(const Sequence& sequence, LeftState left) {
  saving_.push_back(
      {std::move(left), sequence.request->session, sequence.start().fed, sequence.fed()});
}

bool Checkpoints::Saves(const Session& session) const {
  return std::any_of(saving_.begin(), saving_.end(),
                     [&](const Saving& saving) { return saving.session == &session; });
}

absl::StatusOr<std::vector<Session*>> Checkpoints::Save(Slots* slots) {
  for (Saving& saving : saving_) {
    // Tokens that were drawn and then dropped (stop string) may have been fed: then it cannot fit.
    const bool fits = saving.fed > saving.start && saving.fed <= saving.session->total();
    if (saving.session->closed || !fits || saving.session->Keeps(saving.fed)) continue;
    RIVULET_ASSIGN_OR_RETURN(StatePtr state,
                             slots->Keep(std::move(saving.left), saving.fed, &states_));
    saving.session->Keep({saving.fed, std::move(state)});
  }
  return ForgetUnsaved();
}

std::vector<Session*> Checkpoints::ForgetUnsaved() {
  std::vector<Session*> sessions;
  sessions.reserve(saving_.size());
  for (const Saving& saving : saving_) sessions.push_back(saving.session);
  saving_.clear();
  return sessions;
}

void Checkpoints::Leave(LiveRequest* request) {
  request->kept_segments.clear();
  if (request->life.state() != RequestLife::State::kFetchesState) return;
  std::erase_if(fetching_, [&](const Fetching& entry) { return entry.request == request; });
}

}  // namespace rivulet
