// SPDX-License-Identifier: Apache-2.0
#include "server/engine/scheduler.h"

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

SessionView Decode(uint64_t last_served = 0) { return {0, last_served, false}; }
SessionView Prefill(int64_t tokens, uint64_t last_served = 0) {
  return {tokens, last_served, false};
}

std::string ToString(const Plan& plan) {
  std::string s = absl::StrCat("steps ", plan.num_steps, ":");
  for (const PlannedRow& row : plan.rows) absl::StrAppend(&s, " ", row.session, "x", row.tokens);
  return s;
}

std::string PlanOf(const BackendLimits& limits, const std::vector<SessionView>& views,
                   bool waiting = false) {
  Plan plan;
  Scheduler(limits, kOptions).PlanRun(views, waiting, &plan);
  return ToString(plan);
}

TEST(SchedulerTest, AdmitsInOrderWhileSlotsSuffice) {
  EXPECT_EQ(CountAdmissible(std::vector<int>{1, 1, 1}, 2), 2);
  EXPECT_EQ(CountAdmissible(std::vector<int>{1, 1}, 5), 2);
  EXPECT_EQ(CountAdmissible(std::vector<int>{}, 5), 0);
  EXPECT_EQ(CountAdmissible(std::vector<int>{1}, 0), 0);
}

TEST(SchedulerTest, NothingOvertakesALargeRequestAtTheHead) {
  EXPECT_EQ(CountAdmissible(std::vector<int>{4, 1, 1}, 3), 0);
  EXPECT_EQ(CountAdmissible(std::vector<int>{2, 4, 1}, 5), 1);
}

TEST(SchedulerTest, PlansByTable) {
  const BackendLimits wide = Limits(8, 64, 4);
  EXPECT_EQ(PlanOf(wide, {}), "steps 4:");
  EXPECT_EQ(PlanOf(wide, {Decode(), Decode()}), "steps 4: 0x1 1x1");
  EXPECT_EQ(PlanOf(wide, {Decode()}, /*waiting=*/true), "steps 1: 0x1");
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

TEST(SchedulerTest, AShortPromptDoesNotWaitBehindALongOne) {
  EXPECT_EQ(PlanOf(Limits(8, 64), {Prefill(1'000'000), Prefill(2)}), "steps 1: 0x30 1x2");
  EXPECT_EQ(PlanOf(Limits(8, 64), {Prefill(1'000'000), Decode(), Prefill(2)}),
            "steps 1: 0x6 1x1 2x2");
  EXPECT_EQ(PlanOf(Limits(8, 64), {Prefill(9, 7), Prefill(90, 7), Prefill(12, 7)}),
            "steps 1: 0x9 1x12 2x11");
}

TEST(SchedulerTest, MorePromptsThanBudgetTakeTurns) {
  std::vector<SessionView> sessions = {Decode()};
  for (uint64_t i = 0; i < 10; ++i)
    sessions.push_back(Prefill(5, 20 - i));  // the last served longest ago
  EXPECT_EQ(PlanOf(Limits(16, 64), sessions), "steps 1: 0x1 3x1 4x1 5x1 6x1 7x1 8x1 9x1 10x1");
}

TEST(SchedulerTest, LooksAfterEachStepWhereARowNeedsIt) {
  SessionView watched = Decode();
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

// Random arrivals against the rules, and everybody gets on.
TEST(SchedulerTest, KeepsItsRulesUnderRandomOperations) {
  std::mt19937 random(3);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    const BackendLimits limits = Limits(1 + below(6), 1 + below(40), 1 + below(4));
    Scheduler scheduler(limits, kOptions);
    std::vector<SessionView> sessions;
    uint64_t run = 0;
    for (int op = 0; op < 300; ++op) {
      if (below(3) == 0 && sessions.size() < 12) sessions.push_back(Prefill(below(60)));
      if (below(4) == 0 && !sessions.empty()) {
        sessions.erase(sessions.begin() + below(static_cast<int>(sessions.size())));
      }
      Plan plan;
      const bool waiting = below(2) == 0;
      scheduler.PlanRun(sessions, waiting, &plan);
      ++run;
      ASSERT_EQ(plan.rows.empty(), sessions.empty());
      ASSERT_LE(plan.rows.size(), static_cast<size_t>(limits.max_rows));
      int64_t tokens = 0, prompt_tokens = 0;
      std::set<int> served;
      int last = -1;
      for (const PlannedRow& row : plan.rows) {
        ASSERT_GT(row.session, last);
        last = row.session;
        served.insert(row.session);
        SessionView& view = sessions[static_cast<size_t>(row.session)];
        ASSERT_GE(row.tokens, 1);
        ASSERT_LE(row.tokens, std::max<int64_t>(1, view.prefill_tokens));
        tokens += row.tokens;
        if (view.prefill_tokens > 0) prompt_tokens += row.tokens;
      }
      ASSERT_LE(tokens, limits.max_tokens);
      bool prefilling = false, decoding = false, some_decode_left_out = false;
      for (size_t i = 0; i < sessions.size(); ++i) {
        (sessions[i].prefill_tokens > 0 ? prefilling : decoding) = true;
        if (sessions[i].prefill_tokens == 0 && !served.contains(static_cast<int>(i))) {
          some_decode_left_out = true;
        }
      }
      ASSERT_LE(prompt_tokens,
                decoding ? kOptions.prefill_tokens_busy : kOptions.prefill_tokens_idle);
      ASSERT_EQ(plan.num_steps > 1, !waiting && !prefilling && limits.preferred_steps > 1)
          << ToString(plan);
      // A session that decodes rides unless the rows (or tokens) are used up.
      if (some_decode_left_out) {
        ASSERT_EQ(plan.rows.size(),
                  static_cast<size_t>(std::min(limits.max_rows, limits.max_tokens)));
      }
      for (const PlannedRow& row : plan.rows) {
        SessionView& view = sessions[static_cast<size_t>(row.session)];
        view.prefill_tokens = std::max<int64_t>(0, view.prefill_tokens - row.tokens);
        view.last_served = run;
      }
    }
  }
}

TEST(SchedulerTest, NobodyStarves) {
  for (int max_rows : {1, 2, 5}) {
    Scheduler scheduler(Limits(max_rows, 8), kOptions);
    std::vector<SessionView> sessions(9, Decode());
    sessions.push_back(Prefill(40));
    sessions.push_back(Prefill(40));
    Plan plan;
    std::vector<uint64_t> longest_gap(sessions.size(), 0);
    for (uint64_t run = 1; run <= 2000; ++run) {
      scheduler.PlanRun(sessions, false, &plan);
      for (const PlannedRow& row : plan.rows) {
        SessionView& view = sessions[static_cast<size_t>(row.session)];
        auto& gap = longest_gap[static_cast<size_t>(row.session)];
        if (view.prefill_tokens == 0) gap = std::max(gap, run - view.last_served);
        view.prefill_tokens = std::max<int64_t>(0, view.prefill_tokens - row.tokens);
        view.last_served = run;
      }
    }
    for (size_t i = 0; i < sessions.size(); ++i) {
      EXPECT_EQ(sessions[i].prefill_tokens, 0) << i;
      EXPECT_GE(sessions[i].last_served, 1980u) << i;
      EXPECT_LE(longest_gap[i], 12u) << i;
    }
  }
}

}  // namespace
}  // namespace rivulet
