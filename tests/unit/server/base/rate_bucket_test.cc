// SPDX-License-Identifier: Apache-2.0
#include "server/base/rate_bucket.h"

#include <gtest/gtest.h>

#include <random>

namespace rivulet {
namespace {

constexpr absl::Duration kNow = absl::ZeroDuration();
const absl::Time kStart = absl::FromUnixSeconds(1'800'000'000);

// How many are taken one by one until the bucket is empty.
int TakeAll(RateBucket* bucket, absl::Time now) {
  int taken = 0;
  for (; bucket->TimeUntilOne(now) == kNow; ++taken) bucket->Take(1, now);
  return taken;
}

TEST(RateBucketTest, HoldsAMinutesWorthAndRefillsEvenly) {
  RateBucket bucket(60, kStart);
  EXPECT_EQ(TakeAll(&bucket, kStart), 60);
  EXPECT_EQ(bucket.TimeUntilOne(kStart), absl::Seconds(1));
  EXPECT_EQ(bucket.TimeUntilOne(kStart + absl::Milliseconds(250)), absl::Milliseconds(750));
  EXPECT_EQ(TakeAll(&bucket, kStart + absl::Seconds(10)), 10);
  EXPECT_EQ(TakeAll(&bucket, kStart + absl::Hours(1)), 60) << "no more than a minute's worth";
}

TEST(RateBucketTest, WhatIsTakenBeyondItIsOwed) {
  RateBucket bucket(600, kStart);
  bucket.Take(600 + 99, kStart);
  EXPECT_EQ(bucket.TimeUntilOne(kStart), absl::Seconds(10));
  EXPECT_EQ(TakeAll(&bucket, kStart + absl::Seconds(11)), 11);
}

TEST(RateBucketTest, OneTakenAsOftenAsItSaysGetsTheRate) {
  std::mt19937 random(7);
  for (const int64_t rate : {1, 7, 59, 1000, 123'456'789}) {
    RateBucket bucket(rate, kStart);
    bucket.Take(rate, kStart);
    absl::Time now = kStart;
    for (int i = 0; i < 1000; ++i) {
      const absl::Duration wait = bucket.TimeUntilOne(now);
      // On the way there, too: many small sums.
      if (random() % 2 == 0 && wait > absl::Milliseconds(1)) {
        EXPECT_GT(bucket.TimeUntilOne(now + wait - absl::Milliseconds(2)), kNow) << rate;
      }
      now += wait;
      ASSERT_EQ(bucket.TimeUntilOne(now), kNow) << rate;
      bucket.Take(1, now);
    }
    const double took = absl::FDivDuration(now - kStart, absl::Minutes(1));
    EXPECT_GE(took, 999 / static_cast<double>(rate)) << rate;
    EXPECT_LE(took, 1001 / static_cast<double>(rate) + 1) << "each wait is rounded to 1 ms";
  }
}

TEST(RateBucketTest, ANewRateKeepsWhatThereIsUpToItsOwnMinute) {
  RateBucket bucket(60, kStart);
  bucket.Take(20, kStart);
  bucket.SetRate(6000, kStart);
  EXPECT_EQ(TakeAll(&bucket, kStart), 40);
  EXPECT_EQ(TakeAll(&bucket, kStart + absl::Seconds(1)), 100) << "at the new rate";
  RateBucket smaller(60, kStart);
  smaller.SetRate(6, kStart);
  EXPECT_EQ(TakeAll(&smaller, kStart), 6);
  RateBucket owing(60, kStart);
  owing.Take(70, kStart);
  owing.SetRate(600, kStart);
  EXPECT_EQ(owing.TimeUntilOne(kStart), absl::Milliseconds(1100)) << "it owes 10, and needs 1";
}

TEST(RateBucketTest, TimesOutOfOrderRefillNothingTwice) {
  RateBucket bucket(60'000, kStart);
  bucket.Take(60'000, kStart);
  absl::Time now = kStart;
  int taken = 0;
  for (int i = 0; i < 100; ++i) {  // two threads, one of them always 20 ms late
    now += absl::Milliseconds(10);
    taken += TakeAll(&bucket, now);
    taken += TakeAll(&bucket, now - absl::Milliseconds(20));
  }
  EXPECT_NEAR(taken, 1000, 1);
}

TEST(RateBucketTest, RefillsAfterTheClockWasSetBack) {
  RateBucket bucket(60, kStart);
  bucket.Take(60, kStart);
  const absl::Time back = kStart - absl::Hours(1);
  EXPECT_EQ(bucket.TimeUntilOne(back), absl::Seconds(1));
  EXPECT_EQ(TakeAll(&bucket, back + absl::Seconds(5)), 5);
}

}  // namespace
}  // namespace rivulet
