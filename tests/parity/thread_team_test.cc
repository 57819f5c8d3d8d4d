// SPDX-License-Identifier: Apache-2.0
#include "model/base/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

namespace rivulet {
namespace {

TEST(ThreadTeamTest, EveryMemberRunsOnceAndBarriersSeparatePhases) {
  for (const int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.size(), threads);
    std::vector<int> written(size_t(threads), 0);
    for (int round = 1; round <= 300; ++round) {
      team.Run([&](int thread, SpinBarrier& barrier) {
        ++written[size_t(thread)];
        barrier.Wait();
        for (int i = 0; i < barrier.threads(); ++i) EXPECT_EQ(written[size_t(i)], round);
        barrier.Wait();
        if (thread > 0) return;
        for (int i = barrier.threads(); i < threads; ++i) {  // those that have no core
          EXPECT_EQ(written[size_t(i)]++, round - 1);
        }
      });
    }
  }
}

TEST(ThreadTeamTest, WorkersThatFellAsleepWakeForTheNextRun) {
  ThreadTeam team(3);
  std::atomic<int> calls{0}, expected{0};
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than they spin
    team.Run([&](int thread, SpinBarrier& barrier) {
      ++calls;
      if (thread == 0) expected += barrier.threads();
    });
  }
  EXPECT_EQ(calls, expected);
}

// The calling thread and those that it starts get one core; all cores again in the end.
class OnOneCore {
 public:
  OnOneCore() {
    EXPECT_EQ(sched_getaffinity(0, sizeof all_, &all_), 0);
    int core = 0;
    while (!CPU_ISSET(core, &all_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OnOneCore() { EXPECT_EQ(sched_setaffinity(0, sizeof all_, &all_), 0); }

 private:
  cpu_set_t all_;
};

TEST(ThreadTeamTest, AThreadThatHasNoCoreIsNotWaitedForInEveryRun) {
  if (access("/proc/thread-self/schedstat", R_OK) != 0) {
    GTEST_SKIP() << "this kernel does not tell how long a thread waits for a core";
  }
  OnOneCore pinned;
  ThreadTeam team(2);
  int threads = 2;
  // A thousand phases, with a switch of the core to the other thread in each, or none.
  for (int runs = 0; threads == 2 && runs < 100; ++runs) {
    team.Run([&](int thread, SpinBarrier& barrier) {
      if (thread == 0) threads = barrier.threads();
      for (int phase = 0; phase < 1000; ++phase) barrier.Wait();
    });
  }
  EXPECT_EQ(threads, 1);
}

}  // namespace
}  // namespace rivulet
