// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/fake_backend.h"
#include "tests/support/fake_state_files.h"
#include "tests/unit/server/engine/loop/stub_request.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<float> Values(float value) {
  return std::vector<float>(kFakeStateBytes / sizeof(float), value);
}

class CheckpointsTest : public ::testing::Test {
 protected:
  // Room in memory for so many states; what does not fit goes to the fake disk.
  void Make(int64_t states_in_memory) {
    EngineOptions options;
    options.states.max_memory_bytes = states_in_memory * kFakeStateBytes;
    DiskTier disk;
    disk.files = std::make_unique<FakeStateFiles>(disk_);
    disk.background = std::make_unique<ManualBackground>(work_);
    checkpoints_.emplace(options, StateSize{.fixed = kFakeStateBytes}, /*with_bos=*/false,
                         StateStamp{"w", "c", "n", "o"}, std::move(disk), [] {});
    for (int i = 0; i < 20; ++i) session_.history.Append(1, false);
    request_.CreateSequences();
    request_.session = &session_;
  }
  // Keeps a state of the session after `fed` tokens.
  void KeepState(int64_t fed, float value) {
    session_.Keep({fed, checkpoints_->store()->Keep(Values(value))});
  }
  // Has the session's states leave memory for the disk.
  void PushOut(int states) {
    for (int i = 0; i < states; ++i) others_.push_back(checkpoints_->store()->Keep(Values(-1)));
    work_->RunAll();
    std::vector<Checkpoints::Fetched> fetched;
    checkpoints_->TakeFetched(&fetched);
    ASSERT_THAT(fetched, IsEmpty());
  }
  static float FirstValue(const FoundState& found) {
    return found.view == nullptr ? -2 : found.view->values()[0];
  }
  void GiveSlot() {
    slots_.Give(request_.sequence(0));
    ASSERT_TRUE(slots_.Prepare().ok());
  }

  const std::shared_ptr<FakeDisk> disk_ = std::make_shared<FakeDisk>();
  const std::shared_ptr<ManualQueue> work_ = std::make_shared<ManualQueue>();
  const std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  FakeBackend backend_{FakeConfig(16, false), {}, probe_};
  Slots slots_{&backend_};
  std::optional<Checkpoints> checkpoints_;
  std::vector<StatePtr> others_;
  Session session_{SessionId::Random(), "tenant", /*with_bos=*/false, /*checkpoint_tokens=*/4};
  StubRequest request_;
};

TEST_F(CheckpointsTest, FindsTheLatestStateThatFits) {
  Make(10);
  ASSERT_TRUE(checkpoints_->Find(&request_).has_value());
  EXPECT_EQ(checkpoints_->Find(&request_)->view, nullptr);
  KeepState(8, 3);
  KeepState(12, 4);
  request_.most_fed = 11;
  const std::optional<FoundState> found = checkpoints_->Find(&request_);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kept.fed, 8);
  EXPECT_EQ(FirstValue(*found), 3);
}

TEST_F(CheckpointsTest, BringsAStateFromItsFile) {
  Make(2);
  KeepState(8, 3);
  PushOut(2);
  EXPECT_FALSE(checkpoints_->Find(&request_).has_value());
  std::vector<Checkpoints::Fetched> fetched;
  EXPECT_FALSE(checkpoints_->TakeFetched(&fetched));
  work_->RunAll();
  EXPECT_TRUE(checkpoints_->TakeFetched(&fetched));
  ASSERT_EQ(fetched.size(), 1u);
  EXPECT_EQ(fetched[0].request, &request_);
  EXPECT_EQ(fetched[0].found.kept.fed, 8);
  EXPECT_EQ(FirstValue(fetched[0].found), 3);
  work_->RunAll();
  checkpoints_->TakeFetched(&fetched);
  EXPECT_THAT(fetched, IsEmpty());  // it was brought once
}

TEST_F(CheckpointsTest, AStateThatCannotBeReadComesWithoutValues) {
  Make(2);
  KeepState(8, 3);
  PushOut(2);
  EXPECT_TRUE(checkpoints_->store()->file_error().ok());
  disk_->fail_reads = true;
  EXPECT_FALSE(checkpoints_->Find(&request_).has_value());
  work_->RunAll();
  std::vector<Checkpoints::Fetched> fetched;
  EXPECT_TRUE(checkpoints_->TakeFetched(&fetched));
  ASSERT_EQ(fetched.size(), 1u);
  EXPECT_EQ(fetched[0].found.view, nullptr);
  const std::optional<FoundState> next = checkpoints_->Find(&request_);
  ASSERT_TRUE(next.has_value());  // there is no other: it begins with nothing
  EXPECT_EQ(next->kept.fed, 0);
  EXPECT_FALSE(checkpoints_->store()->file_error().ok());
}

TEST_F(CheckpointsTest, WhatEndsWhileItsStateIsReadIsForgotten) {
  Make(2);
  KeepState(8, 3);
  PushOut(2);
  request_.life.Go(RequestLife::State::kFindsState);
  EXPECT_FALSE(checkpoints_->Find(&request_).has_value());
  request_.life.Go(RequestLife::State::kFetchesState);
  checkpoints_->Leave(&request_);
  work_->RunAll();
  std::vector<Checkpoints::Fetched> fetched;
  EXPECT_TRUE(checkpoints_->TakeFetched(&fetched));
  EXPECT_THAT(fetched, IsEmpty());
}

