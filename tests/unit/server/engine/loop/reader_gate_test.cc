// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/reader_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/server/engine/loop/stub_request.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ReaderGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (StubRequest* request : {&one_, &two_, &three_}) {
      request->CreateSequences();
      request->HoldSlots();
    }
  }
  void PauseAll() {
    for (StubRequest* request : {&one_, &two_, &three_}) {
      request->slow = true;
      ASSERT_TRUE(gate_.Pause(request, kNow));
    }
  }

  // A state takes ten bytes.
  std::vector<LiveRequest*> Yielding(int needed, int64_t parked) const {
    return gate_.Yielding(needed, 10 * parked,
                          [](const LiveRequest& request) { return 10 * request.open_sequences; });
  }

  StubRequest one_{1, 1}, two_{2, 2}, three_{3, 3};
  const std::vector<LiveRequest*> all_ = {&one_, &two_, &three_};
  ReaderGate gate_{absl::Seconds(30), /*room=*/40};
};

TEST_F(ReaderGateTest, PausesOnceAndOnlyWhatIsNotRead) {
  EXPECT_FALSE(gate_.Pause(&one_, kNow));
  EXPECT_FALSE(one_.life.paused());
  EXPECT_EQ(gate_.EndsAt(one_), absl::InfiniteFuture());
  one_.slow = true;
  EXPECT_TRUE(gate_.Pause(&one_, kNow));
  EXPECT_FALSE(gate_.Pause(&one_, kNow + absl::Seconds(1)));  // since when stays
  EXPECT_EQ(gate_.EndsAt(one_), kNow + absl::Seconds(30));
}

TEST_F(ReaderGateTest, WhatWasReadGoesOnAndWhatHasNoSlotsWaitsForThem) {
  PauseAll();
  EXPECT_THAT(gate_.Resume(all_), IsEmpty());
  for (StubRequest* request : {&one_, &three_}) request->life.Go(RequestLife::State::kParked);
  two_.life.Go(RequestLife::State::kWaitsAgain);  // preempted: it waits already
  EXPECT_THAT(gate_.Resume(all_), IsEmpty());     // they are slow again
  one_.slow = two_.slow = three_.slow = false;
  // In the order of the pauses, however often and in whatever order they were read.
  EXPECT_THAT(gate_.Resume(std::vector<LiveRequest*>{&three_, &two_, &one_, &three_}),
              ElementsAre(&one_, &three_));
  for (StubRequest* request : {&one_, &two_, &three_}) {
    EXPECT_FALSE(request->life.paused());
    EXPECT_EQ(request->life.state(), RequestLife::State::kWaitsAgain);
  }
  EXPECT_TRUE(gate_.empty());
}

TEST_F(ReaderGateTest, WhatWasReadBeforeAnybodyWantedItsSlotsKeepsThem) {
  PauseAll();
  one_.slow = three_.slow = false;
  EXPECT_THAT(gate_.Resume(all_), IsEmpty());
  EXPECT_EQ(one_.life.state(), RequestLife::State::kHoldsSlots);
  EXPECT_TRUE(two_.life.paused());
  EXPECT_THAT(Yielding(1, 0), ElementsAre(&two_));
}

TEST_F(ReaderGateTest, WhatHasGivenUpItsSlotsIsNotAskedAgain) {
  PauseAll();
  one_.life.Go(RequestLife::State::kParked);
  EXPECT_THAT(Yielding(1, 1), ElementsAre(&two_));
}

TEST_F(ReaderGateTest, YieldsWhatWasPausedLongestAndNoMoreThanNeeded) {
  PauseAll();
  EXPECT_THAT(Yielding(0, 0), IsEmpty());
  EXPECT_THAT(Yielding(1, 0), ElementsAre(&one_));
  EXPECT_THAT(Yielding(2, 0), ElementsAre(&one_, &two_));
}

TEST_F(ReaderGateTest, YieldsNoMoreThanThereIsRoomFor) {
  PauseAll();
  EXPECT_THAT(Yielding(6, 0), ElementsAre(&one_, &two_));  // 3 + 3 samples are too many
  EXPECT_THAT(Yielding(6, 2), ElementsAre(&one_));
  EXPECT_THAT(Yielding(6, 4), IsEmpty());
  one_.open_sequences = 0;  // has room for the third one
  gate_.Leave(&two_);
  EXPECT_THAT(Yielding(6, 1), ElementsAre(&one_, &three_));
}

TEST_F(ReaderGateTest, WhatHasEndedIsForgotten) {
  PauseAll();
  gate_.Leave(&one_);
  one_.slow = false;
  EXPECT_THAT(gate_.Resume(all_), IsEmpty());
  EXPECT_THAT(Yielding(1, 0), ElementsAre(&two_));
}

TEST_F(ReaderGateTest, ATurnLooksAtWhatWasReadAlone) {
  PauseAll();
  for (StubRequest* request : {&one_, &two_, &three_}) request->times_asked = 0;
  for (int turn = 0; turn < 1000; ++turn) EXPECT_THAT(gate_.Resume({}), IsEmpty());
  two_.slow = false;
  const std::vector<LiveRequest*> read = {&two_};
  gate_.Resume(read);
  gate_.Resume(read);  // it goes on already
  EXPECT_EQ(one_.times_asked + three_.times_asked, 0);
  EXPECT_EQ(two_.times_asked, 1);
}

}  // namespace
}  // namespace rivulet
