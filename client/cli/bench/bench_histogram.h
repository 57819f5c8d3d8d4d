// SPDX-License-Identifier: Apache-2.0
// Counts durations in buckets whose width grows with the value, so that every quantile has the same
// relative error in bounded memory, however many values there are and however long a stall is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace rivulet {

// Log-linear: 128 equal buckets for each power of two, for any number of nanoseconds (59 KiB).
// Thread: Record() any thread, also at the same time; the rest once recording has ended, or, while
// it goes on, with values that may lack the latest.
class BenchHistogram {
 public:
  // What Quantile() answers differs from the true value by at most this share of it.
  static constexpr double kRelativeError = 1.0 / 256;

  BenchHistogram();

  // Negative values count as 0.
  void Record(int64_t nanoseconds);

  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  // The next three are exact; 0 where nothing was recorded.
  int64_t min() const;
  int64_t max() const { return max_.load(std::memory_order_relaxed); }
  double mean() const;
  // The smallest value that at least the share `q`, 0 to 1, of all values does not exceed (nearest
  // rank), within kRelativeError and [min, max]. 0 where nothing was recorded.
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
