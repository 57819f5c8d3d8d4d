// SPDX-License-Identifier: Apache-2.0
// TeamSize: the number of threads that work on a step while other processes want the cores.
//
// The threads of a step wait for each other after each phase, so a thread without a core delays all
// of them until the scheduler runs it. Two teams, each with a thread for each core, together have a
// third to a half of the throughput of one team alone; with half the threads each, they have more
// than one team. The kernel tells how long a thread was ready to run and had no core. If that is a
// large share of the time, the team gives up a thread, and later tries to use it again.
#pragma once

#include <cstdint>

namespace rivulet {

// The time for which one thread was ready to run, but had no core.
class CoreWait {
 public:
  CoreWait() = default;
  ~CoreWait();
  CoreWait(const CoreWait&) = delete;
  CoreWait& operator=(const CoreWait&) = delete;

  // Watches the calling thread from now on.
  void WatchThisThread();
  // Nanoseconds of waiting since the last call or the start of the watch; any thread may call it. 0
  // if the kernel does not tell (built without CONFIG_SCHED_INFO).
  int64_t Take();

 private:
  int file_ = -1;
  int64_t taken_ = 0;
};

// The rule alone: no clock, no threads.
class TeamSize {
 public:
  // Begins with all of `most` threads, at least 1.
  explicit TeamSize(int most) : most_(most), threads_(most) {}

  int threads() const { return threads_; }

  // Reports the `window` since the last call: no thread of the team was without a core for longer
  // than `longest_wait`. Nanoseconds.
  void Observe(int64_t window, int64_t longest_wait);

  // The shortest window: many slices of the kernel's scheduler, so that a neighbour's burst of a
  // few milliseconds does not count.
  static constexpr int64_t kWindow = 50'000'000;
  // A failed try costs a window at the slow rate; one try in 2.5 seconds costs 1 or 2 %.
  static constexpr int kLongestPatience = 50;

 private:
  const int most_;
  int threads_;
  int patience_ = 1;     // calm windows before the team tries one thread more
  int calm_ = 0;         // calm windows since the last change of size
  bool trying_ = false;  // the next window shows whether there is a core for the last thread
};

}  // namespace rivulet
