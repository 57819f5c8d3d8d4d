// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "kernels/cuda/blocks/token_shift_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_cuts.h"
#include "tests/support/token_shift_case.h"

namespace rivulet::kernels::cuda_token_shift_test {
namespace {

using Case = TokenShiftCase;

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
  args.rows = kCutRows;
  args.size = c.n;
  args.eps = kEps;
  EXPECT_EQ(GroupNormCuda({}, args), cudaSuccess);
  Case normed = c;
  normed.x = x.Copy();
  return normed;
}

// `half`: where not null, results go there.
RowsAndStates RunCuda(const CudaLaunch& launch, int chunk, int rows, const Case& c,
                      std::vector<uint16_t>* half = nullptr) {
  const DeviceArray<float> mix(c.mix), weight(Weight(c)), bias(Bias(c));
  const DeviceArray<uint16_t> y_half(c.y_size());
  const RowsAndStates result = RunCuts<CudaTokenShiftArgs>(c, chunk, rows, [&](auto& args) {
    // As in a step, where blocks take segments.
    if (chunk == 1 && rows == kCutRows) args.rows = args.num_segments;
    args.mix = mix.data();
    args.weight = weight.data();
    args.bias = bias.data();
    args.eps = kEps;
    if (half != nullptr) args.y = nullptr, args.y_half = y_half.data();
    args.mix_stride = c.mix_stride();
    args.n = c.n;
    args.mixes = c.mixes;
    return TokenShiftCuda(launch, args);
  });
  if (half != nullptr) *half = y_half.Copy();
  return result;
}

TEST(CudaTokenShiftTest, MatchesTheReferenceAndEveryCutHasTheSameBits) {
  for (const Case& c : TokenShiftCases(kCutSlots, kCutBefore, kCutTokens)) {
    SCOPED_TRACE(std::to_string(c.mixes) + " x " + std::to_string(c.n));
    const auto run = [&](const auto&... cut) { return RunCuda(cut..., c); };
    ExpectTheSameInEveryCut(Expected(Normed(c), TokenShiftRef), 1e-6, run);
  }
}

TEST(CudaTokenShiftTest, RowsInF16AreTheSameRounded) {
  for (const Case& c : TokenShiftCases(kCutSlots, kCutBefore, kCutTokens)) {
    for (const int chunk : {1, kCutTokens}) {
      std::vector<uint16_t> halves;
      const RowsAndStates rounded = RunCuda({}, chunk, kCutRows, c, &halves);
      const RowsAndStates expected = RunCuda({}, chunk, kCutRows, c);
      EXPECT_TRUE(SameBits(rounded.states, expected.states));
      const auto written = [&](size_t i) { return expected.y[i] != 7.0f; };
      ASSERT_TRUE(Rounded(halves, expected.y, written));
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
}  // namespace rivulet::kernels::cuda_token_shift_test
