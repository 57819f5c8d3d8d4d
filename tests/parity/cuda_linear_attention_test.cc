// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/support/cuda_attention_case.h"

namespace rivulet::kernels::cuda_linear_attention_test {
namespace {

using Case = AttentionCase;

constexpr int kSlots = 6;

bool IsTrigonometric(FeatureMapKind kind) {
  return kind == FeatureMapKind::kRandomFourier || kind == FeatureMapKind::kSmoothedRandomFourier ||
         kind == FeatureMapKind::kRfa;
}

TEST(CudaLinearAttentionTest, EveryShapeMapGateAndNormalizerMatchesTheReference) {
  // Slot 3: five tokens; slot 1: one; nothing for a slot that does not exist; slot 2: seven.
  const std::vector<CudaSegment> segments = {
      {3, 0, 5, 0}, {1, 5, 1, 1}, {1 << 20, 6, 0, 2}, {2, 7, 7, 3}};
  for (const AttentionShape& shape : AttentionShapes()) {
    const Case c(shape, 14);
    ASSERT_EQ(CheckAttentionCuda(c.layout, c.map), nullptr);
    ASSERT_EQ(PrepareAttentionCuda(), cudaSuccess);
    const RowsAndStates expected = ExpectedOf(c, segments, kSlots);
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceAttention on(c, segments, StatesOf(c, kSlots));
      ASSERT_EQ(AttentionCuda(launch, on.args), cudaSuccess);
      // A sum of cosines may come near zero; then the ratio keeps few digits.
      const double tolerance = IsTrigonometric(shape.kind) ? 2e-3 : 2e-5;
      ASSERT_TRUE(Near(on.out.Copy(), expected.y, Relative(tolerance))) << "seed " << shape.seed;
      ASSERT_TRUE(Near(on.states.Copy(), expected.states, Relative(1e-5))) << "seed " << shape.seed;
    });
  }
}

TEST(CudaLinearAttentionTest, ATokenHasTheSameBitsHoweverItsSegmentIsCutAndInAnyCompany) {
  constexpr int kTokens = 11;
  for (const AttentionShape& shape : AttentionShapes()) {
    const Case c(shape, 2 * kTokens);
    std::vector<float> reference, reference_states;
    ForEachOrder([&](const CudaLaunch& launch) {
      for (const int cut : {kTokens, 1, 4, 5}) {
        DeviceAttention on(c, {{0, 0, 0, 0}}, StatesOf(c, kSlots));
        for (int t = 0; t < kTokens; t += cut) {
          const int count = std::min(cut, kTokens - t);
          // A neighbour in another slot feeds as much, before or after it in the list.
          std::vector<CudaSegment> segments = {{4, t, count, 0}, {2, kTokens + t, count, 1}};
          if (cut % 2 == 0) std::swap(segments[0], segments[1]);
          if (cut == 1) segments.insert(segments.begin(), {0, 0, 0, 2});
          const DeviceArray<CudaSegment> device_segments(segments);
          on.args.segments = device_segments.data();
          on.args.num_segments = int(segments.size());
          ASSERT_EQ(AttentionCuda(launch, on.args), cudaSuccess);
          ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
        }
        const std::vector<float> y = on.out.Copy(), s = on.states.Copy();
        if (reference.empty()) reference = y, reference_states = s;
        ASSERT_TRUE(SameBits(y, reference)) << "seed " << shape.seed << " cut " << cut;
        ASSERT_TRUE(SameBits(s, reference_states)) << "seed " << shape.seed << " cut " << cut;
      }
    });
  }
}

TEST(CudaLinearAttentionTest, LargeArgumentsOfSineAndCosineKeepTheirPrecision) {
  Case c({FeatureMapKind::kRandomFourier, 1, 4, 4, 16, false, 20}, 3);
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < 8; ++i) c.qkv[size_t(t * c.ld + i)] *= t == 0 ? 1.0f : t == 1 ? 2e3f : 1e7f;
  }
  // One token each on its own empty state: S = phi(k) v^T, so S shows the features themselves.
  const std::vector<CudaSegment> segments = {{1, 0, 1, 0}, {2, 1, 1, 1}, {3, 2, 1, 2}};
  const std::vector<float> empty(kSlots * c.layout.floats_per_slot());
  ForEachOrder([&](const CudaLaunch& launch) {
    const DeviceAttention on(c, segments, empty);
    ASSERT_EQ(AttentionCuda(launch, on.args), cudaSuccess);
    const std::vector<float> s = on.states.Copy();
    for (int t = 0; t < 3; ++t) {
      const float* z = &s[size_t(t + 1) * c.layout.floats_per_slot() + c.layout.z_offset(1, 0)];
      for (int column = 0; column < 16; ++column) {
        float u = 0;  // the kernel's own argument, rounded as it rounds
        for (int k = 0; k < 4; ++k) {
          u = std::fmaf(c.qkv[size_t(t * c.ld + 4 + k)], c.omega[size_t(k * 16 + column)], u);
        }
        const double x = double{u * c.map.x_scale};
        ASSERT_NEAR(z[column], std::cos(x) * double{c.map.out_scale}, 1e-7) << x;
        ASSERT_NEAR(z[16 + column], std::sin(x) * double{c.map.out_scale}, 1e-7) << x;
      }
    }
  });
}

TEST(CudaLinearAttentionTest, ANotANumberStaysInItsRowAndItsSlot) {
  for (const AttentionShape& shape : AttentionShapes()) {
    Case c(shape, 2);
    // Queries and keys alone: no feature map may hide it.
    std::fill_n(c.qkv.begin(), 2 * c.s.heads * c.s.key_dim,
                std::numeric_limits<float>::quiet_NaN());
    const DeviceAttention on(c, {{1, 0, 1, 0}, {2, 1, 1, 1}}, StatesOf(c, kSlots));
    ASSERT_EQ(AttentionCuda({}, on.args), cudaSuccess);
    const std::vector<float> y = on.out.Copy();
    for (int i = 0; i < c.s.heads * c.s.value_dim; ++i) {
      ASSERT_TRUE(std::isnan(y[size_t(i)])) << "seed " << shape.seed;
      ASSERT_FALSE(std::isnan(y[size_t(c.LdOut() + i)])) << "seed " << shape.seed;
    }
  }
}

TEST(CudaLinearAttentionTest, ShapesWithoutAKernelAreNamed) {
  FeatureMapArgs map;
  map.key_dim = 6000;
  EXPECT_NE(CheckAttentionCuda({1, 1, 6000, 8}, map), nullptr);
  map.key_dim = 3000;
  EXPECT_EQ(CheckAttentionCuda({1, 1, 3000, 8}, map), nullptr);
  const Case c({FeatureMapKind::kElu, 1, 8, 8, 0, false, 1}, 1);
  DeviceAttention on(c, {{1, 0, 1, 0}}, StatesOf(c, kSlots));
  on.args.ld_qkv = 20;
  EXPECT_EQ(AttentionCuda({}, on.args), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_linear_attention_test
