// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.h"

#include "tests/support/kernel_arrays.h"
#include "tests/support/norm_rows.h"

namespace rivulet::kernels {
namespace {

constexpr int kRows = 3, kPadding = 5;

struct Case {
  Case(int count, int length, size_t step, bool with_weight)
      : groups(count),
        size(length),
        stride(size_t(count * length + kPadding)),
        x(RandomFloats(kRows * stride, 1, -3, 5)),
        weight(RandomFloats(size_t(count * length), 2, 0.5f, 1.5f)) {
    args.x = x.data();
    args.weight = with_weight ? weight.data() : nullptr;
    args.x_stride = args.y_stride = stride;
    args.weight_stride = step;
    args.rows = kRows;
    args.groups = count;
    args.size = length;
    args.eps = 1e-5f;
  }
  Case(const Case&) = delete;

  int groups, size;
  size_t stride;
  std::vector<float> x, weight;
  RmsNormArgs args;
};

// Calls f(case): one group and several, a weight for each, one for all and none, odd sizes.
template <class F>
void ForEachCase(const F& f) {
  for (const int size : {1, 2, 15, 16, 17, 45, 256}) {
    for (const int groups : {1, 3}) {
      for (const size_t step : {size_t{0}, size_t(size)}) f(Case(groups, size, step, true));
      f(Case(groups, size, 0, false));
    }
  }
}

TEST(RmsNormTest, MatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  ForEachCase([](const Case& c) { ExpectRowsNormalised(c.args, RmsNormRef, RmsNormCpu, 2e-6); });
}

TEST(RmsNormTest, AGroupAloneInPlaceHasTheBitsItHasBesideOthers) {
  ForEachCase([](const Case& c) {
    RmsNormArgs args = c.args;
    std::vector<float> whole(c.x.size());
    args.y = whole.data();
    RmsNormCpu(args);
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t g = 0; g < size_t(c.groups); ++g) {
        const size_t at = r * c.stride + g * size_t(c.size);
        std::vector<float> alone(&c.x[at], &c.x[at] + c.size);
        RmsNormArgs one = c.args;
        one.x = one.y = alone.data();
        if (one.weight != nullptr) one.weight += g * one.weight_stride;
        one.rows = one.groups = 1;
        RmsNormCpu(one);
        ASSERT_TRUE(SameBits(alone, {&whole[at], &whole[at] + c.size}));
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
}  // namespace rivulet::kernels
