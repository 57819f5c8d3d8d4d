// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace rivulet {
namespace {

// Each value below 2^kBits has its own bucket. For a larger value, the kBits bits after the leading
// bit choose the bucket: each power of two has 2^kBits buckets.
constexpr int kBits = 7;
constexpr size_t kNumBuckets = (64 - kBits) << kBits;

size_t BucketOf(int64_t value) {
  const auto v = static_cast<uint64_t>(value);
  const int shift = std::max(static_cast<int>(std::bit_width(v)) - 1 - kBits, 0);
  return (static_cast<size_t>(shift) << kBits) + static_cast<size_t>(v >> shift);
}

BenchHistogram::Bucket BoundsOf(size_t bucket) {
  constexpr size_t kInOne = size_t{1} << kBits;
  const size_t shift = bucket < 2 * kInOne ? 0 : (bucket >> kBits) - 1;
  const uint64_t low = static_cast<uint64_t>(bucket - (shift << kBits)) << shift;
  const uint64_t high =
      std::min<uint64_t>(low + (uint64_t{1} << shift), std::numeric_limits<int64_t>::max());
  return {static_cast<int64_t>(low), static_cast<int64_t>(high), 0};
}

}  // namespace

BenchHistogram::BenchHistogram()
    : counts_(std::make_unique<std::atomic<int64_t>[]>(kNumBuckets)),
      min_(std::numeric_limits<int64_t>::max()) {}

void BenchHistogram::Record(int64_t nanoseconds) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const int64_t value = std::max<int64_t>(nanoseconds, 0);
  counts_[BucketOf(value)].fetch_add(1, kRelaxed);
  count_.fetch_add(1, kRelaxed);
  sum_.fetch_add(static_cast<double>(value), kRelaxed);
  int64_t seen = min_.load(kRelaxed);
  while (value < seen && !min_.compare_exchange_weak(seen, value, kRelaxed)) {
  }
  seen = max_.load(kRelaxed);
  while (value > seen && !max_.compare_exchange_weak(seen, value, kRelaxed)) {
  }
}

int64_t BenchHistogram::min() const {
  return count() == 0 ? 0 : min_.load(std::memory_order_relaxed);
}

double BenchHistogram::mean() const {
  const int64_t n = count();
  return n == 0 ? 0 : sum_.load(std::memory_order_relaxed) / static_cast<double>(n);
}

double BenchHistogram::Quantile(double q) const {
  const int64_t n = count();
  if (n == 0) return 0;
  // Rounding may lift the product just above a whole rank.
  const double exact = q * static_cast<double>(n);
  const auto rank = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(exact * (1 - 1e-14))), 1, n);
  if (rank == n) return static_cast<double>(max());
  int64_t below = 0;
  for (size_t i = 0; i < kNumBuckets; ++i) {
    below += counts_[i].load(std::memory_order_relaxed);
    if (below < rank) continue;
    const Bucket bounds = BoundsOf(i);
    // Values are whole: a bucket of width 1 holds only `low`.
    const double middle =
        (static_cast<double>(bounds.low) + static_cast<double>(bounds.high - 1)) / 2;
    return std::clamp(middle, static_cast<double>(min()), static_cast<double>(max()));
  }
  return static_cast<double>(max());
}

std::vector<BenchHistogram::Bucket> BenchHistogram::NonEmptyBuckets() const {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < kNumBuckets; ++i) {
    const int64_t count = counts_[i].load(std::memory_order_relaxed);
    if (count == 0) continue;
    buckets.push_back(BoundsOf(i));
    buckets.back().count = count;
  }
  return buckets;
}

}  // namespace rivulet
