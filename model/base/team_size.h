// SPDX-License-Identifier: Apache-2.0
// TeamSize: how many threads of a team work on a step while other processes want the cores too.
//
// The threads of a step wait for each other after each phase, so one that has no core holds up all
// of them until the scheduler runs it. Two teams, each with a thread for each core, together make a
// third to a half of what one makes alone; with half the threads each they make more than it. The
// kernel tells how long a thread was ready to run and had no core. A team in which that is a large
// share of the time gives up a thread, and tries later whether there is a core for it again.
#pragma once

#include <cstdint>

namespace rivulet {

// How long one thread was ready to run, but had no core.
class CoreWait {
 public:
  CoreWait() = default;
  ~CoreWait();
  CoreWait(const CoreWait&) = delete;
  CoreWait& operator=(const CoreWait&) = delete;

  // Watches the calling thread from now on.
  void WatchThisThread();
  // Nanoseconds since the last call or the start of the watch; of any thread. 0 where the kernel
  // does not tell (built without CONFIG_SCHED_INFO).
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

  // What happened since the last call: of the team's threads, the one that had no core for the
  // longest time had none for `longest_wait` of the `window`. Nanoseconds.
  void Observe(int64_t window, int64_t longest_wait);

  // The shortest window: many slices of the kernel's scheduler, so that a neighbour's burst of a
  // few milliseconds does not count.
  static constexpr int64_t kWindow = 50'000'000;
  // A try that fails costs a window at the slow rate; one in 2.5 seconds costs 1 or 2 %.
  static constexpr int kLongestPatience = 50;

 private:
  const int most_;
  int threads_;
  int patience_ = 1;     // calm windows before the team tries one thread more
  int calm_ = 0;         // calm windows since the last change of size
  bool trying_ = false;  // the next window shows whether there is a core for the last thread
};

}  // namespace rivulet
