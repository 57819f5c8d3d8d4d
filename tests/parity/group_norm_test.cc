// SPDX-License-Identifier: Apache-2.0
#include "kernels/group_norm.h"

#include "tests/support/row_cases.h"

namespace rivulet::kernels::group_norm_test {
namespace {

using Case = GroupNormCase;

TEST(GroupNormTest, MatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  ForEachGroupNorm(
      [](const Case& c) { ExpectRowsOnEveryCpuTarget(c, GroupNormRef, GroupNormCpu, 5e-6); });
}

// A group does not see its neighbours.
TEST(GroupNormTest, AGroupHasTheBitsOfAGroupAloneInPlaceOrNot) {
  ForEachGroupNorm([](const Case& c) {
    GroupNormArgs args = c.args;
    std::vector<float> whole = c.x;
    args.x = args.y = whole.data();
    GroupNormCpu(args);
    const std::vector<float> ones(c.weight.size(), 1.0f), zeros(c.weight.size(), 0.0f);
    for (size_t r = 0; r < c.kRows; ++r) {
      for (size_t g = 0; g < size_t(args.groups); ++g) {
        const size_t first = g * size_t(args.size), at = r * c.stride + first;
        std::vector<float> alone(size_t(args.size));
        GroupNormArgs one = args;
        one.x = &c.x[at];
        one.y = alone.data();
        one.weight = (args.weight == nullptr ? ones.data() : args.weight) + first;
        one.bias = (args.bias == nullptr ? zeros.data() : args.bias) + first;
        one.rows = one.groups = 1;
        GroupNormCpu(one);
        ASSERT_TRUE(SameBits(alone, {&whole[at], &whole[at] + args.size})) << "size " << args.size;
      }
    }
  });
}

TEST(GroupNormTest, AConstantGroupBecomesItsBias) {
  std::vector<float> x = {3, 3, -7, -7}, y(4);
  const std::vector<float> weight = {1, 2, 3, 4}, bias = {0.25f, 0.5f, 0.75f, 1};
  GroupNormArgs args{x.data(), y.data(), weight.data(), bias.data(), 4, 4, 1, 2, 2, 1e-5f};
  GroupNormCpu(args);
  EXPECT_TRUE(SameBits(y, bias));
}

}  // namespace
}  // namespace rivulet::kernels::group_norm_test
