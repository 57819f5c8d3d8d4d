// SPDX-License-Identifier: Apache-2.0
// Histogram: counts values in fixed buckets of relaxed atomics. The measuring thread never waits
// for a reading thread; the histogram of prometheus-cpp has a mutex.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rivulet {

// Thread: Observe from one thread at a time, Read from any.
class Histogram {
 public:
  static constexpr size_t kMaxBounds = 24;

  // `bounds`: upper ends of the buckets, ascending, each inclusive; borrowed, they outlive the
  // histogram. One more bucket, for values above all bounds, is added. REQUIRES (else the process
  // ends): 1 to kMaxBounds bounds.
  explicit Histogram(std::span<const double> bounds);

  // A negative value, for example of a clock that was set back, counts as 0.
  void Observe(double value);

  struct Reading {
    std::span<const double> bounds;
    std::vector<int64_t> counts;  // [bounds + 1] of each bucket alone; last: above all bounds
    double sum = 0;  // of the values; may lack the value of an Observe that runs meanwhile
    int64_t total() const;
  };
  Reading Read() const;

 private:
  const std::span<const double> bounds_;
  std::array<std::atomic<int64_t>, kMaxBounds + 1> counts_{};
  std::atomic<double> sum_ = 0;
};

}  // namespace rivulet
