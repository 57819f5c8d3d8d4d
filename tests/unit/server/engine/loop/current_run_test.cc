// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/current_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "server/engine/loop/slots.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/server/engine/loop/stub_request.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three requests of one sample each hold slots 1 to 3; they decode unless a test says otherwise.
class CurrentRunTest : public ::testing::Test {
 protected:
  static FakeBackendOptions Options() {
    FakeBackendOptions options;
    options.limits.max_steps = options.limits.preferred_steps = 4;
    options.polls_per_run = 6;
    return options;
  }
  void SetUp() override {
    for (RequestId id = 1; id <= 3; ++id) {
      StubRequest* const request = requests_.emplace_back(std::make_unique<StubRequest>(id)).get();
      request->CreateSequences();
      request->HoldSlots();
      request->sequence(0)->sampler.emplace();
      request->sequence(0)->sample = true;
      slots_.Give(request->sequence(0));
    }
    ASSERT_TRUE(slots_.Prepare().ok());
  }
  StubSequence* sequence(size_t i) { return requests_[i]->sequence(0); }
  bool Plan() { return run_.Plan(slots_.holders(), absl::UnixEpoch(), /*waiting=*/false); }
  // Rows of the last run, as the backend got them.
  std::vector<Slot> RowSlots() const {
    std::vector<Slot> slots;
    const std::vector<FakeRun> runs = probe_->runs();
    for (const FakeRun::Row& row : runs.back().rows) slots.push_back(row.slot);
    return slots;
  }
  void Complete() {
    for (bool complete = false; !complete;) {
      const absl::StatusOr<bool> polled = run_.Poll();
      ASSERT_TRUE(polled.ok()) << polled.status();
      complete = *polled;
      run_.GiveRecords();
    }
  }

  const std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  FakeBackend backend_{FakeConfig(16, false), Options(), probe_};
  Slots slots_{&backend_};
  CurrentRun run_{&backend_, {.prefill_tokens_busy = 8, .prefill_tokens_idle = 8}};
  std::vector<std::unique_ptr<StubRequest>> requests_;
};

TEST_F(CurrentRunTest, LeavesOutWhatHasNothingToFeedAndWhatNobodyReads) {
  sequence(0)->can_run = false;
  requests_[2]->life.Pause(absl::UnixEpoch());
  ASSERT_TRUE(Plan());
  ASSERT_TRUE(run_.Submit().ok());
  EXPECT_THAT(RowSlots(), ElementsAre(2));
  sequence(1)->can_run = false;
  EXPECT_FALSE(Plan());
  EXPECT_EQ(run_.number(), 1u);
}

TEST_F(CurrentRunTest, NumbersRunsAndNotesWhoWasServed) {
  EXPECT_EQ(run_.number(), 0u);
  ASSERT_TRUE(Plan());
  ASSERT_TRUE(run_.Submit().ok());
  Complete();
  EXPECT_EQ(run_.number(), 1u);
  EXPECT_EQ(sequence(0)->last_served, 1u);
  sequence(0)->can_run = false;
  for (size_t i = 1; i < 3; ++i) sequence(i)->position += 3;  // four steps
  ASSERT_TRUE(Plan());
  EXPECT_EQ(run_.number(), 2u);
  EXPECT_EQ(sequence(0)->last_served, 1u);
  EXPECT_EQ(sequence(1)->last_served, 2u);
}

TEST_F(CurrentRunTest, GivesEachSequenceItsOwnRecords) {
  ASSERT_TRUE(Plan());
  ASSERT_TRUE(run_.Submit().ok());
  int64_t sampled = 0;
  bool complete = false;
  while (!complete) {
    complete = *run_.Poll();
    const size_t before = sequence(0)->records.size();
    const auto given = run_.GiveRecords();
    const bool first_got_some = sequence(0)->records.size() > before;
    EXPECT_EQ(std::count(given.begin(), given.end(), sequence(0)), first_got_some ? 1 : 0);
    sampled += run_.sampled();
  }
  EXPECT_EQ(sampled, 12);  // three rows, four steps
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(sequence(i)->records.size(), 4u);
    for (const Record& record : sequence(i)->records) {
      EXPECT_EQ(record.row, static_cast<int>(i));
    }
  }
}

TEST_F(CurrentRunTest, WhatWasDroppedGetsNoRecordsAndIsNotTaken) {
  ASSERT_TRUE(Plan());
  ASSERT_TRUE(run_.Submit().ok());
  ASSERT_FALSE(*run_.Poll());
  run_.GiveRecords();
  const size_t before = sequence(1)->records.size();
  run_.Drop(sequence(1));
  Complete();
  EXPECT_EQ(sequence(1)->records.size(), before);
  EXPECT_EQ(sequence(2)->records.size(), 4u);
  EXPECT_EQ(run_.TakeDone(), sequence(0));
  EXPECT_EQ(sequence(0)->row, -1);
  run_.Drop(sequence(2));  // ended by what its request's other sample did at its end
  EXPECT_EQ(run_.TakeDone(), nullptr);
}

TEST_F(CurrentRunTest, ARunIsOneStepLongNearADeadline) {
  requests_[1]->times.deadline = absl::UnixEpoch() + absl::Milliseconds(99);
  ASSERT_TRUE(Plan());
  ASSERT_TRUE(run_.Submit().ok());
  EXPECT_EQ(probe_->runs().back().num_steps, 1);
  Complete();
  requests_[1]->times.deadline = absl::UnixEpoch() + absl::Milliseconds(100);
  ASSERT_TRUE(Plan());
  ASSERT_TRUE(run_.Submit().ok());
  EXPECT_EQ(probe_->runs().back().num_steps, 4);
}

TEST_F(CurrentRunTest, CountsWhatItFeedsOfPromptsAlone) {
  sequence(0)->next_view.prefill_tokens = 5;
  sequence(0)->sample = false;
  ASSERT_TRUE(Plan());
  EXPECT_EQ(run_.fed(), 5);
  ASSERT_TRUE(run_.Submit().ok());
  Complete();
  EXPECT_THAT(sequence(0)->records, IsEmpty());
  sequence(0)->can_run = false;
  ASSERT_TRUE(Plan());
  EXPECT_EQ(run_.fed(), 0);
}

TEST_F(CurrentRunTest, PassesOnWhatTheBackendSays) {
  ASSERT_TRUE(Plan());
  ASSERT_TRUE(run_.Submit().ok());
  EXPECT_FALSE(run_.Submit().ok());  // one is outstanding: the backend is poisoned
  EXPECT_FALSE(run_.Poll().ok());
}

}  // namespace
}  // namespace rivulet
