// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/speculation.h"

#include <gmock/gmock.h>

#include <functional>
#include <random>
#include <vector>

namespace rivulet {
namespace {

using ::testing::ElementsAre;

TEST(PassCostsTest, WhatWasNotMeasuredLiesBetweenItsNeighbours) {
  PassCosts costs;
  EXPECT_EQ(costs.At(1), std::nullopt);
  costs.Note(4, 8);
  EXPECT_EQ(costs.At(2), 8) << "no fewer rows are known";
  EXPECT_EQ(costs.At(5), std::nullopt) << "no more rows are known";
  costs.Note(2, 4);
  EXPECT_EQ(costs.At(3), 6);
  costs.Note(2, 12);
  EXPECT_EQ(costs.At(2), 5) << "a running mean of an eighth";
  costs.Note(2, 4);
  EXPECT_EQ(costs.At(2), 4.75) << "less is hardly an accident";
  costs.Note(2, 1);
  EXPECT_EQ(costs.At(2), 1) << "no accident";
  for (const int rows : {0, -1, PassCosts::kMostRows + 1}) costs.Note(rows, 1);
  EXPECT_EQ(costs.At(PassCosts::kMostRows + 1), std::nullopt);
}

BackendLimits LimitsOf(int rows, int max_tokens) {
  BackendLimits limits;
  limits.drafts.rows = rows;
  limits.max_tokens = max_tokens;
  return limits;
}

// Streams whose drafts are right with probability `right`, on a machine where a pass of n token
// rows takes seconds(n).
struct Machine {
  std::function<double(int)> seconds;
  double right = 0;
  int most = 8;
  BackendLimits limits = LimitsOf(4, 256);
  std::vector<DraftAcceptance> rows = std::vector<DraftAcceptance>(1);
  double noise = 0;  // of the measurements: up to this share more

  PassCosts costs = {};
  uint64_t run = 0;
  std::mt19937_64 random{1};
  double time = 0, slowest = 0;
  int64_t tokens = 0;

