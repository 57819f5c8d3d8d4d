// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_norm.h"

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

TEST(LayerNormTest, MatchesTheReferenceClearsThePaddingAndHasTheSameBitsOnEveryFusingTarget) {
  for (const int n : {1, 2, 15, 16, 17, 45, 256, 384}) {
    const int ld = n + 5, rows = 3;
    const std::vector<float> x = RandomFloats(size_t(rows * ld), 1, -3, 5);
    const std::vector<float> weight = RandomFloats(size_t(n), 2, 0.5f, 1.5f),
                             bias = RandomFloats(size_t(n), 3);
    LayerNormArgs args;
    args.x = x.data();
    args.weight = weight.data();
    args.bias = bias.data();
    args.rows = rows;
    args.n = n;
    args.ld = ld;
    args.eps = 1e-5f;
    std::vector<float> expected(x.size());
    args.y = expected.data();
    LayerNormRef(args);
    std::vector<float> first;
    ForEachCpuTarget([&](const std::string& target) {
      GuardedFloats y(x.size());
      args.y = y.data();
      LayerNormCpu(args);
      ASSERT_TRUE(y.Intact()) << target;
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(y[i], expected[i], 1e-5) << target << " n " << n;
      std::vector<float> in_place = x;
      LayerNormArgs same = args;
      same.x = same.y = in_place.data();
      LayerNormCpu(same);
      ASSERT_TRUE(SameBits(in_place, y.Copy()));
      if (!CpuTargetFuses()) return;
      if (first.empty()) first = y.Copy();
      ASSERT_TRUE(SameBits(y.Copy(), first)) << target;
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
}  // namespace rivulet::kernels
