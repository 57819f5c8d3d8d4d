// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/rate_window.h"

#include <gtest/gtest.h>

namespace rivulet {
namespace {

absl::Time At(int64_t ms) { return absl::FromUnixMillis(1'000'000 + ms); }

TEST(RateWindowTest, IsTheSumOfTheLastSecond) {
  RateWindow rate(absl::Milliseconds(100));
  EXPECT_EQ(rate.PerSecond(At(0)), 0);
  for (int ms = 0; ms < 1000; ms += 50) rate.Add(At(ms), 7);
  EXPECT_EQ(rate.PerSecond(At(1000)), 140);
  EXPECT_EQ(rate.PerSecond(At(1500)), 70);
  EXPECT_EQ(rate.PerSecond(At(2000)), 0);
}

TEST(RateWindowTest, LeavesOutTheBucketThatIsStillFilling) {
  RateWindow rate(absl::Milliseconds(100));
  rate.Add(At(0), 100);
  EXPECT_EQ(rate.PerSecond(At(99)), 0);
  EXPECT_EQ(rate.PerSecond(At(100)), 100);
}

TEST(RateWindowTest, ForgetsWhenALongTimeHasPassed) {
  RateWindow rate(absl::Milliseconds(100));
  rate.Add(At(0), 100);
  rate.Add(At(3'600'000), 5);
  EXPECT_EQ(rate.PerSecond(At(3'600'100)), 5);
}

}  // namespace
}  // namespace rivulet
