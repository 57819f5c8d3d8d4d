// SPDX-License-Identifier: Apache-2.0
// Emitter: the thread that calls listeners, so that the loop never waits for a gRPC write. The loop
// hands it one batch per poll of the backend: one lock, at most one wake-up. A test that replays a
// schedule has no such thread and calls Tell itself.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/engine/outlet.h"

namespace rivulet {

// Thread: Hand and Flush from any thread but the emitter's own, Tell from one.
class Emitter {
 public:
  struct Batch {
    std::vector<Outlet*> ready;  // marked by MarkReady; alive until their end was handed over
    std::vector<std::unique_ptr<Outlet>> ended;  // told, then destroyed, on the emitter thread
    bool empty() const { return ready.empty() && ended.empty(); }
  };

  enum class Threads : uint8_t { kOwn, kNone };
  explicit Emitter(Threads threads = Threads::kOwn);
  ~Emitter();  // calls everything handed over, then joins

  // Takes the contents of `batch`, which is empty afterwards but keeps its memory. Batches are told
  // in order.
  void Hand(Batch* batch);
  // Returns once everything handed over before has been called.
  void Flush();
  // Without a thread of its own: calls everything handed over before.
  void Tell();

 private:
  void Run();
  static void TellBatch(Batch* batch);

  Mutex mutex_;
  CondVar filled_, told_;
  Batch pending_ ABSL_GUARDED_BY(mutex_);
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t batches_handed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t batches_told_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: everything above exists when it starts. None: Threads::kNone
};

}  // namespace rivulet
