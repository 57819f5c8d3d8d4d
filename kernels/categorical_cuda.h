// SPDX-License-Identifier: Apache-2.0
// The head of token models (categorical.h) with a team of 128 threads a row. Included by
// sample_row_cuda.h only.
//
// Thread t owns the ids t C .. t C + C - 1, C = ceil(n / 128). All functions are called by the
// whole team and give every thread the same result.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/categorical.h"
#include "kernels/row_team_cuda.h"

namespace rivulet::kernels {

// Shared memory of one row.
struct RowShared {
  double sums[kRowThreads];  // running sums over the threads
  double tree[kRowWarps];
  float best_value[kRowWarps];
  int32_t best_index[kRowWarps];
  int32_t counts[kRowThreads], chosen;
};

// This thread's ids.
struct Ids {
  int begin, end, owners;  // owners: the first threads, those that have any
  __device__ explicit Ids(int n) {
    const int each = (n + kRowThreads - 1) / kRowThreads;
    begin = RowThread() * each < n ? RowThread() * each : n;
    end = begin + each < n ? begin + each : n;
    owners = (n + each - 1) / each;
  }
};

// Sum in thread order; shared.sums then holds the running sums of the owners of ids, own included.
__device__ inline double SumInOrder(double mine, const Ids& ids, RowShared& shared) {
  RowBarrier();  // the last call's results are read
  shared.sums[RowThread()] = mine;
  RowBarrier();
  double sum = 0;
#pragma unroll 8  // loads first: only the additions follow each other
  for (int t = 0; RowThread() == 0 && t < ids.owners; ++t) {
    shared.sums[t] = sum = sum + shared.sums[t];
  }
  RowBarrier();
  return shared.sums[ids.owners - 1];
}

// Sum in a fixed tree: quicker, for thresholds.
__device__ inline double SumInTree(double mine, RowShared& shared) {
  const double warp = WarpSum(mine);
  RowBarrier();  // the last call's results are read
  if (LaneIndex() == 0) shared.tree[RowWarp()] = warp;
  RowBarrier();
  return (shared.tree[0] + shared.tree[1]) + (shared.tree[2] + shared.tree[3]);
}

struct Best {
  float value;
  int32_t index;  // -1: none
};
__device__ __forceinline__ Best Better(Best a, Best b) {
  const bool second =
      a.index < 0 ||
      (b.index >= 0 && (b.value > a.value || (b.value == a.value && b.index < a.index)));
  return second ? b : a;
}
// The largest value, the lowest index on ties.
__device__ inline Best BlockBest(Best mine, RowShared& shared) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const Best other = {__shfl_xor_sync(kAllLanes, mine.value, lanes),
                        __shfl_xor_sync(kAllLanes, mine.index, lanes)};
    mine = Better(mine, other);
  }
  RowBarrier();  // the last call's results are read
  if (LaneIndex() == 0) {
    shared.best_value[RowWarp()] = mine.value;
    shared.best_index[RowWarp()] = mine.index;
  }
  RowBarrier();
  Best best = {shared.best_value[0], shared.best_index[0]};
#pragma unroll
  for (int w = 1; w < kRowWarps; ++w) {
    best = Better(best, {shared.best_value[w], shared.best_index[w]});
  }
  return best;
}

// ArgMax(logits, n, banned), and its value.
__device__ inline Best RowArgMax(const float* logits, int n, int32_t banned, RowShared& shared) {
  Best best = {0, -1};
  const Ids ids(n);
  for (int i = ids.begin; i < ids.end; ++i) {
    if (i != banned || n == 1) best = Better(best, {logits[i], i});
  }
  return BlockBest(best, shared);
}

__device__ inline double RowLogSumExp(const float* logits, int n, RowShared& shared) {
  const float max = RowArgMax(logits, n, -1, shared).value;
  double sum = 0;
  const Ids ids(n);
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
    for (int i = ids.begin; i < ids.end; ++i) {
      if (weights[i] >= threshold) measure += by_count ? 1.0 : static_cast<double>(weights[i]);
    }
    (SumInTree(measure, shared) >= target ? low : high) = middle;
  }
  const float threshold = __uint_as_float(low);
  double above = 0;
  int32_t ties = 0;
  for (int i = ids.begin; i < ids.end; ++i) {
    if (weights[i] > threshold) above += by_count ? 1.0 : static_cast<double>(weights[i]);
    if (weights[i] == threshold) ++ties;
  }
  above = SumInTree(above, shared);
  // How many ties stay: the first `keep` by id, so many that the measure reaches the target.
  shared.counts[RowThread()] = ties;
  RowBarrier();
  int32_t before = 0;
  for (int t = 0; t < RowThread(); ++t) before += shared.counts[t];
  const double each = by_count ? 1.0 : static_cast<double>(threshold);
  double keep = each > 0 ? ceil((target - above) / each) : 0;  // (weights of 0 are 0 either way)
  if (keep > 0 && above + (keep - 1) * each >= target) keep -= 1;
  if (above + keep * each < target) keep += 1;
  for (int i = ids.begin; i < ids.end; ++i) {
    if (weights[i] > threshold) continue;
    if (weights[i] == threshold && static_cast<double>(before) < keep) {
      ++before;
    } else {
      weights[i] = 0;
    }
  }
  RowBarrier();  // counts are read
}

// SampleCategorical(p, logits, n, random): draws from adjusted logits, which are overwritten. They
// were written by the threads that own their ids, or before a barrier.
__device__ inline int32_t RowSample(const CategoricalParams& p, float* logits, int n,
                                    PhiloxWords random, RowShared& shared) {
  const Best likeliest = RowArgMax(logits, n, p.banned, shared);
  if (p.temperature == 0) return likeliest.index;
  const Ids ids(n);
  double mine = 0;
  for (int i = ids.begin; i < ids.end; ++i) {
    logits[i] = i == p.banned ? 0.0f : expf((logits[i] - likeliest.value) / p.temperature);
    mine += static_cast<double>(logits[i]);
  }
  const bool by_count = p.top_k > 0 && p.top_k < n;
  if (by_count) RowKeepLargest(logits, n, true, p.top_k, shared);
  if (p.top_p < 1) {
    mine = 0;
    for (int i = ids.begin; i < ids.end; ++i) mine += static_cast<double>(logits[i]);
    const double kept = SumInOrder(mine, ids, shared);
    RowKeepLargest(logits, n, false, static_cast<double>(p.top_p) * kept, shared);
  }
  if (by_count || p.top_p < 1 || p.min_p > 0) {
    mine = 0;
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
    for (int i = ids.begin; i < ids.end; ++i) {
      if (!(logits[i] > 0)) continue;
      cumulative += static_cast<double>(logits[i]);
      shared.chosen = i;  // the last one, should the sum round to just below
      if (cumulative >= target) break;
    }
  }
  RowBarrier();
  const int32_t chosen = shared.chosen;
  RowBarrier();
  return chosen;
}

}  // namespace rivulet::kernels
