// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "kernels/cuda/blocks/token_shift_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_cuts.h"
#include "tests/support/token_shift_case.h"

namespace rivulet::kernels {
namespace {

using Case = TokenShiftCase;

std::vector<float> Untouched(const Case& c) { return std::vector<float>(c.y_size(), 7.0f); }

constexpr float kEps = 1e-3f;
std::vector<float> Weight(const Case& c) { return RandomFloats(size_t(c.n), 7, 0.5f, 1.5f); }
std::vector<float> Bias(const Case& c) { return RandomFloats(size_t(c.n), 8); }

// The case with rows that are normed already, by the kernel that norms alone.
Case Normed(const Case& c) {
  const DeviceArray<float> x(c.x), weight(Weight(c)), bias(Bias(c));
  GroupNormArgs args;
  args.x = args.y = x.data();
  args.x_stride = args.y_stride = size_t(c.ld_x());
  args.weight = weight.data();
  args.bias = bias.data();
  args.rows = kCutSlots * kCutTokens;
  args.size = c.n;
  args.eps = kEps;
  EXPECT_EQ(GroupNormCuda({}, args), cudaSuccess);
  Case normed = c;
  normed.x = x.Copy();
  return normed;
}

RowsAndStates Expected(const Case& given) {
  const Case c = Normed(given);
  RowsAndStates result = {Untouched(c), c.states};
  for (const int slot : kSlotsWithTokens) {
    TokenShiftRef(c.Args(slot, 0, kCutTokens, result.y.data(), result.states.data()));
  }
  return result;
}

// Sequences 0 and 2, `chunk` tokens at a time. `half`: where not null, results go there.
RowsAndStates RunCuda(const CudaLaunch& launch, const Case& c, int chunk, int rows,
                      std::vector<uint16_t>* half = nullptr) {
  const DeviceArray<float> x(c.x), y(Untouched(c)), mix(c.mix), states(c.states), weight(Weight(c)),
      bias(Bias(c));
  const DeviceArray<uint16_t> y_half(y.size());
  ForEachCut(chunk, [&](const CudaSegment* segments, int num_segments) {
    CudaTokenShiftArgs args;
    args.segments = segments;
    args.num_segments = num_segments;
    // As in a step, where blocks take segments.
    args.rows = chunk == 1 && rows == kCutSlots * kCutTokens ? num_segments : rows;
    args.x = x.data();
    args.mix = mix.data();
    args.weight = weight.data();
    args.bias = bias.data();
    args.eps = kEps;
    args.y = half == nullptr ? y.data() : nullptr;
    args.y_half = half == nullptr ? nullptr : y_half.data();
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
  if (half != nullptr) *half = y_half.Copy();
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

TEST(CudaTokenShiftTest, RowsInF16AreTheSameRounded) {
  for (const Case& c : TokenShiftCases(kCutSlots, /*before=*/4, kCutTokens)) {
    for (const int chunk : {1, kCutTokens}) {
      std::vector<uint16_t> halves;
      const RowsAndStates rounded = RunCuda({}, c, chunk, kCutSlots * kCutTokens, &halves);
      const RowsAndStates expected = RunCuda({}, c, chunk, kCutSlots * kCutTokens);
      EXPECT_TRUE(SameBits(rounded.states, expected.states));
      ASSERT_EQ(halves.size(), expected.y.size());
      for (size_t i = 0; i < halves.size(); ++i) {
        const bool written = expected.y[i] != 7.0f;
        ASSERT_EQ(halves[i], written ? F32ToF16(expected.y[i]) : 0xFFFF) << i;
      }
    }
  }
}

TEST(CudaTokenShiftTest, RefusesWhatTheHeaderDoesNotAllow) {
  CudaSegment segment;
  float x[4] = {}, y[24] = {};
  CudaTokenShiftArgs args;
  args.segments = &segment;
  args.x = args.mix = args.weight = args.bias = x;
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
  args.mix_stride = 4;
  EXPECT_EQ(TokenShiftCuda({}, args), cudaSuccess);
  args.y = nullptr;
  EXPECT_EQ(TokenShiftCuda({}, args), cudaErrorInvalidValue) << "no output";
  args.y = y;
  args.ld_x = args.ld_y = args.mix_stride = args.n = kMaxCudaShiftColumns + 1;
  EXPECT_EQ(TokenShiftCuda({}, args), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels
