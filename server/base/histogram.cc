// SPDX-License-Identifier: Apache-2.0
#include "server/base/histogram.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace rivulet {

Histogram::Histogram(std::span<const double> bounds) : bounds_(bounds) {
  const bool ascending = std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<>());
  if (!bounds.empty() && bounds.size() <= kMaxBounds && ascending) return;
  std::fputs("Histogram: the bounds are not 1 to 24 ascending numbers\n", stderr);
  std::abort();
}

void Histogram::Observe(double value) {
  value = std::max(value, 0.0);
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  // With one writer a load and a store are enough, and cheaper than an atomic addition.
  std::atomic<int64_t>& count = counts_[static_cast<size_t>(place)];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  sum_.store(sum_.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

int64_t Histogram::Reading::total() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Histogram::Reading Histogram::Read() const {
  Reading reading;
  reading.bounds = bounds_;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    reading.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  }
  reading.sum = sum_.load(std::memory_order_relaxed);
  return reading;
}

}  // namespace rivulet
