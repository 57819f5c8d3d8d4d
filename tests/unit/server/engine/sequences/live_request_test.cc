// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/live_request.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace rivulet {
namespace {

using State = RequestLife::State;

constexpr int kStates = static_cast<int>(State::kEnded) + 1;

TEST(RequestLifeTest, AllowsTheseStepsAndNoOthers) {
  std::set<std::pair<State, State>> allowed = {
      {State::kArrived, State::kWaitsForTurn},
      {State::kArrived, State::kFindsState},
      {State::kWaitsForTurn, State::kFindsState},
      {State::kFindsState, State::kFetchesState},
      {State::kFindsState, State::kWaitsForSlots},
      {State::kFetchesState, State::kFindsState},
      {State::kFetchesState, State::kWaitsForSlots},
      {State::kWaitsForSlots, State::kHoldsSlots},
      {State::kHoldsSlots, State::kParked},
      {State::kHoldsSlots, State::kWaitsAgain},
      {State::kParked, State::kWaitsAgain},
      {State::kWaitsAgain, State::kHoldsSlots},
      {State::kArrived, State::kClaims},
      {State::kWaitsForTurn, State::kClaims},
      {State::kClaims, State::kFindsState},
      {State::kArrived, State::kPrepares},
      {State::kWaitsForTurn, State::kPrepares},
      {State::kPrepares, State::kClaims},
      {State::kPrepares, State::kFindsState},
  };
  for (int from = 0; from < kStates - 1; ++from) {
    allowed.emplace(static_cast<State>(from), State::kEnded);
  }
  for (int from = 0; from < kStates; ++from) {
    for (int to = 0; to < kStates; ++to) {
      const auto step = std::make_pair(static_cast<State>(from), static_cast<State>(to));
      EXPECT_EQ(RequestLife::Allowed(step.first, step.second), allowed.contains(step))
          << from << " to " << to;
    }
  }
}

RequestLife Holding() {
  RequestLife life;
  life.Go(State::kFindsState);
  life.Go(State::kWaitsForSlots);
  life.Go(State::kHoldsSlots);
  return life;
}

TEST(RequestLifeTest, SaysWhatAStateMeans) {
  RequestLife life;
  EXPECT_FALSE(life.begun());
  life.Go(State::kWaitsForTurn);
  EXPECT_FALSE(life.begun());
  life.Go(State::kFindsState);
  EXPECT_TRUE(life.begun());
  EXPECT_FALSE(life.waits_for_slots());
  life.Go(State::kWaitsForSlots);
  EXPECT_TRUE(life.waits_for_slots());
  EXPECT_FALSE(life.in_host_memory());
  life.Go(State::kHoldsSlots);
  EXPECT_FALSE(life.waits_for_slots());
  life.Go(State::kWaitsAgain);
  EXPECT_TRUE(life.waits_for_slots());
  EXPECT_TRUE(life.in_host_memory());
  life.Go(State::kEnded);
  EXPECT_TRUE(life.ended());
  EXPECT_FALSE(life.begun());
  EXPECT_FALSE(life.in_host_memory());
}

TEST(RequestLifeTest, AParkedReplyWaitsForSlotsOnceItIsRead) {
  RequestLife life = Holding();
  life.Pause(absl::UnixEpoch());
  EXPECT_EQ(life.paused_since(), absl::UnixEpoch());
  life.Go(State::kParked);
  EXPECT_FALSE(life.waits_for_slots());
  EXPECT_TRUE(life.Resume());
  EXPECT_EQ(life.state(), State::kWaitsAgain);
  EXPECT_FALSE(life.paused());
}

TEST(RequestLifeTest, APausedReplyMayKeepItsSlotsOrBePreempted) {
  RequestLife life = Holding();
  life.Pause(absl::UnixEpoch());
  EXPECT_FALSE(life.Resume());
  EXPECT_EQ(life.state(), State::kHoldsSlots);
  life.Pause(absl::UnixEpoch());
  life.Go(State::kWaitsAgain);
  life.Go(State::kHoldsSlots);
  EXPECT_TRUE(life.paused());
  EXPECT_FALSE(life.Resume());
}

TEST(RequestLifeDeathTest, RefusesWhatContradictsItself) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RequestLife().Go(State::kHoldsSlots), "not allowed");
  EXPECT_DEATH(Holding().Go(State::kParked), "although its reader reads");
  EXPECT_DEATH(RequestLife().Pause(absl::UnixEpoch()), "without slots");
  EXPECT_DEATH(Holding().Resume(), "was not paused");
  EXPECT_DEATH(
      {
        RequestLife life = Holding();
        life.Pause(absl::UnixEpoch());
        life.Go(State::kParked);
        life.Go(State::kWaitsAgain);
      },
      "although nobody reads it");
}

}  // namespace
}  // namespace rivulet
