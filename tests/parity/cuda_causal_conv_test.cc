// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "tests/support/causal_conv_case.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_cuts.h"

namespace rivulet::kernels {
namespace {

using Case = CausalConvCase;

std::vector<float> Untouched(const Case& c) { return std::vector<float>(c.y_size(), 7.0f); }

RowsAndStates Expected(const Case& c) {
  RowsAndStates result = {Untouched(c), c.states};
  for (const int slot : kSlotsWithTokens) {
    CausalConvRef(c.Args(slot, 0, kCutTokens, result.y.data(), result.states.data()));
  }
  return result;
}

// Sequences 0 and 2, `chunk` tokens at a time. `steps`: of device memory.
RowsAndStates RunCuda(const CudaLaunch& launch, const Case& c, int chunk, int rows,
                      const StepSizesArgs& steps = {}) {
  const DeviceArray<float> x(c.x), y(Untouched(c)), weight(c.weight), bias(c.bias),
      states(c.states);
  ForEachCut(chunk, [&](const CudaSegment* segments, int num_segments) {
    CudaCausalConvArgs args;
    args.segments = segments;
    args.num_segments = num_segments;
    args.rows = rows;
    args.x = x.data();
    args.weight = weight.data();
    args.bias = c.bias.empty() ? nullptr : bias.data();
    args.y = y.data();
    args.ld_x = c.ld_x();
    args.ld_y = c.ld_y();
    args.channels = c.channels;
    args.width = c.width;
    args.silu = c.silu;
    args.states = states.data();
    args.floats_per_slot = c.floats_per_slot();
    args.offset = size_t(c.before);
    args.steps = steps;
    EXPECT_EQ(CausalConvCuda(launch, args), cudaSuccess);
    RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
  });
  return {y.Copy(), states.Copy()};
}

TEST(CudaCausalConvTest, EveryWidthMatchesTheReferenceAndEveryCutHasTheSameBits) {
  for (const Case& c : CausalConvCases(kCutSlots, /*before=*/4, kCutTokens)) {
    SCOPED_TRACE(std::to_string(c.width) + " x " + std::to_string(c.channels));
    ExpectTheSameInEveryCut(Expected(c), 3e-6, [&](const CudaLaunch& launch, int chunk, int rows) {
      return RunCuda(launch, c, chunk, rows);
    });
  }
}

TEST(CudaCausalConvTest, StepSizesBesideItMatchTheReferenceAndChangeNothingElse) {
  constexpr int kHeads = 70, kLd = kHeads + 3, kRows = kCutSlots * kCutTokens;
  const Case c = CausalConvCases(kCutSlots, /*before=*/4, kCutTokens)[1];
  const std::vector<float> dt = RandomFloats(size_t(kRows * kLd), 1, -3, 3),
                           bias = RandomFloats(size_t(kHeads), 2),
                           scale = RandomFloats(size_t(kHeads), 3, 0, 1);
  const DeviceArray<float> device_bias(bias), device_scale(scale);
  const RowsAndStates alone = RunCuda({}, c, kCutTokens, kRows);
  for (const float most : {0.6f, std::numeric_limits<float>::infinity()}) {
    StepSizesArgs args;
    args.least = 0.15f;
    args.most = most;
    args.heads = kHeads;
    args.ld = args.ld_w = kLd;
    std::vector<float> expected_dt = dt, expected_w(dt.size(), 7.0f), first_dt, first_w;
    args.bias = bias.data();
    args.scale = scale.data();
    for (const int slot : kSlotsWithTokens) {
      args.dt = expected_dt.data() + slot * kCutTokens * kLd;
      args.w = expected_w.data() + slot * kCutTokens * kLd;
      args.rows = kCutTokens;
      StepSizesRef(args);
    }
    args.bias = device_bias.data();
    args.scale = device_scale.data();
    ForEachOrder([&](const CudaLaunch& launch) {
      for (const int rows : {kRows, kRows + 67}) {
        const DeviceArray<float> device_dt(dt), w(std::vector<float>(dt.size(), 7.0f));
        args.dt = device_dt.data();
        args.w = w.data();
        const RowsAndStates both = RunCuda(launch, c, 3, rows, args);
        ASSERT_TRUE(SameBits(both.y, alone.y) && SameBits(both.states, alone.states));
        const std::vector<float> got_dt = device_dt.Copy(), got_w = w.Copy();
        if (first_dt.empty()) first_dt = got_dt, first_w = got_w;
        ASSERT_TRUE(SameBits(got_dt, first_dt) && SameBits(got_w, first_w));
        for (size_t i = 0; i < dt.size(); ++i) {
          ASSERT_NEAR(got_dt[i], expected_dt[i], 1e-5) << i;
          ASSERT_NEAR(got_w[i], expected_w[i], 1e-5) << i;
        }
      }
    });
  }
}

TEST(CudaCausalConvTest, RefusesWhatTheHeaderDoesNotAllow) {
  CudaSegment segment;
  float x[4] = {}, y[4] = {};
  CudaCausalConvArgs args;
  args.segments = &segment;
  args.x = x;
  args.weight = x;
  args.y = y;
  args.states = x;
  args.ld_x = args.ld_y = args.channels = 4;
  args.width = 4;
  EXPECT_EQ(CausalConvCuda({}, args), cudaSuccess) << "no segment, no launch";
  args.width = kMaxConvWidth + 1;
  EXPECT_EQ(CausalConvCuda({}, args), cudaErrorInvalidValue);
  args.width = 4;
  args.ld_x = 3;
  EXPECT_EQ(CausalConvCuda({}, args), cudaErrorInvalidValue);
  args.ld_x = 4;
  args.steps.heads = args.steps.ld = args.steps.ld_w = 1;
  EXPECT_EQ(CausalConvCuda({}, args), cudaErrorInvalidValue) << "step sizes without arrays";
  args.steps = {};
  args.y = x;
  EXPECT_EQ(CausalConvCuda({}, args), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels
