// SPDX-License-Identifier: Apache-2.0
#include "server/base/rate_bucket.h"

#include <gtest/gtest.h>

#include <random>

namespace rivulet {
namespace {

constexpr absl::Duration kNoWait = absl::ZeroDuration();
const absl::Time kBegin = absl::FromUnixSeconds(1'800'000'000);

// How many are taken one by one until the bucket is empty.
int TakeAll(RateBucket* bucket, absl::Time now) {
  int taken = 0;
  for (; bucket->TimeUntilOne(now) == kNoWait; ++taken) bucket->Take(1, now);
  return taken;
}

TEST(RateBucketTest, HoldsAMinutesWorthAndRefillsEvenly) {
  RateBucket bucket(60, kBegin);
  EXPECT_EQ(TakeAll(&bucket, kBegin), 60);
  EXPECT_EQ(bucket.TimeUntilOne(kBegin), absl::Seconds(1));
  EXPECT_EQ(bucket.TimeUntilOne(kBegin + absl::Milliseconds(250)), absl::Milliseconds(750));
  EXPECT_EQ(TakeAll(&bucket, kBegin + absl::Seconds(10)), 10);
  EXPECT_EQ(TakeAll(&bucket, kBegin + absl::Hours(1)), 60) << "no more than a minute's worth";
}

TEST(RateBucketTest, WhatIsTakenBeyondItIsOwed) {
  RateBucket bucket(600, kBegin);
  bucket.Take(600 + 99, kBegin);
  EXPECT_EQ(bucket.TimeUntilOne(kBegin), absl::Seconds(10));
  EXPECT_EQ(TakeAll(&bucket, kBegin + absl::Seconds(11)), 11);
}

TEST(RateBucketTest, OneTakenAsOftenAsItSaysGetsTheRate) {
  std::mt19937 random(7);
  for (const int64_t rate : {1, 7, 59, 1000, 123'456'789}) {
    RateBucket bucket(rate, kBegin);
    bucket.Take(rate, kBegin);
    absl::Time now = kBegin;
    for (int i = 0; i < 1000; ++i) {
      const absl::Duration wait = bucket.TimeUntilOne(now);
      // On the way there, too: many small sums.
      if (random() % 2 == 0 && wait > absl::Milliseconds(1)) {
        EXPECT_GT(bucket.TimeUntilOne(now + wait - absl::Milliseconds(2)), kNoWait) << rate;
      }
      now += wait;
      ASSERT_EQ(bucket.TimeUntilOne(now), kNoWait) << rate;
      bucket.Take(1, now);
    }
    const double took = absl::FDivDuration(now - kBegin, absl::Minutes(1));
    EXPECT_GE(took, 999 / static_cast<double>(rate)) << rate;
    EXPECT_LE(took, 1001 / static_cast<double>(rate) + 1) << "each wait is rounded to 1 ms";
  }
}

TEST(RateBucketTest, ANewRateKeepsWhatThereIsUpToItsOwnMinute) {
  RateBucket bucket(60, kBegin);
  bucket.Take(20, kBegin);
  bucket.SetRate(6000, kBegin);
  EXPECT_EQ(TakeAll(&bucket, kBegin), 40);
  EXPECT_EQ(TakeAll(&bucket, kBegin + absl::Seconds(1)), 100) << "at the new rate";
  RateBucket smaller(60, kBegin);
  smaller.SetRate(6, kBegin);
  EXPECT_EQ(TakeAll(&smaller, kBegin), 6);
  RateBucket owing(60, kBegin);
  owing.Take(70, kBegin);
  owing.SetRate(600, kBegin);
  EXPECT_EQ(owing.TimeUntilOne(kBegin), absl::Milliseconds(1100)) << "it owes 10, and needs 1";
}

TEST(RateBucketTest, TimesOutOfOrderRefillNothingTwice) {
  RateBucket bucket(60'000, kBegin);
  bucket.Take(60'000, kBegin);
  absl::Time now = kBegin;
  int taken = 0;
  for (int i = 0; i < 100; ++i) {  // two threads, one of them always 20 ms late
    now += absl::Milliseconds(10);
    taken += TakeAll(&bucket, now);
    taken += TakeAll(&bucket, now - absl::Milliseconds(20));
  }
  EXPECT_NEAR(taken, 1000, 1);
}

TEST(RateBucketTest, RefillsAfterTheClockWasSetBack) {
  RateBucket bucket(60, kBegin);
  bucket.Take(60, kBegin);
  const absl::Time back = kBegin - absl::Hours(1);
  EXPECT_EQ(bucket.TimeUntilOne(back), absl::Seconds(1));
  EXPECT_EQ(TakeAll(&bucket, back + absl::Seconds(5)), 5);
}

}  // namespace
}  // namespace rivulet
