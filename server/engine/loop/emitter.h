// SPDX-License-Identifier: Apache-2.0
// Emitter: the thread that calls listeners, so that the loop never waits for a gRPC write. The loop
// puts in the replies that got tokens and the requests that ended, and hands them over together,
// with one lock and at most one wake-up. A test that replays a schedule has no emitter thread and
// calls Deliver itself.
//
// Tokens are handed over while a run is being polled. Ends are handed over only between runs, so
// that no request is destroyed while a run borrows its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/engine/sequences/live_request.h"

namespace rivulet {

// Thread: Put, Hand and has_ends: the loop; End and Flush: any but the emitter's own; Deliver: one.
// The listeners of batches are called in the order in which the batches were handed over.
class Emitter {
 public:
  enum class Threads : uint8_t { kOwn, kNone };
  explicit Emitter(Threads threads = Threads::kOwn);
  ~Emitter();  // calls everything handed over, then joins

  // `outlet` got something: it is called once, even if it gets more before the call. It is borrowed
  // until PutEnd.
  void PutReady(Outlet* outlet);
  // `outlet` has ended; it lives at least until HandAll. The emitter's thread calls it and then
  // destroys it.
  void PutEnd(std::unique_ptr<Outlet> outlet);
  bool has_ends() const { return !ended_.empty(); }
  // Hands over the outlets that got something.
  void HandReady() { Hand(&put_); }
  // Hands over everything. True: there were ends.
  bool HandAll();

  // Hands over the end of an outlet that the loop has never seen.
  void End(std::unique_ptr<Outlet> outlet);
  // Returns once everything handed over before has been called.
  void Flush();
  // Only without a thread of its own: calls everything handed over before.
  void Deliver();

 private:
  struct Batch {
    std::vector<Outlet*> ready;
    std::vector<std::unique_ptr<Outlet>> ended;
    bool empty() const { return ready.empty() && ended.empty(); }
  };
  // Takes the content of `batch`, which is then empty but keeps its memory.
  void Hand(Batch* batch);
  void Run();
  static void DeliverBatch(Batch* batch);

  Batch put_;                                   // the loop's; holds ends in HandAll alone
  std::vector<std::unique_ptr<Outlet>> ended_;  // the loop's; to be handed over between runs
  Mutex mutex_;
  CondVar filled_, delivered_;
  Batch pending_ ABSL_GUARDED_BY(mutex_);
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t batches_handed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t batches_delivered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: everything above exists when it starts. None: Threads::kNone
};

}  // namespace rivulet
