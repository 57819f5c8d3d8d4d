// SPDX-License-Identifier: Apache-2.0
#include "kernels/group_norm.h"

#include "kernels/layer_norm.h"
#include "tests/support/kernel_arrays.h"
#include "tests/support/norm_rows.h"

namespace rivulet::kernels {
namespace {

constexpr int kRows = 3, kPadding = 5;

struct Case {
  Case(int count, int length, bool with_weight, bool with_bias)
      : groups(count),
        size(length),
        stride(size_t(count * length + kPadding)),
        x(RandomFloats(kRows * stride, 1, -3, 5)),
        weight(RandomFloats(size_t(count * length), 2, 0.5f, 1.5f)),
        bias(RandomFloats(size_t(count * length), 3)) {
    args.x = x.data();
    args.weight = with_weight ? weight.data() : nullptr;
    args.bias = with_bias ? bias.data() : nullptr;
    args.x_stride = args.y_stride = stride;
    args.rows = kRows;
    args.groups = count;
    args.size = length;
    args.eps = 64e-5f;
  }
  Case(const Case&) = delete;

  int groups, size;
  size_t stride;
  std::vector<float> x, weight, bias;
  GroupNormArgs args;
};

template <class F>
void ForEachCase(const F& f) {
  for (const int size : {1, 2, 15, 16, 17, 45, 64}) {
    for (const int groups : {1, 3}) {
      for (const bool weight : {true, false}) {
        for (const bool bias : {true, false}) f(Case(groups, size, weight, bias));
      }
    }
  }
}

TEST(GroupNormTest, MatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  ForEachCase(
      [](const Case& c) { ExpectRowsNormalised(c.args, GroupNormRef, GroupNormCpu, 5e-6); });
}

// One group is a layer normalisation, and a group does not see its neighbours.
TEST(GroupNormTest, AGroupHasTheBitsOfALayerNormalisationInPlaceOrNot) {
  ForEachCase([](const Case& c) {
    GroupNormArgs args = c.args;
    std::vector<float> whole = c.x;
    args.x = args.y = whole.data();
    GroupNormCpu(args);
    const std::vector<float> ones(c.weight.size(), 1.0f), zeros(c.weight.size(), 0.0f);
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t g = 0; g < size_t(c.groups); ++g) {
        const size_t first = g * size_t(c.size), at = r * c.stride + first;
        std::vector<float> alone(size_t(c.size));
        LayerNormArgs one;
        one.x = &c.x[at];
        one.y = alone.data();
        one.weight = (args.weight == nullptr ? ones.data() : args.weight) + first;
        one.bias = (args.bias == nullptr ? zeros.data() : args.bias) + first;
        one.rows = 1;
        one.n = one.ld = c.size;
        one.eps = args.eps;
        LayerNormCpu(one);
        ASSERT_TRUE(SameBits(alone, {&whole[at], &whole[at] + c.size})) << "size " << c.size;
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
}  // namespace rivulet::kernels
