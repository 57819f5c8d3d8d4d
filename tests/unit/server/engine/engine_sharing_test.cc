// SPDX-License-Identifier: Apache-2.0
// Many requests at once: what a run holds, whose turn it is, and that slow readers pause.
#include <gmock/gmock.h>

#include <deque>
#include <thread>

#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

using SharingTest = EngineTest;

TEST_F(SharingTest, AReplyKeepsRunningWhileALongPromptIsFed) {
  fake_.limits.preferred_prefill_tokens = 40;  // a quarter of it beside running replies
  Start();
  probe_->AllowRuns(1);
  ReplyCollector reply, prompt;
  ASSERT_EQ(reply.Start(engine_.get(), Prompt({}, 50)), absl::OkStatus());
  reply.WaitForTokens(1);
  ASSERT_EQ(prompt.Start(engine_.get(), Prompt(std::vector<int32_t>(99, 1), 5)), absl::OkStatus());
  probe_->AllowAll();
  EXPECT_EQ(reply.Wait(), absl::OkStatus());
  EXPECT_EQ(prompt.Wait(), absl::OkStatus());
  int shared = 0;
  for (const FakeRun& run : probe_->runs()) {
    if (run.rows.size() != 2 || run.rows[1].tokens == 1) continue;
    EXPECT_EQ(run.rows[0].tokens, 1);
    EXPECT_EQ(run.rows[1].tokens, 10);
    ++shared;
  }
  EXPECT_EQ(shared, 10) << "100 tokens with the bos";
}

TEST_F(SharingTest, WhileSomebodyWaitsARunEndsWithTheReplyThatGivesUpItsSlot) {
  fake_.limits.num_slots = 1;
  fake_.limits.max_steps = fake_.limits.preferred_steps = 8;
  Start();
  probe_->AllowRuns(1);
  ReplyCollector first, second;
  ASSERT_EQ(first.Start(engine_.get(), Prompt({}, 12)), absl::OkStatus());
  first.WaitForTokens(1);
  ASSERT_EQ(second.Start(engine_.get(), Prompt({}, 12)), absl::OkStatus());
  // The run that is held now was planned before the second came, or after: both are allowed.
  probe_->AllowAll();
  EXPECT_EQ(first.Wait(), absl::OkStatus());
  EXPECT_EQ(second.Wait(), absl::OkStatus());
  const std::vector<FakeRun> runs = probe_->runs();
  // The first draws one token with its prompt, eight more whether or not somebody waits, then
  // three.
  std::vector<int> steps;
  for (const FakeRun& run : runs) steps.push_back(run.num_steps);
  EXPECT_THAT(steps, ElementsAre(1, 8, 3, 1, 8, 8)) << "nobody waits at the end";
}

TEST_F(SharingTest, OfATenantsOwnRequestsTheUrgentOnesRunFirst) {
  fake_.limits.num_slots = 1;
  Start();
  probe_->AllowRuns(0);
  std::deque<ReplyCollector> replies(4);
  std::vector<GenerateSpec> specs;
  const Priority priorities[] = {Priority::kNormal, Priority::kLow, Priority::kNormal,
                                 Priority::kHigh};
  for (size_t i = 0; i < 4; ++i) {
    specs.push_back(Prompt(std::vector<int32_t>(i + 1, 1), 1));  // told apart by their length
    specs.back().priority = priorities[i];
    ASSERT_EQ(replies[i].Start(engine_.get(), specs.back()), absl::OkStatus());
    if (i == 0) {
      EXPECT_TRUE(Eventually([&] { return probe_->num_runs() == 1; }));
    }
  }
  EXPECT_THAT(engine_->GetLoad().queued_by_priority, ElementsAre(1, 1, 1));
  probe_->AllowAll();
  for (ReplyCollector& reply : replies) EXPECT_EQ(reply.Wait(), absl::OkStatus());
  std::vector<int> order;
  for (const FakeRun& run : probe_->runs()) order.push_back(run.rows[0].tokens);
  EXPECT_THAT(order, ElementsAre(2, 5, 4, 3)) << "with the bos";
}

TEST_F(SharingTest, ASlowReaderPausesAloneAndGoesOnWhenItReads) {
  options_.max_pending_bytes = 40;
  Start();
  ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked), quick;
  GenerateSpec slow_spec = Prompt({1}, 100, 1);
  slow_spec.num_samples = 2;
  ASSERT_EQ(slow.Start(engine_.get(), slow_spec), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return slow.reply().pending_bytes() > 40; }));
  const GenerateSpec quick_spec = Prompt({2}, 300, 2);
  ASSERT_EQ(quick.Start(engine_.get(), quick_spec), absl::OkStatus());
  EXPECT_EQ(quick.Wait(), absl::OkStatus());
  EXPECT_EQ(quick.sample().tokens, Solo(quick_spec));
  EXPECT_LE(slow.reply().pending_bytes(), 48) << "two samples, one step past the limit";
  EXPECT_FALSE(slow.reply().end().has_value());
  EXPECT_EQ(engine_->GetLoad().slots_used, 2) << "it keeps its slots";
  const int64_t runs = probe_->num_runs();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(probe_->num_runs(), runs) << "nothing runs while nobody reads";
  // Every read lets it go on.
  EXPECT_TRUE(Eventually([&] {
    slow.TakeNow();
    return slow.reply().end().has_value();
  }));
  EXPECT_EQ(slow.Wait(), absl::OkStatus());
  EXPECT_EQ(slow.violation(), "");
  EXPECT_EQ(slow.sample(0).tokens, Solo(slow_spec, 0));
  EXPECT_EQ(slow.sample(1).tokens, Solo(slow_spec, 1));
  ExpectAtRest();
}

TEST_F(SharingTest, AnIdleEngineDoesNothing) {
  Start();
  ReplyCollector collector;
  ASSERT_EQ(collector.Start(engine_.get(), Prompt({}, 3)), absl::OkStatus());
  EXPECT_EQ(collector.Wait(), absl::OkStatus());
  ExpectAtRest();
  const int64_t calls = probe_->calls();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(probe_->calls(), calls);
}

TEST_F(SharingTest, LoadShowsTheRate) {
  Start();
  ReplyCollector collector;
  ASSERT_EQ(collector.Start(engine_.get(), Prompt({1, 2, 3, 4}, 45)), absl::OkStatus());
  EXPECT_EQ(collector.Wait(), absl::OkStatus());
  ExpectAtRest();
  clock_ms_ += 500;
  EXPECT_EQ(engine_->GetLoad().tokens_per_second, 50) << "45 drawn, 5 fed with the bos";
  clock_ms_ += 2000;
  EXPECT_EQ(engine_->GetLoad().tokens_per_second, 0);
  EXPECT_EQ(engine_->GetLoad().tokens_total, 45);
}

}  // namespace
}  // namespace rivulet
