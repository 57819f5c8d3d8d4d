// SPDX-License-Identifier: Apache-2.0
// RequestQueue: the queue between the engine's callers and its loop. Callers put in requests and
// cancellations; between two runs the loop takes them all with one lock and publishes its load.
//
// Whether it accepts a request depends only on counts: the accepted samples, scores and session
// calls that have not ended are never more than the slots plus max_queue, with or without slots.
//
// Of these places a tenant may have seven times the number left free (fair_share.h), beside slots
// that the others leave free: alone it gets all slots and seven eighths of the queue. A tenant that
// has nothing here is accepted while there is room for its request. The same holds for the given
// tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/engine/clock.h"
#include "server/engine/load.h"
#include "server/engine/policy/rate_window.h"
#include "server/engine/sequences/live_request.h"

namespace rivulet {

struct QueueLimits {
  int slots = 0;
  int max_queue = 0;
  int max_tenant_queue = 0;  // of one tenant, even if more places are free; 0: max_queue
  int64_t max_tokens = 0;    // given tokens of all accepted requests together
  bool saves = false;        // Drain waits for EngineLoad::unsaved, for at most 5 s
};

// Thread: any, except the loop's own part.
class RequestQueue {
 public:
  RequestQueue(const QueueLimits& limits, Clock clock)
      : limits_(limits), clock_(std::move(clock)) {}

  // An id for a request that needs no slot. Errors: UNAVAILABLE (draining, stopped, backend
  // failed).
  absl::StatusOr<RequestId> NewId();
  // Gives the request its id and arrival time, counts its given tokens for its key and queues it.
  // Errors: the errors of NewId and of KeyAccount::CheckTokens; RESOURCE_EXHAUSTED (QUEUE_FULL,
  // TENANT_QUEUE_FULL) with the time that the waiting requests will take at the rate of the last
  // seconds.
  absl::StatusOr<RequestId> Submit(std::unique_ptr<LiveRequest> request);
  void Cancel(RequestId id);
  // Wakes the loop, which checks again what it can run.
  void Wake();
  // The reply of request `id`, which was slow, has been read.
  void NoteRead(RequestId id);
  // Refuses new requests from now on and waits until all have ended; at `deadline` it makes the
  // loop end the rest. True if all ended by themselves. If several threads drain at once, the
  // earliest deadline counts.
  bool Drain(absl::Time deadline);
  // As Drain, without waiting; `end_rest`: the deadline has passed. True if no request is left.
  bool StartDrain(bool end_rest);
  // Makes the loop end all requests and return.
  void Stop();
  EngineLoad load() const;

  // For the loop.
  struct Arrivals {
    std::vector<std::unique_ptr<LiveRequest>> requests;  // oldest first
    std::vector<RequestId> cancelled;
    std::vector<RequestId> read;  // NoteRead
    bool draining = false;        // only requests of SessionCommand still come
    bool end_all = false;         // the drain's deadline has passed
    bool stop = false;
  };
  struct Ended {  // a request
    std::string tenant;
    int places;      // of its samples or scores
    int64_t tokens;  // that it gave
  };
  // For load() and Drain: notes `load`, except for the fields that load() fills from the queue
  // itself, and takes the requests that have ended since. `load.oldest_wait` is minus infinite
  // where no request waits for slots. Never waits.
  void Note(absl::Time now, const EngineLoad& load, std::vector<Ended>* ended);
  // Note, and takes what has arrived (replacing the contents of `arrivals`). Never waits.
  void Exchange(absl::Time now, const EngineLoad& load, std::vector<Ended>* ended,
                Arrivals* arrivals);
  // The noted ends were handed to the emitter; Drain waits for this.
  void EndsHanded();
  // Waits until there is something new for Exchange, or `timeout` has passed.
  void WaitForArrivals(absl::Duration timeout);
  // The backend has failed: no request is accepted any more, and load().health says why.
  void Poison(const absl::Status& health);

 private:
  void NoteLocked(absl::Time now, const EngineLoad& load, std::vector<Ended>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOpen(bool while_draining) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Accepted {
    int places = 0;      // samples, scores and session calls taken and not ended
    int64_t tokens = 0;  // given tokens of those requests
  };
  absl::Status CheckLimits(const LiveRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTenantRoom(const LiveRequest& request, const Accepted& own) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration TimeFor(int64_t places) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitSaves() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const QueueLimits limits_;
  const Clock clock_;
  mutable Mutex mutex_;
  CondVar arrived_, ended_;
  Arrivals arrivals_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;    // something new since the last Exchange
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;  // the loop sleeps
  RequestId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  Accepted accepted_ ABSL_GUARDED_BY(mutex_);  // of all
  absl::flat_hash_map<std::string, Accepted> accepted_of_
      ABSL_GUARDED_BY(mutex_);                                          // by tenant; none of 0
  absl::Time oldest_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // arrival, of what waits
  bool handing_ ABSL_GUARDED_BY(mutex_) = false;  // ends are noted and not yet handed over
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool saves_awaited_ ABSL_GUARDED_BY(mutex_) = false;  // or are being awaited
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);                                 // the loop's last
  RateWindow rate_ ABSL_GUARDED_BY(mutex_){absl::Milliseconds(100)};        // of tokens
  RateWindow ended_rate_ ABSL_GUARDED_BY(mutex_){absl::Milliseconds(500)};  // of places
};

}  // namespace rivulet
