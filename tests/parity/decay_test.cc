// SPDX-License-Identifier: Apache-2.0
#include "kernels/decay.h"

#include <algorithm>
#include <cmath>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

constexpr DecayKind kAll[] = {DecayKind::kIdentity, DecayKind::kSoftplus, DecayKind::kSigmoid};

TEST(DecayTest, MatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  for (const DecayKind kind : kAll) {
    for (const int n : {1, 7, 16, 45}) {
      for (const int options : {0, 1, 2, 3}) {
        const size_t rows = 3, stride = size_t(n) + 5;
        // A dt is not negative, and its factor not above 1.
        const float low = kind == DecayKind::kIdentity && options % 2 == 0 ? 0.0f : -6.0f;
        const std::vector<float> x = RandomFloats(rows * stride, 1, low, 6),
                                 bias = RandomFloats(size_t(n), 2),
                                 scale = RandomFloats(size_t(n), 3, 0, 1);
        std::vector<float> expected(x.size()), first;
        DecayArgs args;
        args.kind = kind;
        args.negate = options % 2 == 1;
        args.rows = int(rows);
        args.n = n;
        args.x = x.data();
        args.bias = options / 2 == 1 ? bias.data() : nullptr;
        args.scale = scale.data();
        args.y = expected.data();
        args.x_stride = args.y_stride = stride;
        DecayRef(args);
        ForEachCpuTarget([&](const std::string& target) {
          GuardedFloats y(x.size());
          args.y = y.data();
          DecayCpu(args);
          ASSERT_TRUE(y.Intact()) << target;
          for (size_t i = 0; i < x.size(); ++i) {
            if (i % stride >= size_t(n)) {
              ASSERT_TRUE(std::isnan(y[i])) << "outside of the row";
            } else {
              // x + bias is rounded, which moves the exponent by up to 4e-7.
              const double allowed = 1e-6 * (1 + std::fabs(std::log(expected[i]))) * expected[i];
              ASSERT_NEAR(y[i], expected[i], allowed) << target << " kind " << int(kind);
            }
          }
          if (!CpuTargetFuses()) return;
          if (first.empty()) first = y.Copy();
          ASSERT_TRUE(SameBits(y.Copy(), first)) << target << " kind " << int(kind);
        });
      }
    }
  }
}

TEST(DecayTest, TheFloorBoundsTheExponentAndNanStaysNan) {
  const std::vector<float> x = {-100, -1, 3, std::nanf("")}, ones(4, 1.0f);
  ForEachCpuTarget([&](const std::string& target) {
    std::vector<float> y(4);
    DecayArgs args;
    args.kind = DecayKind::kSoftplus;
    args.negate = true;
    args.rows = 1;
    args.n = 4;
    args.x = x.data();
    args.scale = ones.data();
    args.floor = -0.5f;
    args.y = y.data();
    DecayCpu(args);
    EXPECT_NEAR(y[0], std::exp(-0.5), 1e-7) << target;
    EXPECT_NEAR(y[1], std::exp(-0.5), 1e-7) << target;
    EXPECT_NEAR(y[2], 1 / (1 + std::exp(-3.0)), 2e-7) << target;
    EXPECT_TRUE(std::isnan(y[3])) << target;
  });
}

}  // namespace
}  // namespace rivulet::kernels
