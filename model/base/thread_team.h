// SPDX-License-Identifier: Apache-2.0
// ThreadTeam: a few threads that work on one step together, and the barrier between its phases.
//
// Waiting spins for a bounded time, then sleeps in the kernel. An unbounded spin is no faster on a
// quiet machine and 1000 times slower if another process wants the core. A team works with fewer
// threads while there are not enough cores for all (model/base/team_size.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "model/base/team_size.h"

namespace rivulet {

// The number of cores that this process may use: limited by its CPU affinity and its control
// group's CPU quota; at least 1.
int UsableCores();

// Waits until `word` differs from `old`: bounded spin, then sleep. Whoever changes the word calls
// notify_all.
void SpinThenWait(const std::atomic<uint32_t>& word, uint32_t old);

// Reusable barrier for a number of threads. A barrier for a single thread costs nothing.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(static_cast<uint32_t>(threads)) {}
  int threads() const { return static_cast<int>(threads_); }
  // REQUIRES: nobody waits.
  void SetThreads(int threads) { threads_ = static_cast<uint32_t>(threads); }
  // Returns once all threads have called it; what they wrote before is visible after.
  void Wait();

 private:
  uint32_t threads_;
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

  // The largest number of threads in a Run.
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(0, barrier) on this thread and body(1, barrier) .. body(n - 1, barrier) on workers;
  // returns when all have returned. n is barrier.threads(), 1 .. size(): the number of threads that
  // had cores in earlier Runs.
  void Run(absl::FunctionRef<void(int thread, SpinBarrier& barrier)> body);

 private:
  using Body = absl::FunctionRef<void(int, SpinBarrier&)>;
  using Clock = std::chrono::steady_clock;
  struct Worker {
    // Increases for every Run in which the worker takes part, and for the end. Each worker has its
    // own word, so that a Run wakes no other worker.
    alignas(64) std::atomic<uint32_t> runs{0};
    CoreWait core_wait;
    std::thread thread;
  };

  void WorkerLoop(Worker& self, int index);
  void Wake(Worker& worker);
  void ChooseSize();

  alignas(64) std::atomic<uint32_t> finished_{0};  // workers done with the current Run
  const Body* body_ = nullptr;                     // valid during a Run; null: end
  SpinBarrier barrier_;
  TeamSize choice_;
  Clock::time_point window_begin_ = Clock::now();
  std::thread::id owner_;  // the thread that owner_wait_ watches
  CoreWait owner_wait_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace rivulet
