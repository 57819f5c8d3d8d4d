// SPDX-License-Identifier: Apache-2.0
// The head of token models (categorical.h), one block per row. Included by sample_row_cuda.h only.
// The whole block calls every function; all threads get the same result.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/categorical.h"
#include "kernels/cuda/sample/row_sums_cuda.h"
#include "kernels/cuda/sample/threshold_cuda.h"

namespace rivulet::kernels {

// The result of a pass over a row of logits.
struct RowLook {
  bool finite;
  int32_t likeliest;  // ArgMax(row, n, banned), and its value
  float largest;
};
template <int kAhead>
__device__ __noinline__ RowLook LookAtRow(const float* row, int n, int32_t banned) {
  float zero = 0, largest = -INFINITY;  // zero: NaN once a value is infinite or NaN
  int32_t place = -1;                   // first id of the first quad with `largest`
  ForEachQuad<kAhead>(row, n, [&](int first, Quad q) {
    FillTail(first, n, -FLT_MAX, q);
    zero = fmaf(q.v[0], 0.0f, fmaf(q.v[1], 0.0f, fmaf(q.v[2], 0.0f, fmaf(q.v[3], 0.0f, zero))));
    if (first <= banned && banned < first + 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q.v[i] = first + i == banned ? -INFINITY : q.v[i];
    }
    const float of_quad = fmaxf(fmaxf(q.v[0], q.v[1]), fmaxf(q.v[2], q.v[3]));
    if (of_quad > largest) largest = of_quad, place = first;
  });
  RowLook look;
  look.finite = __syncthreads_or(zero == 0 ? 0 : 1) == 0;
  const Ranked best = BlockBest(place < 0 ? 0 : RankOf(largest, place));
  look.likeliest = banned == 0 && n > 1 ? 1 : 0;  // if all values are minus infinity
  look.largest = -INFINITY;
  if (best == 0) return look;
  look.largest = RankedValue(best);
  const Quad q = LoadQuad(row + RankedId(best));
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    const int32_t id = RankedId(best) + i;
    if (id < n && id != banned && q.v[i] == look.largest) look.likeliest = id;
  }
  return look;
}

// The term of a value of a row in a sum. Of a logit: its weight, e^((logit - max) / temperature),
// or 0 for the banned id. Of a weight: itself if `cut` keeps it and it is not above `most`, else 0.
struct RowTerm {
  bool of_logit;
  float max, temperature, inverse;  // inverse: 1 / temperature
  int32_t banned;
  Cut cut;
  float most = 1;

  __device__ __forceinline__ float OfLogit(float logit, int32_t id) const {
    // (logit - max) / temperature, rounded as a division, without its many instructions. (Very
    // small quotients give weight 0 in any case; they may be infinite.)
    const float relative = logit - max, about = relative * inverse;
    const float exact = fmaf(fmaf(-about, temperature, relative), inverse, about);
    const float weight = expf(about > -200.0f ? exact : about);
    return id == banned ? 0.0f : weight;
  }
  __device__ __forceinline__ float OfWeight(float weight, int32_t id) const {
    return cut.Keeps(weight, id) & (weight <= most) ? weight : 0.0f;
  }
  __device__ __forceinline__ Quad operator()(int first, const Quad& q) const {
    Quad terms;
    if (of_logit) {
#pragma unroll
      for (int i = 0; i < 4; ++i) terms.v[i] = OfLogit(q.v[i], first + i);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) terms.v[i] = OfWeight(q.v[i], first + i);
    }
    return terms;
  }
};
__device__ __forceinline__ RowTerm TermOfLogits(float max, float temperature, int32_t banned) {
  return {true, max, temperature, 1.0f / temperature, banned, {}};
}

// Not inlined, because it has many callers: the sum of the terms, which are also written to `terms`
// unless that is null (it may be `row`) ...
template <int kAhead>
__device__ __noinline__ double SumTerms(const float* row, int n, RowTerm term, float* terms) {
  return SumRow<kAhead>(row, n, term, terms);
}
// ... and after it the first id at which the running sum reaches `target`, or `otherwise`.
__device__ __noinline__ inline int32_t FindTerm(const float* row, int n, RowTerm term,
                                                double target, int32_t otherwise) {
  return FindId(row, n, term, target, otherwise);
}

// `largest`: the largest logit of an id other than `banned`.
template <int kAhead>
__device__ __forceinline__ double RowLogSumExp(const float* logits, int n, int32_t banned,
                                               float largest) {
  if (banned >= 0 && banned < n) largest = fmaxf(largest, logits[banned]);
  const double sum = SumTerms<kAhead>(logits, n, TermOfLogits(largest, 1, -1), nullptr);
  return static_cast<double>(largest) + log(sum);
}

// KeepLargest(weights, n, by_count, target) on the weights that `cut` keeps. Without `by_count` the
// target is a share of their sum.
template <int kAhead>
__device__ __forceinline__ Cut RowKeepLargest(const float* weights, int n, const Cut& cut,
                                              bool by_count, double target) {
  const Threshold t = FindThreshold<kAhead>(weights, n, cut, by_count, target);
  const float threshold = __uint_as_float(t.bits);
  const double weight = static_cast<double>(threshold), each = by_count ? 1.0 : weight;
  RowTerm ties = {};
  ties.cut = threshold > cut.threshold ? Cut{threshold, INT32_MAX} : cut;
  if (t.above + (t.equal - each) < t.target) return ties.cut;  // all equal weights are needed
  // Else keeps equal weights in the order of ids until the measure reaches the target.
  double keep = ceil((t.target - t.above) / each);
  if (t.above + (keep - 1) * each >= t.target) keep -= 1;
  if (t.above + keep * each < t.target) keep += 1;
  ties.most = threshold;  // so that only equal weights count
  SumTerms<kAhead>(weights, n, ties, nullptr);
  ties.cut.last = FindTerm(weights, n, ties, keep * weight, ties.cut.last);
  return ties.cut;
}

// The filters: writes the weights of the logits to `weights`, and returns which of them to keep.
template <int kAhead>
__device__ __forceinline__ Cut RowFilters(const CategoricalParams& p, const float* logits, int n,
                                          RowTerm term, float* weights) {
  SumTerms<kAhead>(logits, n, term, weights);
#pragma unroll 1
  for (int filter = 0; filter < 2; ++filter) {  // top_k, top_p
    const bool by_count = filter == 0;
    if (by_count ? p.top_k <= 0 || p.top_k >= n : !(p.top_p < 1)) continue;
    const double target = by_count ? p.top_k : static_cast<double>(p.top_p);
    term.cut = RowKeepLargest<kAhead>(weights, n, term.cut, by_count, target);
  }
  if (p.min_p > term.cut.threshold) term.cut = {p.min_p, INT32_MAX};
  return term.cut;
}

// SampleCategorical(p, logits, n, random): draws from adjusted logits. `look`: LookAtRow of these
// logits. `weights`: [n], used if there are filters; may be the logits.
template <int kAhead>
__device__ __forceinline__ int32_t RowSample(const CategoricalParams& p, const float* logits,
                                             const RowLook& look, float* weights, int n,
                                             PhiloxWords random) {
  if (p.temperature == 0) return look.likeliest;
  RowTerm term = TermOfLogits(look.largest, p.temperature, p.banned);
  const float* row = logits;
  if ((p.top_k > 0 && p.top_k < n) || p.top_p < 1 || p.min_p > 0) {
    term.cut = RowFilters<kAhead>(p, logits, n, term, weights);
    term.of_logit = false;
    row = weights;
  }
  const double sum = SumTerms<kAhead>(row, n, term, nullptr);
  const double target = UniformOpen(random.word[0], random.word[1]) * sum;
  return FindTerm(row, n, term, target, look.likeliest);
}

}  // namespace rivulet::kernels
