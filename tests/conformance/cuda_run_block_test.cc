// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_run_block.h"

#include <gmock/gmock.h>

#include <vector>

#include "model/cuda/cuda_prompts.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

TEST(CudaRunBlockTest, LongSegmentsComeFirstAndEachSaysWhoseItIs) {
  BackendLimits limits;
  limits.num_slots = limits.max_rows = 5;
  limits.max_tokens = 100;
  const std::vector<int32_t> tokens(kCudaLongSegment + 4, 1);
  rivulet::Run run;
  for (const int count : {2, kCudaLongSegment, 1, kCudaLongSegment - 1, kCudaLongSegment + 4}) {
    RunRow row;
    row.slot = Slot(run.rows.size()) + 11;
    row.tokens = std::span(tokens).first(size_t(count));
    run.rows.push_back(row);
  }
  CudaRunPlan plan(limits);
  plan.Build(run);
  EXPECT_EQ(plan.num_long, 2);
  std::vector<char> memory(CudaRunBlock::MaxBytes(limits));
  const CudaRunBlock block = CudaRunBlock::Place(memory.data(), 5, plan);
  FillCudaRunBlock(run, plan, 5, 1, block);
  std::vector<std::vector<int>> segments;
  for (int i = 0; i < 5; ++i) {
    const kernels::CudaSegment& s = block.segments[i];
    segments.push_back({s.slot, s.first_row, s.num_rows, s.row});
  }
  EXPECT_THAT(segments, ElementsAre(ElementsAre(12, 2, 16, 1), ElementsAre(15, 34, 20, 4),
                                    ElementsAre(11, 0, 2, 0), ElementsAre(13, 18, 1, 2),
                                    ElementsAre(14, 19, 15, 3)));
}

TEST(CudaPromptsTest, BucketsLeaveAtMostHalfOfTheRowsIdleAndRiseInSteps) {
  EXPECT_THAT(CudaPromptBuckets(7), ElementsAre());
  EXPECT_THAT(CudaPromptBuckets(64), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(CudaPromptBuckets(8192),
              ElementsAre(8, 16, 32, 64, 128, 256, 384, 512, 640, 768, 896, 1024));
}

}  // namespace
}  // namespace rivulet
