// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "tests/support/causal_conv_case.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_cuts.h"

namespace rivulet::kernels::cuda_causal_conv_test {
namespace {

using Case = CausalConvCase;

// `steps`: of device memory.
RowsAndStates RunCuda(const CudaLaunch& launch, int chunk, int rows, const Case& c,
                      const StepSizesArgs& steps = {}) {
  const DeviceArray<float> weight(c.weight), bias(c.bias);
  return RunCuts<CudaCausalConvArgs>(c, chunk, rows, [&](CudaCausalConvArgs& args) {
    args.weight = weight.data();
    args.bias = c.bias.empty() ? nullptr : bias.data();
    args.channels = c.channels;
    args.width = c.width;
    args.silu = c.silu;
    args.steps = steps;
    return CausalConvCuda(launch, args);
  });
}

TEST(CudaCausalConvTest, EveryWidthMatchesTheReferenceAndEveryCutHasTheSameBits) {
  for (const Case& c : CausalConvCases(kCutSlots, kCutBefore, kCutTokens)) {
    SCOPED_TRACE(std::to_string(c.width) + " x " + std::to_string(c.channels));
    const auto run = [&](const auto&... cut) { return RunCuda(cut..., c); };
    ExpectTheSameInEveryCut(Expected(c, CausalConvRef), 3e-6, run);
  }
}

TEST(CudaCausalConvTest, StepSizesBesideItMatchTheReferenceAndChangeNothingElse) {
  constexpr int kHeads = 70, kLd = kHeads + 3, kRows = kCutRows;
  const Case c = CausalConvCases(kCutSlots, kCutBefore, kCutTokens)[1];
  const std::vector<float> dt = RandomFloats(size_t(kRows * kLd), 1, -3, 3),
                           bias = RandomFloats(size_t(kHeads), 2),
                           scale = RandomFloats(size_t(kHeads), 3, 0, 1);
  const DeviceArray<float> device_bias(bias), device_scale(scale);
  const RowsAndStates alone = RunCuda({}, kCutTokens, kRows, c);
  for (const float most : {0.6f, std::numeric_limits<float>::infinity()}) {
    StepSizesArgs args;
    args.least = 0.15f;
    args.most = most;
    args.heads = kHeads;
    args.ld = args.ld_w = kLd;
    std::vector<float> expected_dt = dt, expected_w(dt.size(), 7.0f), first_dt, first_w;
    args.bias = bias.data();
    args.scale = scale.data();
    for (const int slot : {0, 2}) {
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
        const RowsAndStates both = RunCuda(launch, 3, rows, c, args);
        ASSERT_TRUE(SameBits(both.y, alone.y) && SameBits(both.states, alone.states));
        const std::vector<float> got_dt = device_dt.Copy(), got_w = w.Copy();
        if (first_dt.empty()) first_dt = got_dt, first_w = got_w;
        ASSERT_TRUE(SameBits(got_dt, first_dt) && SameBits(got_w, first_w));
        ASSERT_TRUE(Near(got_dt, expected_dt, 1e-5) && Near(got_w, expected_w, 1e-5));
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
}  // namespace rivulet::kernels::cuda_causal_conv_test
