// SPDX-License-Identifier: Apache-2.0
// Counts durations in buckets whose width grows with the value, so that every quantile has the same
// relative error in bounded memory, for any number of values and any length of a stall.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace rivulet {

// Log-linear: 128 equal buckets for each power of two, for any number of nanoseconds (59 KiB).
// Thread: Record() any thread, also at the same time. The other methods any thread; during
// recording, their results may lack the latest values.
class BenchHistogram {
 public:
  // The result of Quantile() differs from the true value by at most this share of the true value.
  static constexpr double kRelativeError = 1.0 / 256;

  BenchHistogram();

  // Negative values count as 0.
  void Record(int64_t nanoseconds);

  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  // The next three are exact; 0 if nothing was recorded.
  int64_t min() const;
  int64_t max() const { return max_.load(std::memory_order_relaxed); }
  double mean() const;
  // The `q`-quantile (nearest rank), `q` 0 to 1: the smallest value v such that at least the share
  // `q` of all values is <= v. Within kRelativeError, and in [min, max]. 0 if nothing was recorded.
  double Quantile(double q) const;

  struct Bucket {
    int64_t low, high;  // nanoseconds, low <= value < high
    int64_t count;
  };
  std::vector<Bucket> NonEmptyBuckets() const;  // ascending

 private:
  std::unique_ptr<std::atomic<int64_t>[]> counts_;
  std::atomic<int64_t> count_{0}, max_{0}, min_;
  std::atomic<double> sum_{0};  // whole nanoseconds would overflow after 292 years of latency
};

}  // namespace rivulet
