// SPDX-License-Identifier: Apache-2.0
// Long segments: the same bits as tokens one after another.
#include <algorithm>
#include <cmath>

#include "kernels/half.h"
#include "tests/support/cuda_attention_case.h"

namespace rivulet::kernels {
namespace {

using Case = AttentionCase;
using Shape = AttentionCaseShape;

// One segment of each length, in slots 1, 2, ...; a slot more that nobody feeds.
struct Prompts {
  explicit Prompts(const std::vector<int>& lengths) {
    for (const int length : lengths) {
      segments.push_back({int32_t(segments.size()) + 1, rows, length, 0});
      rows += length;
    }
    slots = int(segments.size()) + 2;
  }
  std::vector<CudaSegment> segments;
  int rows = 0, slots = 0;
};

struct Result {
  std::vector<float> y, states;
};

// `num_long` of the segments as long ones; `machine`: multiprocessors, which decide the
// arrangement.
Result Feed(const Case& c, const Prompts& prompts, int num_long, int machine, CudaLaunch launch) {
  launch.multiprocessors = machine;
  const DeviceArray<CudaSegment> segments(prompts.segments);
  const DeviceArray<float> in(c.qkv), omega(c.omega), states(StatesOf(c, prompts.slots)),
      out(size_t(c.rows * c.LdOut()));
  const DeviceArray<float> features(size_t(c.rows + num_long) *
                                    size_t(AttentionFeatureFloats(c.layout)));
  CudaAttentionArgs args = c.Args(segments, in, omega, states, out);
  args.num_long = num_long;
  args.features = features.data();
  args.rows = c.rows;
  EXPECT_EQ(AttentionCuda(launch, args), cudaSuccess);
  return {out.Copy(), states.Copy()};
}

constexpr int kFew = 1 << 20, kMany = 1;  // multiprocessors that make for each arrangement

void ExpectSameBits(const Shape& shape, const std::vector<int>& lengths, CudaLaunch launch) {
  Prompts prompts(lengths);
  const Case c(shape, prompts.rows);
  const Result stepped = Feed(c, prompts, 0, 1, launch);
  const int all = int(lengths.size());
  for (const auto& [num_long, machine] : {std::pair{all, kFew}, {(all + 1) / 2, kMany}}) {
    const Result fed = Feed(c, prompts, num_long, machine, launch);
    EXPECT_TRUE(SameBits(fed.y, stepped.y)) << "seed " << shape.seed << " machine " << machine;
    EXPECT_TRUE(SameBits(fed.states, stepped.states))
        << "seed " << shape.seed << " machine " << machine;
  }
}

const std::vector<Shape>& LongShapes() {
  using K = FeatureMapKind;
  static const std::vector<Shape> shapes = {
      {K::kElu, 3, 32, 32, 0, false, 1},
      {K::kElu, 4, 32, 32, 0, true, 2},  // 64 x 32 and others below; gates with every map
      {K::kRfa, 2, 16, 32, 16, true, 3},
      {K::kRandomFourier, 2, 12, 32, 16, true, 4},
      {K::kFavor, 2, 8, 32, 32, false, 5},
      {K::kRfa, 2, 32, 32, 32, true, 6},
      {K::kGeneralizedRandomRelu, 2, 6, 32, 64, true, 7},
      {K::kElu, 2, 64, 64, 0, false, 8},
      {K::kRandomFourier, 1, 10, 64, 32, false, 9},
      {K::kRfa, 1, 64, 64, 64, true, 10},
      {K::kGeneralizedRandomRelu, 1, 2, 64, 128, false, 11},
      {K::kElu, 3, 3, 5, 0, true, 12},  // the generic kernel
  };
  return shapes;
}

TEST(CudaPrefillAttentionTest, EveryShapeMapAndGateHasTheBitsOfSteps) {
  ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
  for (const Shape& shape : LongShapes()) {
    ForEachOrder([&](const CudaLaunch& launch) {
      ExpectSameBits(shape, {17, 36, 1, 0, 5, 16}, launch);
    });
  }
}

TEST(CudaPrefillAttentionTest, EveryLengthHasTheBitsOfSteps) {
  ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
  for (int first = 1; first <= 61; first += 10) {
    std::vector<int> lengths;
    for (int length = first; length < first + 10; ++length) lengths.push_back(length);
    if (first == 61) lengths.push_back(257);
    ExpectSameBits({FeatureMapKind::kElu, 1, 32, 32, 0, first % 20 == 1, uint32_t(first)}, lengths,
                   {});
  }
}

TEST(CudaPrefillAttentionTest, MatchesTheReference) {
  ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
  for (const Shape& shape : LongShapes()) {
    if (shape.kind == FeatureMapKind::kRfa || shape.kind == FeatureMapKind::kRandomFourier)
      continue;
    const Prompts prompts({40, 19});
    const Case c(shape, prompts.rows);
    std::vector<float> states = StatesOf(c, prompts.slots), y(size_t(c.rows * c.LdOut()));
    c.Reference(prompts.segments, &states, &y);
    const Result fed = Feed(c, prompts, 2, kFew, {});
    for (int r = 0; r < c.rows; ++r) {
      for (int i = 0; i < c.s.heads * c.s.value_dim; ++i) {
        const size_t at = size_t(r * c.LdOut() + i);
        ASSERT_NEAR(fed.y[at], y[at], 5e-5 * (1 + std::fabs(y[at]))) << "seed " << shape.seed;
      }
    }
    for (size_t i = 0; i < states.size(); ++i) {
      ASSERT_NEAR(fed.states[i], states[i], 1e-5 * (1 + std::fabs(states[i])))
          << "seed " << shape.seed;
    }
  }
}

TEST(CudaPrefillAttentionTest, HalvesAreTheOutputsRounded) {
  ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
  for (const Shape& shape : {Shape{FeatureMapKind::kElu, 2, 32, 32, 0, false, 1},
                             Shape{FeatureMapKind::kElu, 2, 6, 10, 0, false, 2}}) {
    const Prompts prompts({33, 2});
    const Case c(shape, prompts.rows);
    const Result whole = Feed(c, prompts, 1, kMany, {});
    const DeviceArray<CudaSegment> segments(prompts.segments);
    const DeviceArray<float> in(c.qkv), omega(c.omega), states(StatesOf(c, prompts.slots)), none(0);
    const DeviceArray<float> features(size_t(c.rows + 1) *
                                      size_t(AttentionFeatureFloats(c.layout)));
    const DeviceArray<uint16_t> halves(size_t(c.rows * c.LdOut()));
    CudaAttentionArgs args = c.Args(segments, in, omega, states, none);
    args.out = nullptr;
    args.out_half = halves.data();
    args.num_long = 1;
    args.features = features.data();
    args.rows = c.rows;
    ASSERT_EQ(AttentionCuda({}, args), cudaSuccess);
    const std::vector<uint16_t> y = halves.Copy();
    for (int r = 0; r < c.rows; ++r) {
      for (int i = 0; i < c.s.heads * c.s.value_dim; ++i) {
        const size_t at = size_t(r * c.LdOut() + i);
        ASSERT_EQ(y[at], F32ToF16(whole.y[at])) << r << "," << i;
      }
    }
  }
}

TEST(CudaPrefillAttentionTest, ANotANumberStaysInItsRowAndItsSlot) {
  ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
  const Prompts prompts({20, 20});
  Case c({FeatureMapKind::kElu, 1, 32, 32, 0, false, 1}, prompts.rows);
  std::fill_n(c.qkv.begin() + 7 * c.ld, 64, std::numeric_limits<float>::quiet_NaN());
  for (const int machine : {kFew, kMany}) {
    const Result fed = Feed(c, prompts, 2, machine, {});
    for (int r = 0; r < c.rows; ++r) {
      const bool poisoned = r >= 7 && r < 20;
      ASSERT_EQ(std::isnan(fed.y[size_t(r * c.LdOut())]), poisoned) << r;
    }
  }
}

TEST(CudaPrefillAttentionTest, LongSegmentsNeedTheirScratch) {
  const Prompts prompts({20});
  const Case c({FeatureMapKind::kElu, 1, 32, 32, 0, false, 1}, prompts.rows);
  const DeviceArray<CudaSegment> segments(prompts.segments);
  const DeviceArray<float> in(c.qkv), omega(c.omega), states(StatesOf(c, 3)),
      out(size_t(c.rows * c.LdOut()));
  CudaAttentionArgs args = c.Args(segments, in, omega, states, out);
  args.num_long = 1;
  EXPECT_EQ(AttentionCuda({}, args), cudaErrorInvalidValue);
  args.num_long = 2;
  args.features = out.data();
  args.rows = c.rows;
  EXPECT_EQ(AttentionCuda({}, args), cudaErrorInvalidValue) << "more than there are";
}

}  // namespace
}  // namespace rivulet::kernels
