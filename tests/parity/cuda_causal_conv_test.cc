// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/blocks/causal_conv_cuda.h"
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
  Case(int taps, int count, bool with_bias, bool with_silu)
      : width(taps),
        channels(count),
        silu(with_silu),
        x(RandomFloats(size_t(kCutSlots * kCutTokens * ld()), 1)),
        weight(RandomFloats(size_t(taps * count), 2)),
        bias(with_bias ? RandomFloats(size_t(count), 3) : std::vector<float>()),
        states(RandomFloats(kCutSlots * floats_per_slot(), 4)) {}
  int ld() const { return channels + kPadding; }
  size_t floats_per_slot() const { return size_t(kBefore + (width - 1) * channels + 3); }

  int width, channels;
  bool silu;
  std::vector<float> x, weight, bias, states;
};

RowsAndStates Expected(const Case& c) {
  RowsAndStates result = {c.x, c.states};  // y where nothing is written: x
  for (const int slot : kSlotsWithTokens) {
    CausalConvArgs args;
    args.x = c.x.data() + slot * kCutTokens * c.ld();
    args.weight = c.weight.data();
    args.bias = c.bias.empty() ? nullptr : c.bias.data();
    args.y = result.y.data() + slot * kCutTokens * c.ld();
    args.state = result.states.data() + size_t(slot) * c.floats_per_slot() + kBefore;
    args.x_stride = args.y_stride = size_t(c.ld());
    args.tokens = kCutTokens;
    args.channels = c.channels;
    args.width = c.width;
    args.silu = c.silu;
    CausalConvRef(args);
  }
  return result;
}

// Sequences 0 and 2, `chunk` tokens at a time.
RowsAndStates RunCuda(const CudaLaunch& launch, const Case& c, int chunk) {
  const DeviceArray<float> x(c.x), y(c.x), weight(c.weight), bias(c.bias), states(c.states);
  ForEachCut(chunk, [&](const CudaSegment* segments, int num_segments) {
    CudaCausalConvArgs args;
    args.segments = segments;
    args.num_segments = num_segments;
    args.x = x.data();
    args.weight = weight.data();
    args.bias = c.bias.empty() ? nullptr : bias.data();
    args.y = y.data();
    args.ld_x = args.ld_y = c.ld();
    args.channels = c.channels;
    args.width = c.width;
    args.silu = c.silu;
    args.states = states.data();
    args.floats_per_slot = c.floats_per_slot();
    args.offset = kBefore;
    EXPECT_EQ(CausalConvCuda(launch, args), cudaSuccess);
    RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
  });
  return {y.Copy(), states.Copy()};
}

TEST(CudaCausalConvTest, EveryWidthMatchesTheReferenceAndEveryCutHasTheSameBits) {
  for (const int width : {1, 2, 3, 4, 8}) {
    for (const int channels : {1, 63, 70}) {
      const Case c(width, channels, width != 3, channels != 63);
      SCOPED_TRACE(std::to_string(width) + " x " + std::to_string(channels));
      ExpectTheSameInEveryCut(Expected(c), 3e-6, [&](const CudaLaunch& launch, int chunk) {
        return RunCuda(launch, c, chunk);
      });
    }
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
