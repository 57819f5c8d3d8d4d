// SPDX-License-Identifier: Apache-2.0
// RequestQueue: the door between the engine's callers and its loop. Callers leave requests and
// cancellations, the loop takes them all between two runs with one lock and leaves what GetLoad
// shows.
//
// Admission is arithmetic: samples and scores that were accepted and have not ended are never more
// than the slots plus max_queue, whether or not the loop has already found them a slot.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"
#include "server/engine/mutex.h"
#include "server/engine/rate_window.h"
#include "server/engine/session.h"

namespace rivulet {

using Clock = std::function<absl::Time()>;

// Thread: any, but for the loop's own part.
class RequestQueue {
 public:
  RequestQueue(int slots, int max_queue, int64_t max_queue_tokens, Clock clock);

  // An id for a request that needs no slot. Errors: UNAVAILABLE (draining, stopped, backend
  // failed).
  absl::StatusOr<RequestId> NewId();
  // Gives the request its id and arrival time and queues it. Errors as NewId, or RESOURCE_EXHAUSTED
  // (full).
  absl::StatusOr<RequestId> Submit(std::unique_ptr<Request> request);
  void Cancel(RequestId id);
  // Makes the loop look again at what it can run.
  void Wake();
  // Refuses new requests from now on and waits until all have ended; at `deadline` has the loop end
  // the rest. True if all ended by themselves. Of several drains at once the earliest deadline
  // counts.
  bool Drain(absl::Time deadline);
  // As Drain, without waiting: `end_rest` as if the deadline had passed. True if none is left.
  bool StartDrain(bool end_rest);
  // Has the loop end everything and return.
  void Stop();
  EngineLoad load() const;

  // The loop's part.
  struct Arrivals {
    std::vector<std::unique_ptr<Request>> requests;  // oldest first
    std::vector<RequestId> cancelled;
    bool end_all = false;  // the drain's deadline has passed
    bool stop = false;
  };
  struct Progress {
    int ended = 0;             // samples and scores that ended since the last Exchange
    int64_t ended_tokens = 0;  // given tokens of requests that ended, likewise
    int slots_used = 0;
    int client_sessions = 0;
    StateStore::Usage states;
    int64_t cache_hits = 0, cache_misses = 0, cache_bytes = 0;  // of the prefix cache, since start
    int64_t sampled = 0;                                        // tokens since the last Exchange
    int64_t fed = 0;  // prompt and scored tokens, likewise
  };
  // For load() and Drain. Never waits.
  void Note(absl::Time now, const Progress& progress);
  // Note, and takes what has arrived (replacing the contents of `arrivals`). Never waits.
  void Exchange(absl::Time now, const Progress& progress, Arrivals* arrivals);
  // The ends that were noted have been handed to the emitter: what Drain waits for.
  void EndsHanded();
  // Waits until there is something new for Exchange, or `timeout` has passed.
  void WaitForArrivals(absl::Duration timeout);
  // The first error of the disk tier.
  void NoteFileError(const absl::Status& error);
  // The backend failed: no request is taken any more, load().health says why.
  void Poison(const absl::Status& health);

 private:
  void NoteLocked(absl::Time now, const Progress& progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_accepted_;  // slots + max_queue
  const int64_t max_accepted_tokens_;
  const Clock clock_;
  mutable Mutex mutex_;
  CondVar arrived_, ended_;
  Arrivals arrivals_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;    // something new since the last Exchange
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;  // the loop sleeps
  RequestId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int accepted_ ABSL_GUARDED_BY(mutex_) = 0;             // samples and scores taken and not ended
  int64_t accepted_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // given tokens of those requests
  bool handing_ ABSL_GUARDED_BY(mutex_) = false;         // ends are noted and not yet handed over
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);  // queued and tokens_per_second are filled when asked
  RateWindow rate_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
