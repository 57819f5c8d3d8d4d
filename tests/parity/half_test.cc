// SPDX-License-Identifier: Apache-2.0
#include "kernels/half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rivulet::kernels::half_test {
namespace {

TEST(HalfTest, EveryF16AndBf16SurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = F16ToF32(static_cast<uint16_t>(h));
    EXPECT_TRUE(std::isnan(f) || F32ToF16(f) == h) << h;
    const float b = Bf16ToF32(static_cast<uint16_t>(h));
    EXPECT_TRUE(std::isnan(b) || F32ToBf16(b) == h) << h;
  }
}

TEST(HalfTest, BetweenTwoF16TheNearerIsTakenAndTheEvenOneInTheMiddle) {
  for (uint32_t h = 0; h < 0x7BFF; ++h) {
    const float low = F16ToF32(static_cast<uint16_t>(h)), high = F16ToF32(uint16_t(h + 1));
    const float middle = (low + high) / 2;  // exact
    EXPECT_EQ(F32ToF16(middle), h + (h & 1));
    EXPECT_EQ(F32ToF16(std::nextafter(middle, low)), h);
    EXPECT_EQ(F32ToF16(std::nextafter(-middle, -high)), 0x8000u + h + 1);
  }
}

TEST(HalfTest, RoundsToNearestEvenAtTheMiddleAndOverflowsToInfinity) {
  EXPECT_EQ(F16ToF32(F32ToF16(1.0f + 0x1p-11f)), 1.0f);                // tie: even mantissa
  EXPECT_EQ(F16ToF32(F32ToF16(1.0f + 3 * 0x1p-11f)), 1.0f + 0x1p-9f);  // tie: even mantissa above
  EXPECT_EQ(F16ToF32(F32ToF16(1.0f + 0x1.1p-11f)), 1.0f + 0x1p-10f);   // above the middle
  EXPECT_EQ(F16ToF32(F32ToF16(65504.0f)), 65504.0f);
  EXPECT_EQ(F16ToF32(F32ToF16(65519.9f)), 65504.0f);
  EXPECT_TRUE(std::isinf(F16ToF32(F32ToF16(65520.0f))));
  EXPECT_EQ(F16ToF32(F32ToF16(-0x1p-24f)), -0x1p-24f);  // smallest subnormal
  EXPECT_EQ(F16ToF32(F32ToF16(0x1p-25f)), 0.0f);        // tie: even
  EXPECT_EQ(Bf16ToF32(F32ToBf16(1.0f + 0x1p-8f)), 1.0f);
}

}  // namespace
}  // namespace rivulet::kernels::half_test
