// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

BackendLimits Limits(int max_rows, int max_tokens, int preferred_steps = 1) {
  BackendLimits limits;
  limits.num_slots = max_rows;
  limits.max_rows = max_rows;
  limits.max_tokens = max_tokens;
  limits.max_steps = 16;
  limits.preferred_steps = preferred_steps;
  return limits;
}

constexpr ScheduleOptions kOptions = {8, 32};
constexpr uint64_t kRun = 100;  // above every last_served of the tables

SequenceView Decode(uint64_t last_served = 0) { return {0, last_served, false}; }
SequenceView Prefill(int64_t tokens, uint64_t last_served = 0) {
  return {tokens, last_served, false};
}

std::string ToString(const RunPlan& plan) {
  std::string s = absl::StrCat("steps ", plan.num_steps, ":");
  for (const PlannedRow& row : plan.rows) absl::StrAppend(&s, " ", row.sequence, "x", row.tokens);
  return s;
}

std::string PlanOf(const BackendLimits& limits, const std::vector<SequenceView>& views,
                   bool waiting = false) {
  RunPlan plan;
  Scheduler(limits, kOptions).PlanRun(views, kRun, waiting, &plan);
  return ToString(plan);
}

TEST(SchedulerTest, PlansByTable) {
  const BackendLimits wide = Limits(8, 64, 4);
  EXPECT_EQ(PlanOf(wide, {}), "steps 4:");
  EXPECT_EQ(PlanOf(wide, {Decode(), Decode()}), "steps 4: 0x1 1x1");
  // A lone prompt gets the idle budget, several share it evenly.
  EXPECT_EQ(PlanOf(wide, {Prefill(100)}), "steps 1: 0x32");
  EXPECT_EQ(PlanOf(wide, {Prefill(20), Prefill(20), Prefill(20)}), "steps 1: 0x10 1x11 2x11");
  // Beside a reply, prompts share the busy budget.
  EXPECT_EQ(PlanOf(wide, {Prefill(100), Decode()}), "steps 1: 0x8 1x1");
  EXPECT_EQ(PlanOf(wide, {Prefill(3), Decode(), Prefill(9)}), "steps 1: 0x3 1x1 2x5");
  // The backend's token limit holds.
  EXPECT_EQ(PlanOf(Limits(8, 6), {Prefill(100)}), "steps 1: 0x6");
  EXPECT_EQ(PlanOf(Limits(8, 6), {Decode(), Decode(), Prefill(100)}), "steps 1: 0x1 1x1 2x4");
}

TEST(SchedulerTest, ForcedTokensDelayNoReplyWithoutAConstraint) {
  SequenceView constrained = Decode(), forced = Prefill(5);
  constrained.constrained = forced.constrained = forced.forced = true;
  const BackendLimits wide = Limits(8, 64, 4);
  EXPECT_EQ(PlanOf(wide, {forced, Decode(), Prefill(100)}), "steps 1: 0x1 1x1 2x8");
  EXPECT_EQ(PlanOf(wide, {forced, constrained, Prefill(100)}), "steps 1: 0x4 1x1 2x4");
  EXPECT_EQ(PlanOf(wide, {forced, Prefill(100)}), "steps 1: 0x5 1x27");
}

TEST(SchedulerTest, AShortPromptDoesNotWaitBehindALongOne) {
  EXPECT_EQ(PlanOf(Limits(8, 64), {Prefill(1'000'000), Prefill(2)}), "steps 1: 0x30 1x2");
  EXPECT_EQ(PlanOf(Limits(8, 64), {Prefill(1'000'000), Decode(), Prefill(2)}),
            "steps 1: 0x6 1x1 2x2");
  EXPECT_EQ(PlanOf(Limits(8, 64), {Prefill(9, 7), Prefill(90, 7), Prefill(12, 7)}),
            "steps 1: 0x9 1x12 2x11");
}

TEST(SchedulerTest, MorePromptsThanBudgetTakeTurns) {
  std::vector<SequenceView> sequences = {Decode()};
  for (uint64_t i = 0; i < 10; ++i)
    sequences.push_back(Prefill(5, 20 - i));  // the last served longest ago
  EXPECT_EQ(PlanOf(Limits(16, 64), sequences), "steps 1: 0x1 3x1 4x1 5x1 6x1 7x1 8x1 9x1 10x1");
}

TEST(SchedulerTest, LooksAfterEachStepWhereARowNeedsIt) {
  SequenceView watched = Decode();
  watched.single_step = true;
  EXPECT_EQ(PlanOf(Limits(8, 64, 4), {Decode(), watched}), "steps 1: 0x1 1x1");
}

