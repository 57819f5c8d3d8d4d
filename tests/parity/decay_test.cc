// SPDX-License-Identifier: Apache-2.0
#include "kernels/decay.h"

#include <cmath>

#include "tests/support/row_cases.h"

namespace rivulet::kernels::decay_test {
namespace {

TEST(DecayTest, MatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  // A dt is not negative, and its factor not above 1.
  ForEachDecay(0, [](const DecayCase& c) {
    SCOPED_TRACE(int(c.args.kind));
    // x + bias is rounded, which moves the exponent by up to 4e-7.
    ExpectRowsOnEveryCpuTarget(c, DecayRef, DecayCpu, [](double expected) {
      return 1e-6 * (1 + std::fabs(std::log(expected))) * expected;
    });
  });
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
}  // namespace rivulet::kernels::decay_test
