// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/categorical_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/categorical.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

using DoubleTag = hn::CappedTag<double, 8>;
using HalfTag = hn::Rebind<float, DoubleTag>;  // one float for each double of DoubleTag

// Bits of 2^(i / 32), less i * 2^47: adding k * 2^47 with k % 32 = i gives the bits of 2^(k / 32).
HWY_ALIGN constexpr uint64_t kPowers[32] = {
    0x3ff0000000000000, 0x3fefd9b0d3158574, 0x3fefb5586cf9890f, 0x3fef9301d0125b51,
    0x3fef72b83c7d517b, 0x3fef54873168b9aa, 0x3fef387a6e756238, 0x3fef1e9df51fdee1,
    0x3fef06fe0a31b715, 0x3feef1a7373aa9cb, 0x3feedea64c123422, 0x3feece086061892d,
    0x3feebfdad5362a27, 0x3feeb42b569d4f82, 0x3feeab07dd485429, 0x3feea47eb03a5585,
    0x3feea09e667f3bcd, 0x3fee9f75e8ec5f74, 0x3feea11473eb0187, 0x3feea589994cce13,
    0x3feeace5422aa0db, 0x3feeb737b0cdc5e5, 0x3feec49182a3f090, 0x3feed503b23e255d,
    0x3feee89f995ad3ad, 0x3feeff76f2fb5e47, 0x3fef199bdd85529c, 0x3fef3720dcef9069,
    0x3fef5818dcfba487, 0x3fef7c97337b9b5f, 0x3fefa4afa2a490da, 0x3fefd0765b6e4540};

// e^x for x <= 0 as glibc's expf computes it [Nagy 2018, ARM's optimized routines]: in double, with
// x = (k + r) ln 2 / 32, e^x = 2^(k / 32) P(r) for |r| <= 1/2.
HWY_INLINE hn::Vec<HalfTag> ExpOfNegative(hn::Vec<HalfTag> x) {
  const DoubleTag d;
  const hn::RebindToUnsigned<DoubleTag> du;
  const hn::RebindToSigned<DoubleTag> di;
  // Adding it leaves the nearest integer in a double's lowest bits.
  const auto shift = hn::Set(d, 0x1.8p+52);
  const auto per_ln2 = hn::Set(d, 0x1.71547652b82fep+5);  // 32 / ln 2
  // e^-104 is 0 in float32.
  const auto wide = hn::PromoteTo(d, hn::Max(x, hn::Set(HalfTag(), -104.0f)));
  const auto shifted = hn::MulAdd(per_ln2, wide, shift);
  const auto k = hn::BitCast(du, shifted);
  const auto r = hn::MulSub(per_ln2, wide, hn::Sub(shifted, shift));
  const auto row = hn::BitCast(di, hn::And(k, hn::Set(du, 31)));
  const auto power =
      hn::BitCast(d, hn::Add(hn::GatherIndex(du, kPowers, row), hn::ShiftLeft<47>(k)));
  const auto high =
      hn::MulAdd(hn::Set(d, 0x1.c6af84b912394p-20), r, hn::Set(d, 0x1.ebfce50fac4f3p-13));
  const auto low = hn::MulAdd(hn::Set(d, 0x1.62e42ff0c52d6p-6), r, hn::Set(d, 1.0));
  return hn::DemoteTo(HalfTag(), hn::Mul(hn::MulAdd(high, hn::Mul(r, r), low), power));
}

void RelativeWeights(const float* logits, int32_t n, float max, float temperature, float* weights) {
  const HalfTag d;
  const size_t lanes = hn::Lanes(d), size = size_t(n);
  const auto vmax = hn::Set(d, max), vtemperature = hn::Set(d, temperature), zero = hn::Zero(d);
  const auto weight = [&](hn::Vec<HalfTag> logit) HWY_ATTR {
    // Min: the banned logit may be above `max`.
    return ExpOfNegative(hn::Min(hn::Div(hn::Sub(logit, vmax), vtemperature), zero));
  };
  size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    hn::StoreU(weight(hn::LoadU(d, logits + i)), d, weights + i);
  }
  if (i == size) return;
  const auto rest = hn::FirstN(d, size - i);
  hn::BlendedStore(weight(hn::MaskedLoad(rest, d, logits + i)), rest, d, weights + i);
}

double LogSumExp(const float* logits, int32_t n, float max) {
  constexpr int32_t kBlock = 512;
  float weights[kBlock];
  double sum = 0;
  for (int32_t begin = 0; begin < n; begin += kBlock) {
    const int32_t size = std::min(kBlock, n - begin);
    RelativeWeights(logits + begin, size, max, 1, weights);
    for (int32_t i = 0; i < size; ++i) sum += double{weights[i]};
  }
  return double{max} + std::log(sum);
}

// The largest of x[begin, end), or -infinity.
HWY_INLINE float Largest(const float* x, size_t begin, size_t end) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVec most = hn::Set(d, -std::numeric_limits<float>::infinity());
  size_t i = begin;
  for (; i + lanes <= end; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < end; ++i) largest = std::max(largest, x[i]);
  return largest;
}

int32_t ArgMax(const float* logits, int32_t n, int32_t banned) {
  const FloatTag d;
  const size_t size = size_t(n), lanes = hn::Lanes(d);
  const size_t skipped = banned >= 0 && banned < n ? size_t(banned) : size;
  const float largest =
      std::max(Largest(logits, 0, skipped), Largest(logits, std::min(skipped + 1, size), size));
  const auto first = [&](size_t begin, size_t end) HWY_ATTR {
    size_t i = begin;
    while (i + lanes <= end &&
           hn::AllFalse(d, hn::Eq(hn::LoadU(d, logits + i), hn::Set(d, largest)))) {
      i += lanes;
    }
    while (i < end && logits[i] != largest) ++i;
    return i;
  };
  size_t found = first(0, skipped);
  if (found == skipped && skipped < size) found = first(skipped + 1, size);
  return found < size ? int32_t(found) : 0;  // n is 1 and its id is banned
}

bool AllFinite(const float* x, int32_t n) {
  // One NaN or infinity makes the sum of x * 0 a NaN.
  const float sum = FoldLanes(
      size_t(n),
      [&](size_t i, FloatVec acc) {
        const FloatTag d;
        return hn::MulAdd(hn::LoadU(d, x + i), hn::Zero(d), acc);
      },
      [&](size_t i, float acc) { return acc + x[i] * 0.0f; });
  return sum == 0.0f;
}

// Copies the values of x[0, n) that are at least `threshold`, in order, to `kept`, which may be x.
// Returns their number.
size_t KeepAtLeast(const float* x, size_t n, float threshold, float* kept) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const FloatVec least = hn::Set(d, threshold);
  size_t i = 0, count = 0;
  for (; i + lanes <= n; i += lanes) {
    const FloatVec v = hn::LoadU(d, x + i);
    const auto stays = hn::Ge(v, least);
    // A compressing store is microcode on Zen 4. The full store overwrites only values already
    // read.
    hn::StoreU(hn::Compress(v, stays), d, kept + count);
    count += hn::CountTrue(d, stays);
  }
  for (; i < n; ++i) {
    if (x[i] >= threshold) kept[count++] = x[i];
  }
  return count;
}

// The number of values that are at least `threshold`, or their sum in order.
HWY_INLINE double Measure(const float* x, size_t n, float threshold, bool by_count) {
  double sum = 0;
  int32_t count = 0;
  if (by_count) {
    for (size_t i = 0; i < n; ++i) count += x[i] >= threshold ? 1 : 0;
    return count;
  }
  for (size_t i = 0; i < n; ++i) sum += x[i] >= threshold ? double{x[i]} : 0.0;
  return sum;
}

// Finds the largest threshold with a measure of at least `target` as in categorical.h, but first in
// steps of 16 binary orders down from 2^-8: most weights are below the threshold, and later passes
// leave them out.
void KeepLargest(float* weights, int32_t n, bool by_count, double target, float* kept) {
  uint32_t low = (127u - 8) << 23, high = 0x3F800001u;
  size_t count = 0;
  for (;; low = low > 16u << 23 ? low - (16u << 23) : 0) {
    count = KeepAtLeast(weights, size_t(n), FloatOfBits(low), kept);
    if (low == 0 || Measure(kept, count, FloatOfBits(low), by_count) >= target) break;
    high = low;
  }
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (Measure(kept, count, FloatOfBits(middle), by_count) >= target) {
      low = middle;
      count = KeepAtLeast(kept, count, FloatOfBits(low), kept);
    } else {
      high = middle;
    }
  }
  CutAtThreshold(weights, n, by_count, target, FloatOfBits(low),
                 Measure(kept, count, FloatOfBits(low + 1), by_count));
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(RelativeWeights);
HWY_EXPORT(LogSumExp);
HWY_EXPORT(ArgMax);
HWY_EXPORT(AllFinite);
HWY_EXPORT(KeepLargest);

void RelativeWeightsCpu(const float* logits, int32_t n, float max, float temperature,
                        float* weights) {
  HWY_DYNAMIC_DISPATCH(RelativeWeights)(logits, n, max, temperature, weights);
}
double LogSumExpCpu(const float* logits, int32_t n) {
  return HWY_DYNAMIC_DISPATCH(LogSumExp)(logits, n, logits[ArgMaxCpu(logits, n, -1)]);
}
int32_t ArgMaxCpu(const float* logits, int32_t n, int32_t banned) {
  return HWY_DYNAMIC_DISPATCH(ArgMax)(logits, n, banned);
}
void KeepLargestCpu(float* weights, int32_t n, bool by_count, double target, float* scratch) {
  HWY_DYNAMIC_DISPATCH(KeepLargest)(weights, n, by_count, target, scratch);
}
int32_t SampleCategoricalCpu(const CategoricalParams& p, float* logits, int32_t n,
                             PhiloxWords random, float* scratch) {
  const int32_t likeliest = ArgMaxCpu(logits, n, p.banned);
  if (p.temperature == 0) return likeliest;
  RelativeWeightsCpu(logits, n, logits[likeliest], p.temperature, logits);
  if (p.banned >= 0 && p.banned < n) logits[p.banned] = 0;
  return SampleWeights(p, logits, n, likeliest, random,
                       [scratch](float* weights, int32_t size, bool by_count, double target) {
                         KeepLargestCpu(weights, size, by_count, target, scratch);
                       });
}
bool AllFiniteCpu(const float* x, int32_t n) { return HWY_DYNAMIC_DISPATCH(AllFinite)(x, n); }

}  // namespace rivulet::kernels
#endif
