// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/thread_team.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace rivulet {
namespace {

TEST(ThreadTeamTest, EveryMemberRunsOnceAndBarriersSeparatePhases) {
  for (const int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    SpinBarrier barrier(threads);
    EXPECT_EQ(team.size(), threads);
    std::vector<int> written(size_t(threads), 0);
    for (int round = 1; round <= 300; ++round) {
      team.Run([&](int thread) {
        written[size_t(thread)] = round;
        barrier.Wait();
        for (const int w : written) EXPECT_EQ(w, round);
        barrier.Wait();
      });
    }
  }
}

TEST(ThreadTeamTest, WorkersThatFellAsleepWakeForTheNextRun) {
  ThreadTeam team(3);
  std::atomic<int> calls{0};
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than they spin
    team.Run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls, 9);
}

}  // namespace
}  // namespace rivulet
