// SPDX-License-Identifier: Apache-2.0
#include "kernels/sincos.h"

#include <gtest/gtest.h>

#include <random>

namespace rivulet::kernels::sincos_test {
namespace {

TEST(SinCosTest, EqualsTheLongDoubleOfTheLibrary) {
  std::mt19937_64 random(1);
  for (const double most : {1.0, 100.0, 1e4, 1e6, 16777216.0}) {
    std::uniform_real_distribution<double> angles(-most, most);
    for (int i = 0; i < 20000; ++i) {
      const double x = angles(random);
      const SinCos turn(x);
      ASSERT_NEAR(turn.sin, static_cast<double>(std::sin(static_cast<long double>(x))), 1e-15) << x;
      ASSERT_NEAR(turn.cos, static_cast<double>(std::cos(static_cast<long double>(x))), 1e-15) << x;
    }
  }
}

// As another machine or compiler must find them.
TEST(SinCosTest, BitsAreFixed) {
  EXPECT_EQ(SinCos(0).sin, 0.0);
  EXPECT_EQ(SinCos(0).cos, 1.0);
  EXPECT_EQ(SinCos(3).sin, 0x1.210386db6d55bp-3);
  EXPECT_EQ(SinCos(3).cos, -0x1.fae04be85e5d2p-1);
  EXPECT_EQ(SinCos(12345.678).sin, -0x1.687d5890974a5p-1);
  EXPECT_EQ(SinCos(12345.678).cos, 0x1.6b94c3bbe24b8p-1);
}

}  // namespace
}  // namespace rivulet::kernels::sincos_test