  std::vector<int> Plan() {
    std::vector<DraftView> views;
    for (const DraftAcceptance& row : rows) {
      views.push_back({most, true, row.rate(), row.was_right()});
    }
    std::vector<int> drafts;
    PlanDrafts(views, costs, limits, ++run, &drafts);
    return drafts;
  }
  void Pass() {
    const std::vector<int> drafts = Plan();
    int fed = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      fed += 1 + drafts[i];
      int accepted = 0;
      while (accepted < drafts[i] && std::bernoulli_distribution(right)(random)) ++accepted;
      if (drafts[i] > 0) rows[i].Note(drafts[i], accepted);
      tokens += 1 + accepted;
    }
    costs.Note(fed, seconds(fed) * std::uniform_real_distribution(1.0, 1 + noise)(random));
    time += seconds(fed);
    slowest = std::max(slowest, seconds(fed));
  }
  // Tokens per second until `count` more are there, over those without drafts.
  double Rate(int64_t count) {
    time = slowest = 0;
    tokens = 0;
    while (tokens < count) Pass();
    const auto alone = static_cast<int>(rows.size());
    return static_cast<double>(tokens) / time * seconds(alone) / alone;
  }
};

double Dense(int rows) { return 1 + 0.09 * (rows - 1); }    // weights are read once
double Experts(int rows) { return 1 + 0.65 * (rows - 1); }  // each row reads its own

TEST(PlanDraftsTest, FindsTheNumberThatPays) {
  Machine machine = {.seconds = Dense, .right = 0.9};
  EXPECT_GT(machine.Rate(512), 3);  // with 8 drafts each pass: 6.1 tokens in 1.72 seconds
  machine.right = 0;
  EXPECT_GT(machine.Rate(512), 0.97);
  machine.right = 0.9;
  machine.Rate(64);
  EXPECT_GT(machine.Rate(512), 3) << "it is back";
  Machine never = {.seconds = Dense};
  EXPECT_GT(never.Rate(512), 0.97) << "from its beginning";
}

TEST(PlanDraftsTest, GivesNoneWhereRowsCostTooMuch) {
  Machine machine = {.seconds = Experts, .right = 0.5};
  EXPECT_GT(machine.Rate(512), 0.95);
  machine.run = 1;
  EXPECT_THAT(machine.Plan(), ElementsAre(::testing::Le(1)));
}

TEST(PlanDraftsTest, MakesNoPassMoreThanATenthSlower) {
  for (const double right : {0.0, 0.5, 1.0}) {
    Machine machine = {.seconds = Dense, .right = 1, .rows = std::vector<DraftAcceptance>(6)};
    machine.Rate(1000);  // the costs are known now
    machine.right = right;
    EXPECT_GT(machine.Rate(1000), 0.98) << right;
    EXPECT_LE(machine.slowest, 1.1 * Dense(6)) << right;
  }
}

TEST(PlanDraftsTest, GivesNoneToAFullBatch) {
  for (const double cost : {0.97, 1.0, 1.2}) {
    for (const int batch : {20, 32}) {
      const auto seconds = [=](int rows) { return rows <= batch ? rows : cost * rows; };
      Machine machine = {.seconds = seconds,
                         .right = 0.7,
                         .rows = std::vector<DraftAcceptance>(static_cast<size_t>(batch)),
                         .noise = 0.5};
      EXPECT_GT(machine.Rate(100000), 0.998) << cost << " " << batch;
    }
  }
}

TEST(PlanDraftsTest, NoticesThatRowsHaveBecomeCheap) {
  Machine machine = {.seconds = Experts, .right = 1, .rows = std::vector<DraftAcceptance>(3)};
  machine.Rate(2000);
  EXPECT_LT(machine.Rate(2000), 1.01) << "none would leave a pass within a tenth";
  for (DraftAcceptance& row : machine.rows) row.Note(1, 0);
  machine.seconds = [](int rows) { return 1 + 0.02 * rows; };
  machine.Rate(3000);
  EXPECT_GT(machine.Rate(1000), 1.5);
}

TEST(PlanGuessesTest, AsksForThoseThatPay) {
  DraftView row;
  PassCosts costs;
  bool adaptive = true;
  const auto plan = [&](double rate, uint64_t run = 2, int fed = 1) {
    row.wanted = {4, rate, adaptive};
    return PlanGuesses(row, costs, fed, 3, run);
  };
  EXPECT_EQ(plan(0.9), 0) << "a run without them comes first";
  for (int fed = 1; fed <= 4; ++fed) costs.Note(fed, Dense(fed));
  EXPECT_EQ(plan(0.9), 1) << "their cost is to be measured";
  costs.NoteGuess(0.3);
  EXPECT_EQ(plan(0.9), 3);
  EXPECT_EQ(plan(0.6), 1);
  EXPECT_EQ(plan(0.1), 0);
  EXPECT_EQ(plan(0.1, 31), 1) << "a probe";
  EXPECT_EQ(plan(0.9, 64), 0) << "then comes a run that measures a pass without drafts";
  EXPECT_EQ(plan(0.9, 65), 0) << "... and without guesses";
  EXPECT_EQ(plan(0.9, 2, 5), 0) << "likewise";
  costs.NoteGuess(100);
  EXPECT_EQ(plan(0.9), 0);
  adaptive = false;
  EXPECT_EQ(plan(0.1), 3);
}

TEST(PlanDraftsTest, ObeysTheLimits) {
  std::vector<int> drafts;
  const DraftView fixed = {.most = 3, .adaptive = false}, none = {}, one = {.most = 1, .rate = 0.5};
  PassCosts costs;
  const auto plan = [&](std::vector<DraftView> rows, const BackendLimits& limits) {
    PlanDrafts(rows, costs, limits, 1, &drafts);
    return drafts;
  };
  EXPECT_THAT(plan({fixed}, LimitsOf(1, 64)), ElementsAre(0))
      << "a pass without drafts comes first";
  for (int rows = 1; rows <= 9; ++rows) costs.Note(rows, 1);
  EXPECT_THAT(plan({fixed, none, fixed}, LimitsOf(2, 64)), ElementsAre(3, 0, 3));
  EXPECT_THAT(plan({fixed, fixed, one}, LimitsOf(1, 64)), ElementsAre(3, 0, 0));
  EXPECT_THAT(plan({fixed, fixed}, LimitsOf(2, 6)), ElementsAre(3, 1));
  EXPECT_THAT(plan({none, one}, LimitsOf(1, 64)), ElementsAre(0, 1));
  EXPECT_THAT(plan({}, {}), ElementsAre());
  PlanDrafts(std::vector{one}, costs, LimitsOf(1, 64), 64, &drafts);
  EXPECT_THAT(drafts, ElementsAre(0)) << "a run that measures passes without drafts";
}

}  // namespace
}  // namespace rivulet
