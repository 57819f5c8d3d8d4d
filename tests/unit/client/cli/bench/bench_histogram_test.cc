// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <latch>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace rivulet {
namespace {

TEST(HistogramTest, AgreesWithASortWithinTheStatedError) {
  std::mt19937_64 random(7);
  for (const int n : {1, 2, 3, 10, 999, 1000, 100'000}) {
    BenchHistogram histogram;
    std::vector<int64_t> values;
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      // From one nanosecond to hours, equally many in every decade.
      const double exponent = static_cast<double>(random() >> 11) * 0x1p-53 * 13;
      values.push_back(static_cast<int64_t>(std::pow(10, exponent)));
      histogram.Record(values.back());
      sum += static_cast<double>(values.back());
    }
    std::sort(values.begin(), values.end());
    EXPECT_EQ(histogram.count(), n);
    EXPECT_EQ(histogram.min(), values.front());
    EXPECT_EQ(histogram.max(), values.back());
    EXPECT_NEAR(histogram.mean(), sum / n, sum / n * 1e-9);
    for (const double q : {0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      const auto rank = std::clamp(static_cast<int>(std::ceil(q * n - 1e-9)), 1, n);
      const auto exact = static_cast<double>(values[static_cast<size_t>(rank) - 1]);
      EXPECT_NEAR(histogram.Quantile(q), exact, exact * BenchHistogram::kRelativeError)
          << "q " << q << " of " << n;
    }
  }
}

TEST(HistogramTest, BucketsCoverEveryValueOnceAndAreNarrow) {
  std::vector<int64_t> values = {0, 1, std::numeric_limits<int64_t>::max() - 1};
  for (int shift = 1; shift < 63; ++shift) {
    for (const int64_t near : {-1, 0, 1}) values.push_back((int64_t{1} << shift) + near);
  }
  for (const int64_t value : values) {
    BenchHistogram histogram;
    histogram.Record(value);
    const auto buckets = histogram.NonEmptyBuckets();
    ASSERT_EQ(buckets.size(), 1u);
    EXPECT_EQ(buckets[0].count, 1);
    EXPECT_LE(buckets[0].low, value);
    EXPECT_GT(buckets[0].high, value);
    EXPECT_LE(
        static_cast<double>(buckets[0].high - buckets[0].low),
        std::max(1.0, static_cast<double>(value) * 2 * BenchHistogram::kRelativeError * 1.0001));
  }
}

TEST(HistogramTest, NeighbouringBucketsLeaveNoGap) {
  BenchHistogram histogram;
  for (int64_t value = 0; value < 5000; ++value) histogram.Record(value);
  int64_t end = 0;
  for (const BenchHistogram::Bucket& bucket : histogram.NonEmptyBuckets()) {
    EXPECT_EQ(bucket.low, end);
    end = bucket.high;
  }
  EXPECT_GE(end, 5000);
}

TEST(HistogramTest, IsZeroWithoutValuesAndClipsNegativeOnes) {
  BenchHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.min(), 0);
  EXPECT_EQ(histogram.mean(), 0);
  EXPECT_TRUE(histogram.NonEmptyBuckets().empty());
  histogram.Record(-5);
  EXPECT_EQ(histogram.count(), 1);
  EXPECT_EQ(histogram.max(), 0);
}

TEST(HistogramTest, LosesNothingToThreadsThatRecordAtOnce) {
  // Few values, so that the threads meet in the same buckets.
  constexpr int kThreads = 4, kEach = 400'000;
  BenchHistogram histogram;
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int i = 0; i < kEach; ++i) histogram.Record(1 + i % 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.count(), kThreads * kEach);
  EXPECT_EQ(histogram.min(), 1);
  EXPECT_EQ(histogram.max(), 4);
  const auto buckets = histogram.NonEmptyBuckets();
  ASSERT_EQ(buckets.size(), 4u);
  for (const BenchHistogram::Bucket& bucket : buckets)
    EXPECT_EQ(bucket.count, kThreads * kEach / 4);
  EXPECT_DOUBLE_EQ(histogram.mean(), 2.5);
}

}  // namespace
}  // namespace rivulet
