// SPDX-License-Identifier: Apache-2.0
// ThreadTeam: a few threads that work on one step together, and the barrier between its phases.
//
// Waiting spins for a bounded time, then sleeps in the kernel. An unbounded spin is faster by
// nothing on a quiet machine and 1000 times slower where another process wants the core.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace rivulet {

// The cores that this process may use: at most its CPU affinity and its control group's CPU quota;
// at least 1.
int UsableCores();

// Waits until `word` differs from `old`: bounded spin, then sleep. Whoever changes the word calls
// notify_all.
void SpinThenWait(const std::atomic<uint32_t>& word, uint32_t old);

// Reusable barrier for a fixed number of threads. One for a single thread costs nothing.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(static_cast<uint32_t>(threads)) {}
  // Returns once all threads have called it; what they wrote before is visible after.
  void Wait();

 private:
  const uint32_t threads_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

// Thread: Run is called by one thread at a time, the owner's.
class ThreadTeam {
 public:
  // Starts threads - 1 workers; REQUIRES: threads >= 1.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(0) on this thread and body(1) .. body(size() - 1) on the workers; returns when all
  // have returned.
  void Run(absl::FunctionRef<void(int)> body);

 private:
  void WorkerLoop(int index);

  alignas(64) std::atomic<uint32_t> epoch_{0};          // one more for every Run, and for the end
  alignas(64) std::atomic<uint32_t> finished_{0};       // workers done with the current Run
  const absl::FunctionRef<void(int)>* body_ = nullptr;  // valid during a Run; null: end
  std::vector<std::thread> workers_;
};

}  // namespace rivulet