TEST(SchedulerTest, RunLengthIsWithinTheBackendsLimit) {
  BackendLimits limits = Limits(8, 64, 100);
  EXPECT_EQ(PlanOf(limits, {Decode()}), "steps 16: 0x1");
  limits.preferred_steps = 0;
  EXPECT_EQ(PlanOf(limits, {Decode()}), "steps 1: 0x1");
}

TEST(SchedulerTest, ServesTheLongestUnservedFirstWhereRowsAreScarce) {
  EXPECT_EQ(PlanOf(Limits(2, 64), {Decode(5), Decode(3), Decode(4)}), "steps 1: 1x1 2x1");
  EXPECT_EQ(PlanOf(Limits(2, 64), {Decode(5), Decode(5), Decode(5)}), "steps 1: 0x1 1x1");
  EXPECT_EQ(PlanOf(Limits(2, 64), {Decode(5), Prefill(4, 0), Decode(4)}), "steps 1: 1x4 2x1");
  // Fewer tokens than rows: a token is what is scarce.
  EXPECT_EQ(PlanOf(Limits(8, 2), {Decode(1), Decode(2), Prefill(9, 0)}), "steps 1: 0x1 2x1");
}

TEST(SchedulerTest, WhileRequestsWaitARunEndsWithTheFirstRowThatIsKnownToEnd) {
  const BackendLimits limits = Limits(8, 64, 4);
  const auto plan = [&](int64_t left, bool waiting) {
    SequenceView ends = Decode();
    ends.steps_left = left;
    return PlanOf(limits, {Decode(), ends}, waiting);
  };
  EXPECT_EQ(plan(1, true), "steps 1: 0x1 1x1");
  EXPECT_EQ(plan(3, true), "steps 3: 0x1 1x1");
  EXPECT_EQ(plan(9, true), "steps 4: 0x1 1x1") << "no row could be given on earlier";
  EXPECT_EQ(plan(1, false), "steps 4: 0x1 1x1") << "nobody wants its slot";
}

SequenceView Of(uint64_t tenant, uint64_t last_served, Priority priority = Priority::kNormal) {
  SequenceView view = Decode(last_served);
  view.tenant = tenant;
  view.priority = priority;
  return view;
}

TEST(SchedulerTest, WhereRowsAreScarcePriorityWeighsTheTimeSinceASessionWasServed) {
  const Priority high = Priority::kHigh, low = Priority::kLow;
  EXPECT_EQ(PlanOf(Limits(1, 64), {Of(1, 97), Of(1, 98, high)}), "steps 1: 1x1") << "2*3 < 4*2";
  EXPECT_EQ(PlanOf(Limits(1, 64), {Of(1, 95), Of(1, 98, high)}), "steps 1: 0x1") << "2*5 > 4*2";
  EXPECT_EQ(PlanOf(Limits(1, 64), {Of(1, 98, low), Of(1, 99)}), "steps 1: 0x1") << "as many";
}

TEST(SchedulerTest, WhereRowsAreScarceTenantsTakeTurns) {
  // Tenant 1 has waited longer and calls everything urgent.
  const SequenceView crowd = Of(1, 10, Priority::kHigh);
  EXPECT_EQ(PlanOf(Limits(4, 64), {crowd, crowd, crowd, crowd, Of(2, 90), Of(2, 80), Of(2, 70)}),
            "steps 1: 0x1 1x1 5x1 6x1");
  EXPECT_EQ(PlanOf(Limits(4, 64), {crowd, crowd, crowd, crowd, Of(2, 90)}),
            "steps 1: 0x1 1x1 2x1 4x1");
  // Fewer rows than tenants: first the tenant that was served longest ago.
  EXPECT_EQ(PlanOf(Limits(1, 64), {Of(1, 99), Of(1, 3), Of(2, 98)}), "steps 1: 2x1");
}

// How often each sequence gets a row.
TEST(SchedulerTest, RowsOfATenantAreDealtByPriorityAndThoseOfTenantsEvenly) {
  Scheduler scheduler(Limits(2, 64), kOptions);
  std::vector<SequenceView> sequences;
  for (int i = 0; i < 6; ++i) sequences.push_back(Of(1, 0, Priority::kHigh));
  sequences.push_back(Of(1, 0, Priority::kLow));
  sequences.push_back(Of(2, 0, Priority::kLow));
  sequences.push_back(Of(2, 0, Priority::kLow));
  std::vector<int> rows(sequences.size(), 0);
  RunPlan plan;
  for (uint64_t run = 1; run <= 1000; ++run) {
    scheduler.PlanRun(sequences, run, false, &plan);
    for (const PlannedRow& row : plan.rows) {
      ++rows[static_cast<size_t>(row.sequence)];
      sequences[static_cast<size_t>(row.sequence)].last_served = run;
    }
  }
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(rows[static_cast<size_t>(i)], 160, 5) << i;
  EXPECT_NEAR(rows[6], 40, 5) << "a quarter as often";
  EXPECT_EQ(rows[7], 500);
  EXPECT_EQ(rows[8], 500);
}