TEST_F(CheckpointsTest, FindsABetterStateOnlyWhereItIsInMemoryAndSavesMore) {
  Make(2);
  KeepState(8, 3);
  request_.start.fed = 8;
  EXPECT_FALSE(checkpoints_->FindBetter(&request_).has_value());
  request_.start.fed = 7;
  const std::optional<FoundState> better = checkpoints_->FindBetter(&request_);
  ASSERT_TRUE(better.has_value());
  EXPECT_EQ(better->kept.fed, 8);
  PushOut(2);
  EXPECT_FALSE(checkpoints_->FindBetter(&request_).has_value());
}

TEST_F(CheckpointsTest, CountsHitsAndMissesOfThoseThatUseTheCache) {
  Make(2);
  checkpoints_->CountUse(request_);
  EXPECT_EQ(checkpoints_->hits() + checkpoints_->misses(), 0);
  request_.cached.emplace(PromptCacheSpec(), "tenant", 0);
  checkpoints_->CountUse(request_);
  request_.start.fed = 1;
  checkpoints_->CountUse(request_);
  checkpoints_->CountUse(request_);
  EXPECT_EQ(checkpoints_->hits(), 2);
  EXPECT_EQ(checkpoints_->misses(), 1);
}

TEST_F(CheckpointsTest, KeepsStatesOnTheWayWhereTheyAreDue) {
  Make(10);
  GiveSlot();
  StubSequence* const sequence = request_.sequence(0);
  request_.keep = KeepPlan(0, {6}, 0);
  sequence->position = 5;
  ASSERT_TRUE(checkpoints_->KeepAfterRun(sequence, &slots_).ok());
  EXPECT_FALSE(session_.Keeps(5));
  sequence->position = 6;
  ASSERT_TRUE(checkpoints_->KeepAfterRun(sequence, &slots_).ok());
  EXPECT_TRUE(session_.Keeps(6));
  // What was drawn and is held back may yet be dropped.
  request_.keep = KeepPlan(6, {21}, 0);
  sequence->position = 21;
  ASSERT_TRUE(checkpoints_->KeepAfterRun(sequence, &slots_).ok());
  EXPECT_FALSE(session_.Keeps(21));
}

TEST_F(CheckpointsTest, SavesTheLastStateBeforeTheSlotIsZeroed) {
  Make(10);
  GiveSlot();
  StubSequence* const sequence = request_.sequence(0);
  sequence->position = 7;
  EXPECT_FALSE(checkpoints_->Saves(session_));
  checkpoints_->SaveSoon(*sequence, slots_.TakeBack(sequence));
  EXPECT_TRUE(checkpoints_->Saves(session_));
  const absl::StatusOr<std::vector<Session*>> saved = checkpoints_->Save(&slots_);
  ASSERT_TRUE(saved.ok());
  EXPECT_THAT(*saved, ElementsAre(&session_));
  EXPECT_TRUE(session_.Keeps(7));
  EXPECT_FALSE(checkpoints_->Saves(session_));
}

TEST_F(CheckpointsTest, SavesNothingThatNobodyCanUse) {
  Make(10);
  StubSequence* const sequence = request_.sequence(0);
  const int64_t calls = probe_->calls();
  for (const bool closed : {false, true}) {
    session_.closed = closed;
    sequence->position = closed ? 7 : 21;  // beyond the session's tokens: they were dropped
    checkpoints_->SaveSoon(*sequence, {1, {}});
    ASSERT_TRUE(checkpoints_->Save(&slots_).ok());
    EXPECT_FALSE(session_.Keeps(sequence->position));
  }
  session_.closed = false;
  sequence->begins_with.fed = sequence->position = 7;  // nothing was fed
  checkpoints_->SaveSoon(*sequence, {1, {}});
  ASSERT_TRUE(checkpoints_->Save(&slots_).ok());
  EXPECT_FALSE(session_.Keeps(7));
  sequence->begins_with.fed = 0;
  KeepState(7, 3);  // it is kept already
  checkpoints_->SaveSoon(*sequence, {1, {}});
  ASSERT_TRUE(checkpoints_->Save(&slots_).ok());
  EXPECT_EQ(probe_->calls(), calls);  // the backend was not even asked
}

TEST_F(CheckpointsTest, AFailedSaveLeavesTheSessionsToBeReleased) {
  Make(10);
  StubSequence* const sequence = request_.sequence(0);
  sequence->position = 7;
  checkpoints_->SaveSoon(*sequence, {99, {}});  // there is no such slot
  EXPECT_FALSE(checkpoints_->Save(&slots_).ok());
  EXPECT_TRUE(checkpoints_->Saves(session_));
  EXPECT_THAT(checkpoints_->ForgetUnsaved(), ElementsAre(&session_));
  EXPECT_FALSE(checkpoints_->Saves(session_));
}

TEST_F(CheckpointsTest, AWarmStateServesEveryTenant) {
  Make(2);
  checkpoints_->KeepWarm({{1, 1, 1}, 3, Values(9)});
  request_.session = nullptr;
  request_.tokens.assign(5, 1);
  request_.cached.emplace(PromptCacheSpec(), "any tenant", 0);
  const std::optional<FoundState> found = checkpoints_->Find(&request_);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kept.fed, 3);
  EXPECT_EQ(FirstValue(*found), 9);
}

}  // namespace
}  // namespace rivulet
