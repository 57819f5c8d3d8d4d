// SPDX-License-Identifier: Apache-2.0
// KeepLargest of categorical.h by a block: which weights a filter keeps. Included by
// categorical_cuda.h only.
//
// A weight in [0, 1] has 30 bits and sorts like its bits. The threshold is found in digits of ten
// bits, from the highest: a pass takes the weights that begin with the digits found so far and
// counts their next digit in 1024 bins of shared memory. The bins are then added from the largest
// down until the measure reaches the target. So three passes find a threshold; a bisection needs
// 30.
//
// Atomic additions come in any order, so bins hold integers: the number of weights, or the sum of
// their mantissas, since all weights in a bin have the same exponent. So a bin's sum is exact. The
// bins are added in double in a fixed order.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/sample/row_sums_cuda.h"

namespace rivulet::kernels {

// The weights that filters have kept: weights above the threshold, and weights equal to it with ids
// up to `last`. At first all weights above 0.
struct Cut {
  float threshold = 0;
  int32_t last = -1;

  __device__ __forceinline__ bool Keeps(float weight, int32_t id) const {
    // No branches: a pass calls this for every weight.
    return static_cast<bool>((weight > threshold) | ((weight == threshold) & (id <= last)));
  }
};

// Fills the bins for the digit above the lowest `shift` bits, over the weights that begin with the
// digits `found`: the number of weights, or the sum of their mantissas as integers.
template <int kAhead>
__device__ __forceinline__ void CountDigits(const float* weights, int n, const Cut& cut,
                                            bool by_count, uint32_t found, int shift) {
  __syncthreads();  // all threads have read the last bins
#pragma unroll 1
  for (int i = RowThread(); i < kDigits; i += RowThreads()) OfRow().low[i] = OfRow().high[i] = 0;
  __syncthreads();
  const uint32_t least = found << kDigitBits << shift, past = 1u << kDigitBits << shift;
  ForEachQuad<kAhead>(weights, n, [&](int first, Quad q) {
    FillTail(first, n, 0, q);
    uint32_t bins[4], amounts[4], before[4] = {};
    bool any = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = __float_as_uint(q.v[i]), mantissa = bits & 0x7FFFFFu;
      const bool counts = cut.Keeps(q.v[i], first + i) & (bits - least < past);
      bins[i] = (bits - least) >> shift;
      amounts[i] = !counts ? 0u : by_count ? 1u : bits == mantissa ? bits : mantissa | 0x800000u;
      any = any | counts;
    }
    if (!any) return;  // the usual case once digits are found
      // First all four additions, then their carries: the result of an addition takes long.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (amounts[i] > 0) before[i] = atomicAdd(&OfRow().low[bins[i]], amounts[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (before[i] + amounts[i] < before[i]) atomicAdd(&OfRow().high[bins[i]], 1u);
    }
  });
  __syncthreads();
}

// The part of the measure in bin `bin`.
__device__ __forceinline__ double Measure(bool by_count, uint32_t found, int shift, int bin) {
  const double sum = OfRow().high[bin] * 4294967296.0 + OfRow().low[bin];
  if (by_count) return sum;
  const uint32_t exponent = (found << kDigitBits | static_cast<uint32_t>(bin)) << shift >> 23;
  return sum * static_cast<double>(__uint_as_float((exponent > 0 ? exponent : 1) << 23)) * 0x1p-23;
}

// The first lane at which `measure` plus the lanes' values so far reaches `target`, else the last
// lane, and the sum before that lane. Whole warps call it.
struct Reach {
  int lane;
  double before;
};
__device__ __forceinline__ Reach FindReach(double measure, double value, double target) {
  const double up_to = SumOfLanesUpTo(value), before = measure + SumOfLanesBefore(up_to);
  const unsigned reach = __ballot_sync(kAllLanes, measure + up_to >= target ? 1 : 0);
  const int lane = reach == 0 ? kWarpLanes - 1 : __ffs(static_cast<int>(reach)) - 1;
  return {lane, __shfl_sync(kAllLanes, before, lane)};
}

// The largest weight w such that the weights >= w reach the target: `target` weights, or the share
// `target` of the sum.
struct Threshold {
  uint32_t bits;
  double above, equal, target;  // measures
};
template <int kAhead>
__device__ __forceinline__ Threshold FindThreshold(const float* weights, int n, const Cut& cut,
                                                   bool by_count, double target) {
  Threshold t = {0, 0, 0, target};
#pragma unroll 1
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    CountDigits<kAhead>(weights, n, cut, by_count, t.bits, shift);
#pragma unroll 1
    for (int g = WarpIndex(); g < kDigitGroups; g += RowWarps()) {
      const int bin = g * kWarpLanes + LaneIndex();
      const double sum = WarpSum(Measure(by_count, t.bits, shift, bin));
      if (LaneIndex() == 0) OfRow().groups[g] = sum;
    }
    __syncthreads();
    // First the group of bins, then the bin in it, from the largest down.
    int digit = 0;
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const int from_top = kWarpLanes - 1 - LaneIndex();
      const double measure = part == 0
                                 ? OfRow().groups[from_top]
                                 : Measure(by_count, t.bits, shift, digit * kWarpLanes + from_top);
      if (part == 0 && shift == 2 * kDigitBits && !by_count) t.target = target * WarpSum(measure);
      const Reach reach = FindReach(t.above, measure, t.target);
      digit = digit * kWarpLanes + kWarpLanes - 1 - reach.lane;
      t.above = reach.before;
      t.equal = __shfl_sync(kAllLanes, measure, reach.lane);
    }
    t.bits = t.bits << kDigitBits | static_cast<uint32_t>(digit);
  }
  return t;
}

}  // namespace rivulet::kernels
