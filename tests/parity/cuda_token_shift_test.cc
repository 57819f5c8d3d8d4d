// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/blocks/token_shift_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_cuts.h"
#include "tests/support/token_shift_case.h"

namespace rivulet::kernels {
namespace {

using rivulet::testing::DeviceArray;
using rivulet::testing::ExpectTheSameInEveryCut;
using rivulet::testing::ForEachCut;
using rivulet::testing::kCutSlots;
using rivulet::testing::kCutTokens;
using rivulet::testing::kSlotsWithTokens;
using rivulet::testing::RowsAndStates;
using rivulet::testing::TokenShiftCases;

using Case = rivulet::testing::TokenShiftCase;

std::vector<float> Untouched(const Case& c) { return std::vector<float>(c.y_size(), 7.0f); }

RowsAndStates Expected(const Case& c) {
  RowsAndStates result = {Untouched(c), c.states};
  for (const int slot : kSlotsWithTokens) {
    TokenShiftRef(c.Args(slot, 0, kCutTokens, result.y.data(), result.states.data()));
  }
  return result;
}

// Sequences 0 and 2, `chunk` tokens at a time.
RowsAndStates RunCuda(const CudaLaunch& launch, const Case& c, int chunk, int rows) {
  const DeviceArray<float> x(c.x), y(Untouched(c)), mix(c.mix), states(c.states);
  ForEachCut(chunk, [&](const CudaSegment* segments, int num_segments) {
    CudaTokenShiftArgs args;
    args.segments = segments;
    args.num_segments = num_segments;
    args.rows = rows;
    args.x = x.data();
    args.mix = mix.data();
    args.y = y.data();
    args.ld_x = c.ld_x();
    args.mix_stride = c.mix_stride();
    args.ld_y = c.ld_y();
    args.n = c.n;
    args.mixes = c.mixes;
    args.states = states.data();
    args.floats_per_slot = c.floats_per_slot();
    args.offset = size_t(c.before);
    EXPECT_EQ(TokenShiftCuda(launch, args), cudaSuccess);
    RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
  });
  return {y.Copy(), states.Copy()};
}

TEST(CudaTokenShiftTest, MatchesTheReferenceAndEveryCutHasTheSameBits) {
  for (const Case& c : TokenShiftCases(kCutSlots, /*before=*/4, kCutTokens)) {
    SCOPED_TRACE(std::to_string(c.mixes) + " x " + std::to_string(c.n));
    ExpectTheSameInEveryCut(Expected(c), 1e-6, [&](const CudaLaunch& launch, int chunk, int rows) {
      return RunCuda(launch, c, chunk, rows);
    });
  }
}

TEST(CudaTokenShiftTest, RefusesWhatTheHeaderDoesNotAllow) {
  CudaSegment segment;
  float x[4] = {}, y[24] = {};
  CudaTokenShiftArgs args;
  args.segments = &segment;
  args.x = args.mix = x;
  args.y = y;
  args.states = x;
  args.ld_x = args.ld_y = args.n = args.mix_stride = 4;
  args.mixes = kMaxCudaMixes;
  EXPECT_EQ(TokenShiftCuda({}, args), cudaSuccess) << "no segment, no launch";
  args.mixes = kMaxCudaMixes + 1;
  EXPECT_EQ(TokenShiftCuda({}, args), cudaErrorInvalidValue);
  args.mixes = 2;
  args.mix_stride = 3;
  EXPECT_EQ(TokenShiftCuda({}, args), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels
