// SPDX-License-Identifier: Apache-2.0
// The head of token models (categorical.h) with a block of 128 threads a row. Included by
// sample_row_cuda.h only. Thread t owns the ids t C .. t C + C - 1, C = ceil(n / 128). All
// functions are called by the whole block and give every thread the same result. Loops over a
// thread's ids are not unrolled: in the end they run a few times, and their code is long.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/categorical.h"
#include "kernels/cuda/common/block_sums_cuda.h"

namespace rivulet::kernels {

// ArgMax(logits, n, banned), and its value.
__device__ inline Best RowArgMax(const float* logits, int n, int32_t banned, RowShared& shared) {
  Best best = {0, -1};
  const Ids ids(n);
#pragma unroll 1
  for (int i = ids.begin; i < ids.end; ++i) {
    if (i != banned || n == 1) best = Better(best, {logits[i], i});
  }
  return BlockBest(best, shared);
}

__device__ inline double RowLogSumExp(const float* logits, int n, RowShared& shared) {
  const float max = RowArgMax(logits, n, -1, shared).value;
  double sum = 0;
  const Ids ids(n);
#pragma unroll 1
  for (int i = ids.begin; i < ids.end; ++i) sum += static_cast<double>(expf(logits[i] - max));
  return static_cast<double>(max) + log(SumInOrder(sum, ids, shared));
}

// KeepLargest(weights, n, by_count, target); a thread touches its own ids only.
__device__ inline void RowKeepLargest(float* weights, int n, bool by_count, double target,
                                      RowShared& shared) {
  const Ids ids(n);
  uint32_t low = 0, high = 0x3F800001u;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const float threshold = __uint_as_float(middle);
    double measure = 0;
#pragma unroll 1
    for (int i = ids.begin; i < ids.end; ++i) {
      if (weights[i] >= threshold) measure += by_count ? 1.0 : static_cast<double>(weights[i]);
    }
    (SumInTree(measure, shared) >= target ? low : high) = middle;
  }
  const float threshold = __uint_as_float(low);
  double above = 0;
  int32_t ties = 0;
#pragma unroll 1
  for (int i = ids.begin; i < ids.end; ++i) {
    if (weights[i] > threshold) above += by_count ? 1.0 : static_cast<double>(weights[i]);
    if (weights[i] == threshold) ++ties;
  }
  above = SumInTree(above, shared);
  // How many ties stay: the first `keep` by id, so many that the measure reaches the target.
  shared.counts[RowThread()] = ties;
  __syncthreads();
  int32_t before = 0;
#pragma unroll 1
  for (int t = 0; t < RowThread(); ++t) before += shared.counts[t];
  const double each = by_count ? 1.0 : static_cast<double>(threshold);
  double keep = each > 0 ? ceil((target - above) / each) : 0;  // (weights of 0 are 0 either way)
  if (keep > 0 && above + (keep - 1) * each >= target) keep -= 1;
  if (above + keep * each < target) keep += 1;
#pragma unroll 1
  for (int i = ids.begin; i < ids.end; ++i) {
    if (weights[i] > threshold) continue;
    if (weights[i] == threshold && static_cast<double>(before) < keep) {
      ++before;
    } else {
      weights[i] = 0;
    }
  }
  __syncthreads();  // counts are read
}

// SampleCategorical(p, logits, n, random): draws from adjusted logits, which are overwritten. They
// were written by the threads that own their ids, or before a barrier.
__device__ inline int32_t RowSample(const CategoricalParams& p, float* logits, int n,
                                    PhiloxWords random, RowShared& shared) {
  const Best likeliest = RowArgMax(logits, n, p.banned, shared);
  if (p.temperature == 0) return likeliest.index;
  const Ids ids(n);
  double mine = 0;
#pragma unroll 1
  for (int i = ids.begin; i < ids.end; ++i) {
    logits[i] = i == p.banned ? 0.0f : expf((logits[i] - likeliest.value) / p.temperature);
    mine += static_cast<double>(logits[i]);
  }
  const bool by_count = p.top_k > 0 && p.top_k < n;
#pragma unroll 1
  for (int filter = 0; filter < 2; ++filter) {  // top_k, top_p
    double target = p.top_k;
    if (filter == 0 ? !by_count : !(p.top_p < 1)) continue;
    if (filter == 1) {
      mine = 0;
#pragma unroll 1
      for (int i = ids.begin; i < ids.end; ++i) mine += static_cast<double>(logits[i]);
      target = static_cast<double>(p.top_p) * SumInOrder(mine, ids, shared);
    }
    RowKeepLargest(logits, n, filter == 0, target, shared);
  }
  if (by_count || p.top_p < 1 || p.min_p > 0) {
    mine = 0;
#pragma unroll 1
    for (int i = ids.begin; i < ids.end; ++i) {
      if (logits[i] < p.min_p) logits[i] = 0;
      mine += static_cast<double>(logits[i]);
    }
  }
  if (RowThread() == 0) shared.chosen = likeliest.index;
  const double total = SumInOrder(mine, ids, shared);
  const double target = UniformOpen(random.word[0], random.word[1]) * total;
  double cumulative = RowThread() == 0 ? 0 : shared.sums[RowThread() - 1];
  // One thread's ids hold the first running sum that reaches the target.
  if (shared.sums[RowThread()] >= target && (RowThread() == 0 || cumulative < target)) {
#pragma unroll 1
    for (int i = ids.begin; i < ids.end; ++i) {
      if (!(logits[i] > 0)) continue;
      cumulative += static_cast<double>(logits[i]);
      shared.chosen = i;  // the last one, should the sum round to just below
      if (cumulative >= target) break;
    }
  }
  __syncthreads();
  const int32_t chosen = shared.chosen;
  __syncthreads();
  return chosen;
}

}  // namespace rivulet::kernels
