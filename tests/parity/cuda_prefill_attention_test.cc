// SPDX-License-Identifier: Apache-2.0
// Long segments: the same bits as tokens one after another.
#include <algorithm>
#include <cmath>

#include "tests/support/cuda_attention_case.h"

namespace rivulet::kernels::cuda_prefill_attention_test {
namespace {

using Case = AttentionCase;
using Shape = AttentionShape;

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

// `num_long` of the segments as long ones; `machine`: multiprocessors, which decide the
// arrangement. `half`: where not null, outputs go there.
RowsAndStates Feed(const Case& c, const Prompts& prompts, int num_long, int machine,
                   CudaLaunch launch, std::vector<uint16_t>* half = nullptr) {
  launch.multiprocessors = machine;
  DeviceAttention on(c, prompts.segments, StatesOf(c, prompts.slots));
  const DeviceArray<float> features(size_t(c.rows + num_long) *
                                    size_t(AttentionFeatureFloats(c.layout)));
  const DeviceArray<uint16_t> halves(c.y_size());
  on.args.num_long = num_long;
  on.args.features = features.data();
  on.args.rows = c.rows;
  if (half != nullptr) on.args.out = nullptr, on.args.out_half = halves.data();
  EXPECT_EQ(AttentionCuda(launch, on.args), cudaSuccess);
  if (half != nullptr) *half = halves.Copy();
  return {on.out.Copy(), on.states.Copy()};
}

constexpr int kFew = 1 << 20, kMany = 1;  // multiprocessors that make for each arrangement

void ExpectSameBits(const Shape& shape, const std::vector<int>& lengths, CudaLaunch launch) {
  Prompts prompts(lengths);
  const Case c(shape, prompts.rows);
  const RowsAndStates stepped = Feed(c, prompts, 0, 1, launch);
  const int all = int(lengths.size());
  for (const auto& [num_long, machine] : {std::pair{all, kFew}, {(all + 1) / 2, kMany}}) {
    const RowsAndStates fed = Feed(c, prompts, num_long, machine, launch);
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
    const RowsAndStates expected = ExpectedOf(c, prompts.segments, prompts.slots);
    const RowsAndStates fed = Feed(c, prompts, 2, kFew, {});
    ASSERT_TRUE(Near(fed.y, expected.y, Relative(5e-5))) << "seed " << shape.seed;
    ASSERT_TRUE(Near(fed.states, expected.states, Relative(1e-5))) << "seed " << shape.seed;
  }
}

TEST(CudaPrefillAttentionTest, HalvesAreTheOutputsRounded) {
  ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
  for (const Shape& shape : {Shape{FeatureMapKind::kElu, 2, 32, 32, 0, false, 1},
                             Shape{FeatureMapKind::kElu, 2, 6, 10, 0, false, 2}}) {
    const Prompts prompts({33, 2});
    const Case c(shape, prompts.rows);
    const RowsAndStates whole = Feed(c, prompts, 1, kMany, {});
    std::vector<uint16_t> halves;
    Feed(c, prompts, 1, kMany, {}, &halves);
    ASSERT_TRUE(Rounded(halves, whole.y,
                        [&](size_t i) { return int(i) % c.LdOut() < c.s.heads * c.s.value_dim; }));
  }
}

TEST(CudaPrefillAttentionTest, ANotANumberStaysInItsRowAndItsSlot) {
  ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
  const Prompts prompts({20, 20});
  Case c({FeatureMapKind::kElu, 1, 32, 32, 0, false, 1}, prompts.rows);
  std::fill_n(c.qkv.begin() + 7 * c.ld, 64, std::numeric_limits<float>::quiet_NaN());
  for (const int machine : {kFew, kMany}) {
    const RowsAndStates fed = Feed(c, prompts, 2, machine, {});
    for (int r = 0; r < c.rows; ++r) {
      const bool poisoned = r >= 7 && r < 20;
      ASSERT_EQ(std::isnan(fed.y[size_t(r * c.LdOut())]), poisoned) << r;
    }
  }
}

TEST(CudaPrefillAttentionTest, LongSegmentsNeedTheirScratch) {
  const Prompts prompts({20});
  const Case c({FeatureMapKind::kElu, 1, 32, 32, 0, false, 1}, prompts.rows);
  DeviceAttention on(c, prompts.segments, StatesOf(c, 3));
  on.args.num_long = 1;
  EXPECT_EQ(AttentionCuda({}, on.args), cudaErrorInvalidValue);
  on.args.num_long = 2;
  on.args.features = on.out.data();
  on.args.rows = c.rows;
  EXPECT_EQ(AttentionCuda({}, on.args), cudaErrorInvalidValue) << "more than there are";
}

}  // namespace
}  // namespace rivulet::kernels::cuda_prefill_attention_test
