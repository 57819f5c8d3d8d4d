// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_norm.h"

#include "tests/support/row_cases.h"

namespace rivulet::kernels::layer_norm_test {
namespace {

TEST(LayerNormTest, MatchesTheReferenceClearsThePaddingAndHasTheSameBitsOnEveryFusingTarget) {
  for (const int n : kLayerNormSizes) {
    SCOPED_TRACE(n);
    const LayerNormCase c(n, n + 5);
    ExpectOnEveryCpuTarget(c.expected, 1e-5, [&](float* y) {
      LayerNormCpu(c.Args(c.x.data(), y, c.weight.data(), c.bias.data()));
      std::vector<float> in_place = c.x;
      LayerNormCpu(c.Args(in_place.data(), in_place.data(), c.weight.data(), c.bias.data()));
      ASSERT_TRUE(SameBits(in_place, {y, y + in_place.size()}));
    });
  }
}

TEST(LayerNormTest, AConstantRowBecomesTheBias) {
  const std::vector<float> x(20, 3.0f), weight(20, 2.0f), bias(20, 0.25f);
  std::vector<float> y(20);
  LayerNormArgs args{x.data(), y.data(), weight.data(), bias.data(), 1, 20, 20, 1e-5f};
  LayerNormCpu(args);
  for (const float v : y) EXPECT_EQ(v, 0.25f);
}

}  // namespace
}  // namespace rivulet::kernels::layer_norm_test
