// SPDX-License-Identifier: Apache-2.0
// Checkpoints: the kept states that requests continue from, and the states that requests leave.
//
//   Find ──(in a file)── TakeFetched ──> the request has slots ── KeepAfterRun ... SaveSoon ── Save
//
// A request continues from the latest kept state of its session or of a cached prompt. It keeps
// states while it runs. A request on a session leaves its last state in the session: the next
// request on the session can begin only when that state is saved.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/loop/slots.h"
#include "server/engine/options.h"
#include "server/engine/sequences/live_request.h"
#include "server/sessions/session.h"
#include "server/sessions/store/prefix_cache.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

// What a request continues from. `view` null: nothing has been fed, or the state was lost.
struct FoundState {
  KeptCheckpoint kept;
  ViewPtr view;  // of kept.state, in memory

  Checkpoint checkpoint() const { return {kept.fed, view}; }
  std::vector<StatePtr> segments() const {
    return kept.state == nullptr ? std::vector<StatePtr>() : kept.state->segments();
  }
};

// Thread: the loop. Requests are borrowed: Leave comes before their end. Errors are those of the
// backend.
class Checkpoints {
 public:
  // `size`: of all states. `stamp`: of the files of `disk`, which may be empty. Another thread
  // calls `wake` when TakeFetched has something to do.
  Checkpoints(const EngineOptions& options, const StateSize& size, bool with_bos, StateStamp stamp,
              DiskTier disk, std::function<void()> wake);

  StateStore* store() { return &states_; }
  // A state that every tenant's requests may continue from; never forgotten.
  void KeepWarm(WarmState warm);

  // The best state for `request`, which has begun; nullopt: the state is being read from a file,
  // and TakeFetched will return it.
  std::optional<FoundState> Find(LiveRequest* request);
  struct Fetched {
    LiveRequest* request;
    FoundState found;  // view null: it could not be read, so Find has to look again
  };
  // Returns the states that were read since the last call, in the order of the calls of Find. True:
  // the disk tier has done something.
  bool TakeFetched(std::vector<Fetched>* fetched);
  // A state in memory that has seen more of the tokens than request->start, left meanwhile by a
  // request that began with the same tokens; nullopt: none.
  std::optional<FoundState> FindBetter(LiveRequest* request);
  // Counts a hit or a miss, if `request` uses the prefix cache.
  void CountUse(const LiveRequest& request);

  // Keeps the state of the slot of `sequence`, if its request wants that at this position.
  absl::Status KeepAfterRun(Sequence* sequence, Slots* slots);

  // `sequence`, whose request has a session, has ended: Save will keep `left`.
  void SaveSoon(const Sequence& sequence, LeftState left);
  bool Saves(const Session& session) const;
  // Keeps the states of SaveSoon, before their slots are zeroed. Returns the sessions, one for each
  // call of SaveSoon. After an error only some are saved, and ForgetUnsaved returns all sessions.
  absl::StatusOr<std::vector<Session*>> Save(Slots* slots);
  std::vector<Session*> ForgetUnsaved();

  // `request` ends.
  void Leave(LiveRequest* request);

  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }
  int64_t cache_bytes() const { return cache_.bytes(); }

 private:
  struct Fetching {
    LiveRequest* request;
    KeptCheckpoint state;
  };
  struct Saving {
    LeftState left;
    Session* session;
    int64_t start, fed;  // tokens fed before the request and now
  };

  StateStore states_;  // before whatever holds states
  PrefixCache cache_;
  const int64_t bos_;
  int64_t hits_ = 0, misses_ = 0;
  std::vector<Fetching> fetching_;  // requests whose states are being read
  std::vector<Saving> saving_;
};

}  // namespace rivulet
