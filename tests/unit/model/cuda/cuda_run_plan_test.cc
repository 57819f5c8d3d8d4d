// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace rivulet {
namespace {

using ::testing::ElementsAre;

BackendLimits Limits() {
  BackendLimits limits;
  limits.num_slots = 40;
  limits.max_rows = 16;
  limits.max_tokens = 64;
  limits.max_steps = 8;
  return limits;
}

ModelConfig Config() {
  ModelConfig config;
  config.vocab_size = 10;
  return config;
}

// A run that owns what its rows borrow.
struct OwnedRun {
  struct Row {
    std::vector<int32_t> tokens, targets;
    std::vector<OutputRequest> outputs;
  };
  Run run;
  std::vector<Row> owned;

  void Finish() {
    for (size_t i = 0; i < owned.size(); ++i) {
      run.rows[i].tokens = owned[i].tokens;
      run.rows[i].targets = owned[i].targets;
      run.rows[i].outputs = owned[i].outputs;
    }
  }
};

OwnedRun OneRow(std::vector<int32_t> tokens) {
  OwnedRun run;
  run.run.rows.resize(1);
  run.run.rows[0].slot = 3;
  run.owned.push_back({std::move(tokens), {}, {}});
  run.Finish();
  return run;
}

OwnedRun RandomRun(std::mt19937* random, float* somewhere) {
  const auto up_to = [&](int n) { return int((*random)() % uint32_t(n + 1)); };
  OwnedRun run;
  const int rows = 1 + up_to(9);
  run.run.num_steps = 1 + up_to(7);
  run.owned.resize(size_t(rows));
  for (int i = 0; i < rows; ++i) {
    OwnedRun::Row& owned = run.owned[size_t(i)];
    RunRow row;
    row.slot = i + 1;
    row.position = up_to(50);
    const int tokens = up_to(3) == 0 ? 1 + up_to(4) : 1;
    for (int t = 0; t < tokens; ++t) owned.tokens.push_back(up_to(9));
    if (up_to(3) == 0) owned.targets = owned.tokens;
    for (int t = tokens; t > 0; --t) {
      if (up_to(3) == 0) owned.outputs.push_back({t - 1, somewhere + i * 8 + t});
    }
    row.sample = up_to(3) > 0;
    row.max_samples = row.sample ? 1 + up_to(9) : 0;
    run.run.rows.push_back(row);
  }
  run.Finish();
  return run;
}

TEST(CudaBucketsTest, EveryRowCountHasOneAndNoneIsMoreThanTwiceItsSize) {
  for (const int max_rows : {1, 2, 3, 5, 16, 63, 64, 65, 100, 256, 1000, 4096, 4097}) {
    const std::vector<int> buckets = CudaBuckets(max_rows);
    EXPECT_TRUE(std::is_sorted(buckets.begin(), buckets.end()));
    EXPECT_EQ(std::set<int>(buckets.begin(), buckets.end()).size(), buckets.size());
    EXPECT_EQ(buckets.back(), max_rows);
    for (int rows = 1; rows <= max_rows; ++rows) {
      const int bucket = buckets[size_t(CudaBucketFor(buckets, rows))];
      ASSERT_GE(bucket, rows);
      ASSERT_LT(bucket, 2 * rows + (rows == 1 ? 1 : 0)) << rows;
    }
  }
  EXPECT_THAT(CudaBuckets(200), ElementsAre(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 200));
}

TEST(CudaRunPlanTest, TokenRowsOutputsAndPlacesOfAMixedRun) {
  float somewhere[2] = {};
  OwnedRun run;
  run.run.num_steps = 3;
  run.run.rows.resize(3);
  run.owned = {
      {{5, 6, 7}, {6, 7, 8}, {{2, somewhere}}}, {{1, 2}, {}, {{0, somewhere + 1}}}, {{9}, {}, {}}};
  run.run.rows[0].position = 10;
  run.run.rows[1].position = 20;
  run.run.rows[1].sample = run.run.rows[2].sample = true;
  run.run.rows[1].max_samples = run.run.rows[2].max_samples = 3;
  for (int i = 0; i < 3; ++i) run.run.rows[size_t(i)].slot = i + 1;
  run.Finish();
  ASSERT_EQ(CheckCudaRun(run.run, Limits(), Config()), absl::OkStatus());
  CudaRunPlan plan(Limits());
  plan.Build(run.run);
  EXPECT_FALSE(plan.plain);
  EXPECT_THAT(plan.tokens, ElementsAre(5, 6, 7, 1, 2, 9));
  EXPECT_THAT(plan.positions, ElementsAre(10, 11, 12, 20, 21, 0));
  ASSERT_EQ(plan.segments.size(), 3u);
  EXPECT_EQ(plan.segments[1].first_token_row, 3);
  EXPECT_EQ(plan.segments[1].num_tokens, 2);
  std::vector<std::vector<int>> outputs;
  for (const CudaOutputRow& o : plan.outputs) {
    outputs.push_back({o.token_row, o.row, o.target, o.sample, o.target_record, o.sample_record});
  }
  EXPECT_THAT(outputs,
              ElementsAre(ElementsAre(0, 0, 6, 0, 0, -1), ElementsAre(1, 0, 7, 0, 1, -1),
                          ElementsAre(2, 0, 8, 0, 2, -1), ElementsAre(3, 1, -1, 0, -1, -1),
                          ElementsAre(4, 1, -1, 1, -1, 3), ElementsAre(5, 2, -1, 1, -1, 4)));
  EXPECT_EQ(plan.first_records, 5);
  EXPECT_EQ(plan.RecordPlace(1, 0), 5);
  EXPECT_EQ(plan.RecordPlace(2, 1), 5 + 3 + 1);
  ASSERT_EQ(plan.raw.size(), 2u);
  EXPECT_EQ(plan.raw[0].output_row, 2);
  EXPECT_EQ(plan.raw[0].destination, somewhere);
  EXPECT_EQ(plan.raw[1].output_row, 3);
}

TEST(CudaRunPlanTest, ARunIsPlainOnlyIfEveryRowJustDraws) {
  CudaRunPlan plan(Limits());
  OwnedRun run = OneRow({4});
  run.run.rows[0].sample = true;
  run.run.rows[0].max_samples = 1;
  plan.Build(run.run);
  EXPECT_TRUE(plan.plain);
  float somewhere = 0;
  run.owned[0].outputs = {{0, &somewhere}};
  run.Finish();
  plan.Build(run.run);
  EXPECT_FALSE(plan.plain) << "raw outputs";
  run.owned[0] = {{4}, {5}, {}};
  run.Finish();
  plan.Build(run.run);
  EXPECT_FALSE(plan.plain) << "a target";
  run.owned[0] = {{4, 4}, {}, {}};
  run.Finish();
  plan.Build(run.run);
  EXPECT_FALSE(plan.plain) << "two tokens";
  run = OneRow({4});
  plan.Build(run.run);
  EXPECT_FALSE(plan.plain) << "nothing drawn";
}

// What the seam says, spelled out: step by step, within a step row by row.
std::vector<CudaRecordOrder::Expected> SpelledOut(const Run& run,
                                                  const std::vector<std::vector<bool>>& ends) {
  std::vector<CudaRecordOrder::Expected> all;
  std::vector<int> drawn(run.rows.size());
  std::vector<bool> ended(run.rows.size());
  for (int step = 0; step < run.num_steps; ++step) {
    for (size_t i = 0; i < run.rows.size(); ++i) {
      const RunRow& row = run.rows[i];
      for (size_t t = 0; step == 0 && t < row.targets.size(); ++t) {
        all.push_back({0, int(i), row.position + int64_t(t) + 1, row.targets[t]});
      }
      if (!row.sample || ended[i] || drawn[i] == row.max_samples) continue;
      all.push_back({0, int(i), row.position + int64_t(row.tokens.size()) + step, -1});
      ended[i] = ends[i][size_t(drawn[i]++)];
    }
  }
  return all;
}

TEST(CudaRecordOrderTest, RecordsComeStepByStepAndRowByRowWhereverRowsEnd) {
  std::mt19937 random(5);
  std::vector<float> somewhere(200);
  CudaRunPlan plan(Limits());
  CudaRecordOrder order(Limits().max_rows);
  for (int trial = 0; trial < 2000; ++trial) {
    const OwnedRun run = RandomRun(&random, somewhere.data());
    ASSERT_EQ(CheckCudaRun(run.run, Limits(), Config()), absl::OkStatus());
    std::vector<std::vector<bool>> ends(run.run.rows.size());
    for (auto& row : ends) {
      for (int i = 0; i < 8; ++i) row.push_back(random() % 6 == 0);
    }
    const auto expected = SpelledOut(run.run, ends);
    plan.Build(run.run);
    order.Start(run.run, plan);
    std::vector<size_t> drawn(run.run.rows.size());
    std::set<int> places;
    for (const auto& e : expected) {
      ASSERT_FALSE(order.done());
      const CudaRecordOrder::Expected next = order.next();
      EXPECT_EQ(next.row, e.row);
      EXPECT_EQ(next.position, e.position);
      EXPECT_EQ(next.target, e.target);
      EXPECT_TRUE(places.insert(next.place).second) << "two records in one place";
      EXPECT_LT(size_t(next.place), CudaRunPlan::MaxRecords(Limits()));
      order.Take(next.target < 0 && ends[size_t(e.row)][drawn[size_t(e.row)]++]);
    }
    ASSERT_TRUE(order.done());
  }
}

TEST(CudaRecordOrderTest, TheDeviceFindsThePlaceOfADrawByAddingTheNumberOfRows) {
  OwnedRun run;
  run.run.num_steps = 4;
  run.run.rows.resize(3);
  run.owned = {{{1, 2}, {2, 3}, {}}, {{1}, {}, {}}, {{4}, {}, {}}};
  for (int i = 0; i < 3; ++i) {
    RunRow& row = run.run.rows[size_t(i)];
    row.slot = i + 1;
    row.sample = true;
    row.max_samples = 4;
  }
  run.Finish();
  CudaRunPlan plan(Limits());
  plan.Build(run.run);
  CudaRecordOrder order(Limits().max_rows);
  std::vector<std::vector<int>> places(3);
  for (order.Start(run.run, plan); !order.done(); order.Take(false)) {
    if (order.next().target < 0) places[size_t(order.next().row)].push_back(order.next().place);
  }
  EXPECT_THAT(places[0], ElementsAre(2, 5, 8, 11));
  EXPECT_THAT(places[1], ElementsAre(3, 6, 9, 12));
  EXPECT_THAT(places[2], ElementsAre(4, 7, 10, 13));
}

TEST(CheckCudaRunTest, EveryBreachOfTheContractIsRefused) {
  const auto refused = [](OwnedRun run) {
    return CheckCudaRun(run.run, Limits(), Config()).code() == absl::StatusCode::kInternal;
  };
  OwnedRun run = OneRow({1});
  EXPECT_FALSE(refused(run));
  for (const Slot slot : {0, -1, 41}) {
    run = OneRow({1});
    run.run.rows[0].slot = slot;
    EXPECT_TRUE(refused(run)) << slot;
  }
  for (const int32_t token : {-1, 10}) EXPECT_TRUE(refused(OneRow({token})));
  EXPECT_TRUE(refused(OneRow({})));
  EXPECT_TRUE(refused(OneRow(std::vector<int32_t>(65, 1)))) << "tokens";
  run = OneRow({1});
  run.run.num_steps = 9;
  EXPECT_TRUE(refused(run)) << "steps";
  run = OneRow({1});
  run.run.rows[0].sample = true;
  EXPECT_TRUE(refused(run)) << "max_samples 0";
  run = OneRow({1});
  run.run.rows[0].position = -1;
  EXPECT_TRUE(refused(run)) << "position";
  for (const std::vector<int32_t>& targets : {std::vector<int32_t>{1, 2}, {10}}) {
    run = OneRow({1});
    run.owned[0].targets = targets;
    run.Finish();
    EXPECT_TRUE(refused(run)) << "targets";
  }
  float somewhere = 0;
  run = OneRow({1});
  run.owned[0].outputs = {{1, &somewhere}};
  run.Finish();
  EXPECT_TRUE(refused(run)) << "outputs";
  run = OneRow({1});
  run.run.rows.resize(17, run.run.rows[0]);
  EXPECT_TRUE(refused(run)) << "rows";
  run.run.rows.clear();
  EXPECT_TRUE(refused(run)) << "no rows";
}

}  // namespace
}  // namespace rivulet
