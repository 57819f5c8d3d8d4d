// SPDX-License-Identifier: Apache-2.0
#include "server/base/histogram.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace rivulet {
namespace {

constexpr double kBounds[] = {0.5, 1, 10};

TEST(HistogramTest, AnUpperEndBelongsToItsBucket) {
  Histogram histogram(kBounds);
  for (const double value : {0.0, 0.5, 0.6, 1.0, 1.1, 10.0, 10.1, 1e9}) histogram.Observe(value);
  const Histogram::Reading reading = histogram.Read();
  EXPECT_EQ(reading.counts, (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(reading.total(), 8);
  EXPECT_DOUBLE_EQ(reading.sum, 0.5 + 0.6 + 1.0 + 1.1 + 10.0 + 10.1 + 1e9);
  EXPECT_EQ(reading.bounds.data(), kBounds);
  EXPECT_EQ(reading.bounds.size(), 3u);
}

TEST(HistogramTest, ANegativeValueCountsAsZero) {
  Histogram histogram(kBounds);
  histogram.Observe(-3);
  EXPECT_EQ(histogram.Read().counts, (std::vector<int64_t>{1, 0, 0, 0}));
  EXPECT_EQ(histogram.Read().sum, 0);
}

TEST(HistogramTest, IsReadWhileItIsWrittenAndLosesNothing) {
  constexpr int64_t kValues = 20000;
  Histogram histogram(kBounds);
  std::thread writer([&] {
    for (int64_t i = 0; i < kValues; ++i) histogram.Observe(i % 2 == 0 ? 0.5 : 1);
  });
  int64_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t total = histogram.Read().total();
    EXPECT_GE(total, before);
    before = total;
  }
  writer.join();
  EXPECT_EQ(histogram.Read().counts, (std::vector<int64_t>{kValues / 2, kValues / 2, 0, 0}));
  EXPECT_DOUBLE_EQ(histogram.Read().sum, 0.75 * kValues);
}

TEST(HistogramDeathTest, BoundsThatAreNotAscendingEndTheProcess) {
  static constexpr double kEqual[] = {1, 1};
  static constexpr double kMany[Histogram::kMaxBounds + 1] = {};
  EXPECT_DEATH(Histogram{kEqual}, "ascending");
  EXPECT_DEATH(Histogram{kMany}, "ascending");
  EXPECT_DEATH(Histogram{std::span<const double>()}, "ascending");
}

}  // namespace
}  // namespace rivulet
