// SPDX-License-Identifier: Apache-2.0
// Many requests at once: nobody's tokens change, slots are shared fairly, slow readers pause.
#include <gmock/gmock.h>

#include <deque>
#include <random>

#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

using SharingTest = EngineTest;

TEST_F(SharingTest, TokensAreThoseOfALoneSessionAtAnyArrivalOrder) {
  std::mt19937 random(11);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  for (int round = 0; round < 12; ++round) {
    fake_.limits.num_slots = 1 + below(24);
    fake_.limits.max_rows = 1 + below(fake_.limits.num_slots);
    fake_.limits.max_tokens = 1 + below(80);
    fake_.limits.max_steps = 4;
    fake_.limits.preferred_steps = 1 + below(4);
    fake_.polls_per_run = 1 + below(3);
    options_.prefill_tokens_busy = 1 + below(8);
    options_.prefill_tokens_idle = 1 + below(30);
    config_.eos_token_id = 13;
    engine_.reset();
    Start();
    std::vector<GenerateSpec> specs;
    std::deque<ReplyCollector> collectors;
    for (int i = 0; i < 60; ++i) {
      std::vector<int32_t> prompt(static_cast<size_t>(below(20)));
      for (int32_t& token : prompt) token = below(49);
      GenerateSpec spec = Prompt(prompt, 1 + below(40), random());
      spec.num_samples = 1 + below(std::min(3, fake_.limits.num_slots));
      specs.push_back(spec);
      collectors.emplace_back();
      ASSERT_EQ(collectors.back().Start(engine_.get(), spec), absl::OkStatus());
      if (below(3) == 0) std::this_thread::yield();
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(collectors[i].Wait(), absl::OkStatus());
      EXPECT_EQ(collectors[i].violation(), "");
      for (int s = 0; s < specs[i].num_samples; ++s) {
        std::vector<int32_t> want = Solo(specs[i], static_cast<uint32_t>(s));
        if (want.back() == 13) want.pop_back();
        EXPECT_EQ(collectors[i].sample(static_cast<size_t>(s)).tokens, want) << i << ", " << s;
      }
    }
    ExpectAtRest();
  }
}

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

TEST_F(SharingTest, ARequestForManySlotsIsNotOvertaken) {
  Start();
  probe_->AllowRuns(1);
  ReplyCollector one, four, last;
  GenerateSpec many = Prompt({1}, 5);
  many.num_samples = 4;
  ASSERT_EQ(one.Start(engine_.get(), Prompt({}, 20)), absl::OkStatus());
  one.WaitForTokens(1);
  ASSERT_EQ(four.Start(engine_.get(), many), absl::OkStatus());
  ASSERT_EQ(last.Start(engine_.get(), Prompt({}, 1)), absl::OkStatus());
  probe_->AllowRuns(10);
  one.WaitForTokens(11);
  EngineLoad load = engine_->GetLoad();
  EXPECT_EQ(load.slots_used, 1);
  EXPECT_EQ(load.queued, 5);
  probe_->AllowAll();
  EXPECT_EQ(one.Wait(), absl::OkStatus());
  EXPECT_EQ(four.Wait(), absl::OkStatus());
  EXPECT_EQ(last.Wait(), absl::OkStatus());
  ExpectAtRest();
}

TEST_F(SharingTest, ATenantsManyRequestsDoNotDelayAnothersFirst) {
  fake_.limits.num_slots = 2;
  Start();
  probe_->AllowRuns(1);
  std::deque<ReplyCollector> crowd(300);
  for (ReplyCollector& collector : crowd) {
    GenerateSpec spec = Prompt({}, 4);
    spec.tenant = "crowd";
    spec.priority = Priority::kHigh;
    ASSERT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
  }
  crowd[0].WaitForTokens(1);
  ReplyCollector other;
  GenerateSpec spec = Prompt({7}, 4);
  spec.tenant = "other";
  spec.priority = Priority::kLow;
  ASSERT_EQ(other.Start(engine_.get(), spec), absl::OkStatus());
  // Two of the crowd run for at most four runs each; then it is the other's turn, for four runs.
  probe_->AllowRuns(12);
  EXPECT_EQ(other.Wait(), absl::OkStatus());
  EXPECT_EQ(other.sample().tokens, Solo(spec));
  probe_->AllowAll();
  for (ReplyCollector& collector : crowd) EXPECT_EQ(collector.Wait(), absl::OkStatus());
  ExpectAtRest();
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

TEST_F(SharingTest, EverySlotIsZeroedWhenGivenOutAndWhenTakenBack) {
  Start();
  for (int i = 0; i < 10; ++i) {
    ReplyCollector collector;
    ASSERT_EQ(collector.Start(engine_.get(), Prompt({}, 3)), absl::OkStatus());
    EXPECT_EQ(collector.Wait(), absl::OkStatus());
    ExpectAtRest();
  }
  EXPECT_EQ(probe_->zeroed(), 20);
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
