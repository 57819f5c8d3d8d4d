// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "tests/support/causal_conv_case.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_cuts.h"

namespace rivulet::kernels {
namespace {

using rivulet::testing::CausalConvCases;
using rivulet::testing::DeviceArray;
using rivulet::testing::ExpectTheSameInEveryCut;
using rivulet::testing::ForEachCut;
using rivulet::testing::kCutSlots;
using rivulet::testing::kCutTokens;
using rivulet::testing::kSlotsWithTokens;
using rivulet::testing::RowsAndStates;

using Case = rivulet::testing::CausalConvCase;

std::vector<float> Untouched(const Case& c) { return std::vector<float>(c.y_size(), 7.0f); }

RowsAndStates Expected(const Case& c) {
  RowsAndStates result = {Untouched(c), c.states};
  for (const int slot : kSlotsWithTokens) {
    CausalConvRef(c.Args(slot, 0, kCutTokens, result.y.data(), result.states.data()));
  }
  return result;
}

// Sequences 0 and 2, `chunk` tokens at a time.
RowsAndStates RunCuda(const CudaLaunch& launch, const Case& c, int chunk, int rows) {
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
  args.y = x;
  EXPECT_EQ(CausalConvCuda({}, args), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels
