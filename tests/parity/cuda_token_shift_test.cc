// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/blocks/token_shift_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_cuts.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

using rivulet::testing::DeviceArray;
using rivulet::testing::ExpectTheSameInEveryCut;
using rivulet::testing::ForEachCut;
using rivulet::testing::kCutSlots;
using rivulet::testing::kCutTokens;
using rivulet::testing::kSlotsWithTokens;
using rivulet::testing::RandomFloats;
using rivulet::testing::RowsAndStates;

constexpr int kBefore = 4, kPadding = 5;

struct Case {
  Case(int count, int columns)
      : mixes(count),
        n(columns),
        x(RandomFloats(size_t(kCutSlots * kCutTokens * ld()), 1)),
        mix(RandomFloats(size_t(count * columns), 2, 0, 1)),
        states(RandomFloats(kCutSlots * floats_per_slot(), 3)) {}
  int ld() const { return n + kPadding; }
  int ld_y() const { return mixes * ld(); }
  size_t floats_per_slot() const { return size_t(kBefore + n + 3); }
  std::vector<float> Untouched() const {
    return std::vector<float>(size_t(kCutSlots * kCutTokens * ld_y()), 7.0f);
  }

  int mixes, n;
  std::vector<float> x, mix, states;
};

RowsAndStates Expected(const Case& c) {
  RowsAndStates result = {c.Untouched(), c.states};
  for (const int slot : kSlotsWithTokens) {
    TokenShiftArgs args;
    args.x = c.x.data() + slot * kCutTokens * c.ld();
    args.mix = c.mix.data();
    args.y = result.y.data() + slot * kCutTokens * c.ld_y();
    args.state = result.states.data() + size_t(slot) * c.floats_per_slot() + kBefore;
    args.x_stride = size_t(c.ld());
    args.y_stride = size_t(c.ld_y());
    args.mix_stride = size_t(c.ld());
    args.tokens = kCutTokens;
    args.mixes = c.mixes;
    args.n = c.n;
    TokenShiftRef(args);
  }
  return result;
}

// Sequences 0 and 2, `chunk` tokens at a time.
RowsAndStates RunCuda(const CudaLaunch& launch, const Case& c, int chunk) {
  const DeviceArray<float> x(c.x), y(c.Untouched()), mix(c.mix), states(c.states);
  ForEachCut(chunk, [&](const CudaSegment* segments, int num_segments) {
    CudaTokenShiftArgs args;
    args.segments = segments;
    args.num_segments = num_segments;
    args.x = x.data();
    args.mix = mix.data();
    args.y = y.data();
    args.ld_x = args.mix_stride = c.ld();
    args.ld_y = c.ld_y();
    args.n = c.n;
    args.mixes = c.mixes;
    args.states = states.data();
    args.floats_per_slot = c.floats_per_slot();
    args.offset = kBefore;
    EXPECT_EQ(TokenShiftCuda(launch, args), cudaSuccess);
    RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
  });
  return {y.Copy(), states.Copy()};
}

TEST(CudaTokenShiftTest, MatchesTheReferenceAndEveryCutHasTheSameBits) {
  for (const int mixes : {1, 6}) {
    for (const int n : {1, 63, 70}) {
      const Case c(mixes, n);
      SCOPED_TRACE(std::to_string(mixes) + " x " + std::to_string(n));
      ExpectTheSameInEveryCut(Expected(c), 1e-6, [&](const CudaLaunch& launch, int chunk) {
        return RunCuda(launch, c, chunk);
      });
    }
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
