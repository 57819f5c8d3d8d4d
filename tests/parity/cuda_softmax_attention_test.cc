// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <string>

#include "kernels/cuda/attention/softmax_attention_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuts.h"
#include "tests/support/softmax_attention_case.h"

namespace rivulet::kernels::cuda_softmax_attention_test {
namespace {

constexpr int kHeads = 2, kSlots = 3, kBefore = 16;  // floats of a slot before the layer
constexpr int kLong = 150, kShort = 9;               // tokens of sequences 0 and 2
constexpr float kOutputScale = 1.5f;

using Case = SoftmaxAttentionCase;

// Slots with tokens, in the order of their segments.
struct Sequence {
  int slot, tokens;
  int first_row() const { return slot * kLong; }
};
constexpr Sequence kSequences[] = {{2, kLong}, {0, kShort}};

// By the reference, a head at a time.
RowsAndStates ExpectedOf(const Case& c) {
  RowsAndStates result = Start(c);
  for (const Sequence& s : kSequences) {
    for (int h = 0; h < kHeads; ++h) {
      SoftmaxAttentionRef(c.Args(s.slot, 0, s.tokens, result.y.data(), result.states.data(), h));
    }
    for (int t = s.first_row(); t < s.first_row() + s.tokens; ++t) {
      for (int i = 0; i < c.width(); ++i) result.y[size_t(t * c.ld_y() + i)] *= kOutputScale;
    }
  }
  return result;
}

// How the tokens are dealt out to passes, and what a pass may use.
struct Way {
  int chunk;  // tokens of a segment
  int multiprocessors = 1;
  bool spread = false;   // there is scratch for it
  int padding_rows = 0;  // of many, thread blocks take rows instead of segments
  bool half = false;
  int lead = 0;  // tokens of the first pass, where not `chunk`
};

// Both sequences, up to `chunk` tokens of each a pass, and a segment that is not active.
RowsAndStates RunCuda(CudaLaunch launch, const Case& c, const Way& way) {
  launch.multiprocessors = way.multiprocessors;
  const DeviceArray<float> states(c.states);
  RowsAndStates result = Start(c);
  for (int t = 0, chunk = 0; t < kLong; t += chunk) {
    chunk = t == 0 && way.lead > 0 ? way.lead : way.chunk;
    std::vector<CudaSegment> list = {{1, 0, 0, 0}};
    std::vector<int> from;  // the rows of the pass
    std::vector<int64_t> at;
    for (const Sequence& s : kSequences) {
      const int count = std::clamp(s.tokens - t, 0, chunk);
      list.push_back({s.slot, int(from.size()), count, 0});
      for (int i = 0; i < count; ++i) from.push_back(s.first_row() + t + i), at.push_back(t + i);
    }
    const int active = int(from.size()), rows = active + way.padding_rows;
    std::vector<float> given(size_t(rows * c.ld()), std::numeric_limits<float>::quiet_NaN());
    at.resize(size_t(rows));
    for (int r = 0; r < active; ++r) {
      std::copy_n(c.rows.begin() + from[size_t(r)] * c.ld(), c.ld(), given.begin() + r * c.ld());
    }
    const DeviceArray<CudaSegment> segments(list);
    const DeviceArray<int64_t> positions(at);
    const DeviceArray<float> in(given), out(std::vector<float>(size_t(rows * c.ld_y()), 7.0f)),
        partials(size_t(rows) * SoftmaxPartialFloats(kHeads * c.queries, c.value_dim, c.blocks));
    const DeviceArray<uint16_t> half(std::vector<uint16_t>(out.size()));
    CudaSoftmaxAttentionArgs args;
    args.segments = segments.data();
    args.num_segments = int(list.size());
    args.rows = rows;
    args.positions = positions.data();
    args.in = in.data();
    args.ld_in = c.ld();
    args.k = c.k();
    args.v = c.v();
    args.out = way.half ? nullptr : out.data();
    args.out_half = way.half ? half.data() : nullptr;
    args.ld_out = c.ld_y();
    args.heads = kHeads;
    args.queries = c.queries;
    args.key_dim = c.key_dim;
    args.value_dim = c.value_dim;
    args.window = c.window;
    args.ring = c.ring;
    args.scale = Case::kScale;
    args.output_scale = kOutputScale;
    args.states = states.data();
    args.floats_per_slot = c.floats_per_slot();
    args.kept = kBefore;
    args.block_stride = c.stride();
    args.partials = way.spread ? partials.data() : nullptr;
    args.partial_floats = partials.size();
    args.max_blocks = c.blocks;
    EXPECT_EQ(SoftmaxAttentionCuda(launch, args), cudaSuccess);
    std::vector<float> got = out.Copy();
    if (way.half) {
      const std::vector<uint16_t> bits = half.Copy();
      std::transform(bits.begin(), bits.end(), got.begin(), F16ToF32);
    }
    for (int r = 0; r < active; ++r) {
      std::copy_n(got.begin() + r * c.ld_y(), c.ld_y(),
                  result.y.begin() + from[size_t(r)] * c.ld_y());
    }
  }
  result.states = states.Copy();
  return result;
}

std::vector<Case> Cases(const std::vector<int>& windows) {
  return SoftmaxAttentionCases(windows, kLong, kHeads, kSlots, kBefore);
}

TEST(CudaSoftmaxAttentionTest, EqualsTheReferenceAtEveryHeadSizeAndKeepsKeysAndValues) {
  for (const Case& c : Cases({0, 1, 66})) {
    SCOPED_TRACE(Name(c));
    const RowsAndStates expected = ExpectedOf(c);
    const RowsAndStates whole = RunCuda({}, c, {.chunk = kLong});
    ASSERT_TRUE(SameBits(whole.states, expected.states));
    ASSERT_TRUE(Near(whole.y, expected.y, 5e-5));
  }
}

TEST(CudaSoftmaxAttentionTest, EveryCutAndEveryWayHasTheSameBits) {
  for (const Case& c : Cases({0, 63})) {
    SCOPED_TRACE(Name(c));
    const bool small = c.queries * c.value_dim < 64;
    const RowsAndStates whole = RunCuda({}, c, {.chunk = kLong});
    // Token by token is slow on the emulator: of long heads those around the end of a block.
    const int lead = small ? 0 : 122;
    const std::vector<Way> ways = {
        {.chunk = 70, .spread = true, .padding_rows = 5},
        {.chunk = 13, .padding_rows = 40, .lead = lead},
        {.chunk = small ? 1 : 8, .lead = lead},
        {.chunk = small ? 1 : 7, .multiprocessors = 3, .spread = true, .lead = lead}};
    for (const Way& way : ways) {
      SCOPED_TRACE(std::to_string(way.chunk) + (way.spread ? " spread" : ""));
      const RowsAndStates cut = RunCuda({}, c, way);
      ASSERT_TRUE(SameBits(cut.y, whole.y));
      ASSERT_TRUE(SameBits(cut.states, whole.states));
    }
  }
}

TEST(CudaSoftmaxAttentionTest, AnyOrderOfThreadsAndBlocksHasTheSameBits) {
  for (const int window : {0, 66}) {
    const Case c(8, 20, 3, window, kLong, kHeads, kSlots, kBefore);
    const RowsAndStates whole = RunCuda({}, c, {.chunk = kLong});
    ForEachOrder([&](const CudaLaunch& launch) {
      for (const Way& way :
           {Way{.chunk = 64}, Way{.chunk = 5, .multiprocessors = 3, .spread = true}}) {
        const RowsAndStates again = RunCuda(launch, c, way);
        ASSERT_TRUE(SameBits(again.y, whole.y)) << way.chunk;
        ASSERT_TRUE(SameBits(again.states, whole.states)) << way.chunk;
      }
    });
  }
}

TEST(CudaSoftmaxAttentionTest, OutputsMayBeHalves) {
  const Case c(8, 20, 3, 0, kLong, kHeads, kSlots, kBefore);
  const RowsAndStates whole = RunCuda({}, c, {.chunk = kLong});
  for (const Way& way : {Way{.chunk = kLong, .half = true},
                         Way{.chunk = 5, .multiprocessors = 3, .spread = true, .half = true}}) {
    const RowsAndStates half = RunCuda({}, c, way);
    for (int t = 0; t < c.slots * kLong; ++t) {
      for (int i = 0; i < c.width(); ++i) {
        const auto at = size_t(t * c.ld_y() + i);
        ASSERT_EQ(half.y[at], F16ToF32(F32ToF16(whole.y[at]))) << way.chunk << " at " << at;
      }
    }
  }
}

// Whatever a token holds, those before it do not see it, also in one pass.
TEST(CudaSoftmaxAttentionTest, WhatIsNotFiniteReachesOnlyTheTokensThatSeeIt) {
  const Case c(8, 8, 1, 0, kLong, kHeads, kSlots, kBefore);
  const float bad = std::numeric_limits<float>::quiet_NaN();
  const int first = kSequences[0].first_row();
  for (const int column : {0, c.k(), c.v()}) {  // of head 0
    Case broken = c;
    broken.rows[size_t((first + 70) * c.ld() + column)] = bad;
    for (const Way& way :
         {Way{.chunk = kLong}, Way{.chunk = 1, .multiprocessors = 3, .spread = true}}) {
      const RowsAndStates result = RunCuda({}, broken, way);
      for (int t = 0; t < kLong; ++t) {
        const bool sees = column == 0 ? t == 70 : t >= 70;
        EXPECT_EQ(std::isfinite(result.y[size_t((first + t) * c.ld_y())]), !sees)
            << column << " " << t;
        EXPECT_TRUE(std::isfinite(result.y[size_t((first + t) * c.ld_y() + c.value_dim)])) << t;
      }
    }
  }
}

TEST(CudaSoftmaxAttentionTest, RefusesWhatTheHeaderDoesNotAllow) {
  CudaSegment segment;
  float x[64] = {};
  int64_t position = 0;
  CudaSoftmaxAttentionArgs good;
  good.segments = &segment;
  good.positions = &position;
  good.in = good.out = good.states = x;
  good.ld_in = good.ld_out = 12;
  good.heads = 1;
  good.key_dim = good.value_dim = 4;
  good.k = 4;
  good.v = 8;
  good.block_stride = CacheFloats(4, 4);
  const auto status = [&](auto change) {
    CudaSoftmaxAttentionArgs args = good;
    change(args);
    return SoftmaxAttentionCuda({}, args);
  };
  EXPECT_EQ(status([](auto&) {}), cudaSuccess) << "no segment, no launch";
  EXPECT_EQ(status([](auto& a) { a.key_dim = kMaxCudaSoftmaxDim + 1; }), cudaErrorInvalidValue);
  EXPECT_EQ(status([](auto& a) { a.v = 9; }), cudaErrorInvalidValue);
  EXPECT_EQ(status([](auto& a) { a.block_stride = 500; }), cudaErrorInvalidValue);
  EXPECT_EQ(status([](auto& a) { a.ring = 1; }), cudaErrorInvalidValue);
  EXPECT_EQ(status([](auto& a) { a.out = nullptr; }), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_softmax_attention_test
