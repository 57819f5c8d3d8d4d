// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rivulet {
namespace {

std::vector<int64_t> First(int n, double rate, bool poisson, uint64_t seed) {
  ArrivalSchedule schedule(rate, poisson, seed);
  std::vector<int64_t> times;
  for (int i = 0; i < n; ++i) times.push_back(schedule.Next());
  return times;
}

TEST(ArrivalScheduleTest, ConstantGapsNeverDrift) {
  ArrivalSchedule schedule(3, /*poisson=*/false, 1);
  for (int64_t i = 0; i < 300'000; ++i) {
    EXPECT_NEAR(static_cast<double>(schedule.Next()), static_cast<double>(i) / 3 * 1e9, 1.5);
  }
}

TEST(ArrivalScheduleTest, APoissonScheduleIsRepeatedByItsSeed) {
  EXPECT_EQ(First(1000, 50, true, 7), First(1000, 50, true, 7));
  EXPECT_NE(First(1000, 50, true, 7), First(1000, 50, true, 8));
  // On every machine and with every standard library: the first gap is -ln(1 - u) / rate, with u
  // from the generator's specified first number for this seed.
  std::mt19937_64 random(7);
  const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
  EXPECT_NEAR(static_cast<double>(First(1, 50, true, 7)[0]), -std::log(1 - uniform) / 50 * 1e9, 2);
}

TEST(ArrivalScheduleTest, PoissonGapsAreExponential) {
  constexpr int kGaps = 200'000;
  constexpr double kRate = 1000;
  const std::vector<int64_t> times = First(kGaps, kRate, true, 3);
  double sum = 0, squares = 0, longer = 0;
  int64_t last = 0;
  for (const int64_t time : times) {
    ASSERT_GE(time, last);
    const double gap = static_cast<double>(time - last) * 1e-9 * kRate;  // mean 1
    last = time;
    sum += gap;
    squares += gap * gap;
    if (gap > 2) ++longer;
  }
  // Standard errors of the three are 0.0022, 0.01 and 0.0008.
  EXPECT_NEAR(sum / kGaps, 1, 0.012);
  EXPECT_NEAR(squares / kGaps, 2, 0.06);
  EXPECT_NEAR(longer / kGaps, std::exp(-2), 0.005);
}

}  // namespace
}  // namespace rivulet
