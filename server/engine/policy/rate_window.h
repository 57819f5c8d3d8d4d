// SPDX-License-Identifier: Apache-2.0
// RateWindow: a rate per second, over about the last ten buckets of time, in a small and fixed
// amount of memory.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace rivulet {

// The rate covers the last ten full buckets. Thread: external lock.
class RateWindow {
 public:
  explicit RateWindow(absl::Duration bucket) : bucket_(bucket) {}

  void Add(absl::Time now, int64_t count) {
    const int64_t bucket = BucketOf(now);
    Entry& entry = entries_[Index(bucket)];
    if (entry.bucket != bucket) entry = {bucket, 0};
    entry.count += count;
  }

  double PerSecond(absl::Time now) const {
    const int64_t current = BucketOf(now);
    int64_t sum = 0;
    for (const Entry& entry : entries_) {
      if (entry.bucket < current && entry.bucket >= current - kBuckets) sum += entry.count;
    }
    return static_cast<double>(sum) / absl::ToDoubleSeconds(bucket_ * kBuckets);
  }

 private:
  static constexpr int64_t kBuckets = 10;
  struct Entry {
    int64_t bucket = -1;
    int64_t count = 0;
  };
  int64_t BucketOf(absl::Time now) const { return (now - absl::UnixEpoch()) / bucket_; }
  static size_t Index(int64_t bucket) {
    return static_cast<size_t>(static_cast<uint64_t>(bucket) % (kBuckets + 1));
  }

  const absl::Duration bucket_;
  std::array<Entry, kBuckets + 1> entries_;  // the full buckets and the bucket that is filling
};

}  // namespace rivulet