// Random arrivals against the rules, and everybody gets on.
TEST(SchedulerTest, KeepsItsRulesUnderRandomOperations) {
  std::mt19937 random(3);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    const BackendLimits limits = Limits(1 + below(6), 1 + below(40), 1 + below(4));
    Scheduler scheduler(limits, kOptions);
    std::vector<SequenceView> sequences;
    uint64_t run = 0;
    for (int op = 0; op < 300; ++op) {
      if (below(3) == 0 && sequences.size() < 12) sequences.push_back(Prefill(below(60)));
      if (below(4) == 0 && !sequences.empty()) {
        sequences.erase(sequences.begin() + below(static_cast<int>(sequences.size())));
      }
      RunPlan plan;
      const bool waiting = below(2) == 0;
      scheduler.PlanRun(sequences, ++run, waiting, &plan);
      ASSERT_EQ(plan.rows.empty(), sequences.empty());
      ASSERT_LE(plan.rows.size(), static_cast<size_t>(limits.max_rows));
      int64_t tokens = 0, prompt_tokens = 0;
      std::set<int> served;
      int last = -1;
      for (const PlannedRow& row : plan.rows) {
        ASSERT_GT(row.sequence, last);
        last = row.sequence;
        served.insert(row.sequence);
        SequenceView& view = sequences[static_cast<size_t>(row.sequence)];
        ASSERT_GE(row.tokens, 1);
        ASSERT_LE(row.tokens, std::max<int64_t>(1, view.prefill_tokens));
        tokens += row.tokens;
        if (view.prefill_tokens > 0) prompt_tokens += row.tokens;
      }
      ASSERT_LE(tokens, limits.max_tokens);
      bool prefilling = false, decoding = false, some_decode_left_out = false;
      for (size_t i = 0; i < sequences.size(); ++i) {
        (sequences[i].prefill_tokens > 0 ? prefilling : decoding) = true;
        if (sequences[i].prefill_tokens == 0 && !served.contains(static_cast<int>(i))) {
          some_decode_left_out = true;
        }
      }
      ASSERT_LE(prompt_tokens,
                decoding ? kOptions.prefill_tokens_busy : kOptions.prefill_tokens_idle);
      ASSERT_EQ(plan.num_steps > 1, !prefilling && limits.preferred_steps > 1) << ToString(plan);
      // A sequence that decodes rides unless the rows (or tokens) are used up.
      if (some_decode_left_out) {
        ASSERT_EQ(plan.rows.size(),
                  static_cast<size_t>(std::min(limits.max_rows, limits.max_tokens)));
      }
      for (const PlannedRow& row : plan.rows) {
        SequenceView& view = sequences[static_cast<size_t>(row.sequence)];
        view.prefill_tokens = std::max<int64_t>(0, view.prefill_tokens - row.tokens);
        view.last_served = run;
      }
    }
  }
}

TEST(SchedulerTest, NobodyStarves) {
  for (int max_rows : {1, 2, 5}) {
    Scheduler scheduler(Limits(max_rows, 8), kOptions);
    std::vector<SequenceView> sequences(9, Decode());
    sequences.push_back(Prefill(40));
    sequences.push_back(Prefill(40));
    RunPlan plan;
    std::vector<uint64_t> longest_gap(sequences.size(), 0);
    for (uint64_t run = 1; run <= 2000; ++run) {
      scheduler.PlanRun(sequences, run, false, &plan);
      for (const PlannedRow& row : plan.rows) {
        SequenceView& view = sequences[static_cast<size_t>(row.sequence)];
        auto& gap = longest_gap[static_cast<size_t>(row.sequence)];
        if (view.prefill_tokens == 0) gap = std::max(gap, run - view.last_served);
        view.prefill_tokens = std::max<int64_t>(0, view.prefill_tokens - row.tokens);
        view.last_served = run;
      }
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_EQ(sequences[i].prefill_tokens, 0) << i;
      EXPECT_GE(sequences[i].last_served, 1980u) << i;
      EXPECT_LE(longest_gap[i], 12u) << i;
    }
  }
}

}  // namespace
}  // namespace rivulet
