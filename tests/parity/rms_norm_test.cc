// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.h"

#include "tests/support/row_cases.h"

namespace rivulet::kernels::rms_norm_test {
namespace {

using Case = GroupsCase<RmsNormArgs>;

TEST(RmsNormTest, MatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  ForEachRmsNorm(
      [](const Case& c) { ExpectRowsOnEveryCpuTarget(c, RmsNormRef, RmsNormCpu, 2e-6); });
}

TEST(RmsNormTest, AGroupAloneInPlaceHasTheBitsItHasBesideOthers) {
  ForEachRmsNorm([](const Case& c) {
    RmsNormArgs args = c.args;
    std::vector<float> whole(c.x.size());
    args.y = whole.data();
    RmsNormCpu(args);
    for (size_t r = 0; r < c.kRows; ++r) {
      for (size_t g = 0; g < size_t(args.groups); ++g) {
        const size_t at = r * c.stride + g * size_t(args.size);
        std::vector<float> alone(&c.x[at], &c.x[at] + args.size);
        RmsNormArgs one = c.args;
        one.x = one.y = alone.data();
        if (one.weight != nullptr) one.weight += g * one.weight_stride;
        one.rows = one.groups = 1;
        RmsNormCpu(one);
        ASSERT_TRUE(SameBits(alone, {&whole[at], &whole[at] + args.size}));
      }
    }
  });
}

TEST(RmsNormTest, AConstantGroupBecomesItsWeightAndZerosStayZero) {
  std::vector<float> x = {3, 3, 3, 3, 0, 0, 0, 0}, y(8);
  const std::vector<float> weight = {1, 2, 3, 4};
  RmsNormArgs args{x.data(), y.data(), weight.data(), 8, 8, 0, 1, 2, 4, 1e-6f};
  RmsNormCpu(args);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], weight[i], 1e-6);
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(y[i], 0);
}

}  // namespace
}  // namespace rivulet::kernels::rms_norm_test
