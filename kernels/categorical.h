// SPDX-License-Identifier: Apache-2.0
// The head of token models: logits over a vocabulary, and how a token is drawn from them.
//
// Order: penalties and bias (AdjustLogit), temperature, top_k, top_p, min_p. The filters need no
// sort: non-negative floats sort like their bits, so a bisection over the bits finds the threshold
// of "the k largest" or of "the smallest set with mass p". A draw goes through the kept tokens in
// the order of their ids, so a filter that removes nothing changes nothing.
//
// Inline and free of containers: the CPU and the CUDA backend compile these very lines. For large
// vocabularies the CPU also has vectorised functions, at the end.
// Tested by: tests/parity/sampling_test.cc, tests/parity/categorical_test.cc
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/philox.h"

namespace rivulet::kernels {

struct CategoricalParams {
  float temperature = 1;  // 0 = argmax
  int32_t top_k = 0;      // 0 = all
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  int32_t banned = -1;  // a token that is never sampled (the bos), -1: none
};

// Penalties on one logit, for a token that was fed as prompt (`in_prompt`) and `output_count` times
// as output. repetition: CTRL [Keskar 2019], over both; frequency and presence: over the output.
RIVULET_HOST_DEVICE inline float AdjustLogit(const CategoricalParams& p, float logit,
                                             bool in_prompt, int32_t output_count) {
  if (in_prompt || output_count > 0) {
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  }
  if (output_count > 0) {
    logit -= p.frequency_penalty * static_cast<float>(output_count) + p.presence_penalty;
  }
  return logit;
}

// Index of the largest value that is not `banned`; the lowest index on ties.
RIVULET_HOST_DEVICE inline int32_t ArgMax(const float* logits, int32_t n, int32_t banned) {
  int32_t best = banned == 0 && n > 1 ? 1 : 0;
  for (int32_t i = best + 1; i < n; ++i) {
    if (i != banned && logits[i] > logits[best]) best = i;
  }
  return best;
}

// ln sum_i e^(logits[i]), in double.
RIVULET_HOST_DEVICE inline double LogSumExp(const float* logits, int32_t n) {
  const float max = logits[ArgMax(logits, n, -1)];
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += static_cast<double>(expf(logits[i] - max));
  return static_cast<double>(max) + log(sum);
}

// The float32 with these bits. Of two non-negative floats the larger one has the larger bits.
RIVULET_HOST_DEVICE inline float FloatOfBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Zeroes the weights below `threshold`. Weights equal to it stay in the order of their ids until
// the measure reaches `target`; `measure` is the measure of the weights above the threshold.
RIVULET_HOST_DEVICE inline void CutAtThreshold(float* weights, int32_t n, bool by_count,
                                               double target, float threshold, double measure) {
  for (int32_t i = 0; i < n; ++i) {
    if (weights[i] > threshold) continue;
    if (weights[i] == threshold && measure < target) {
      measure += by_count ? 1.0 : static_cast<double>(weights[i]);
    } else {
      weights[i] = 0;
    }
  }
}

// Zeroes all but the smallest set of largest weights whose measure reaches `target`. The measure is
// the number of weights (`by_count`) or their sum. Among equal weights at the edge the lowest ids
// stay.
// weights: [n] in [0, 1].
RIVULET_HOST_DEVICE inline void KeepLargest(float* weights, int32_t n, bool by_count,
                                            double target) {
  uint32_t low = 0, high = 0x3F800001u;  // every weight is >= bits 0; none is above 1.0f
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const float threshold = FloatOfBits(middle);
    double measure = 0;
    for (int32_t i = 0; i < n; ++i) {
      if (weights[i] >= threshold) measure += by_count ? 1.0 : static_cast<double>(weights[i]);
    }
    if (measure >= target) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const float threshold = FloatOfBits(low);
  double measure = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (weights[i] > threshold) measure += by_count ? 1.0 : static_cast<double>(weights[i]);
  }
  CutAtThreshold(weights, n, by_count, target, threshold, measure);
}

RIVULET_HOST_DEVICE inline double SumOfWeights(const float* weights, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += static_cast<double>(weights[i]);
  return sum;
}

// Filters the weights, then draws an id. w[i] = e^((logit[i] - max) / temperature), with max the
// logit of the `likeliest` id; the banned id has 0. keep_largest(weights, n, by_count, target) does
// what KeepLargest does. weights: [n] in [0, 1]. Random words 0, 1.
template <class KeepLargestFn>
RIVULET_HOST_DEVICE inline int32_t SampleWeights(const CategoricalParams& p, float* weights,
                                                 int32_t n, int32_t likeliest, PhiloxWords random,
                                                 const KeepLargestFn& keep_largest) {
  if (p.top_k > 0 && p.top_k < n) keep_largest(weights, n, /*by_count=*/true, double(p.top_k));
  if (p.top_p < 1) {
    const double kept = SumOfWeights(weights, n);
    keep_largest(weights, n, /*by_count=*/false, static_cast<double>(p.top_p) * kept);
  }
  if (p.min_p > 0) {
    for (int32_t i = 0; i < n; ++i) {
      if (weights[i] < p.min_p) weights[i] = 0;
    }
  }
  const double target = UniformOpen(random.word[0], random.word[1]) * SumOfWeights(weights, n);
  double cumulative = 0;
  for (int32_t i = 0; i < n; ++i) {
    cumulative += static_cast<double>(weights[i]);
    if (weights[i] > 0 && cumulative >= target) return i;
  }
  return likeliest;
}

// Draws from adjusted logits [n], which are overwritten. Random words 0, 1. Returns an id other
// than `banned` (unless n is 1).
RIVULET_HOST_DEVICE inline int32_t SampleCategorical(const CategoricalParams& p, float* logits,
                                                     int32_t n, PhiloxWords random) {
  const int32_t likeliest = ArgMax(logits, n, p.banned);
  if (p.temperature == 0) return likeliest;
  const float max = logits[likeliest];
  for (int32_t i = 0; i < n; ++i) {
    logits[i] = i == p.banned ? 0.0f : expf((logits[i] - max) / p.temperature);
  }
  return SampleWeights(p, logits, n, likeliest, random, &KeepLargest);
}

// Vectorised for the CPU. Logits are finite, [n]; n is at least 1. Thread: any.

// ArgMax and LogSumExp.
int32_t ArgMaxCpu(const float* logits, int32_t n, int32_t banned);
double LogSumExpCpu(const float* logits, int32_t n);

// SampleCategorical: the same draw wherever expf rounds as RelativeWeightsCpu does. scratch: [n].
int32_t SampleCategoricalCpu(const CategoricalParams& p, float* logits, int32_t n,
                             PhiloxWords random, float* scratch);

// KeepLargest, with the same bits. Each pass looks only at the weights that may still stay.
// scratch: [n].
void KeepLargestCpu(float* weights, int32_t n, bool by_count, double target, float* scratch);

// weights[i] = e^((logits[i] - max) / temperature), and 1 for a logit above `max`. The exponential
// is within 0.51 units in the last place, with the same bits on every target that fuses
// multiply-adds: there they are the bits of glibc 2.36's expf, for every argument. weights: may be
// logits.
void RelativeWeightsCpu(const float* logits, int32_t n, float max, float temperature,
                        float* weights);

// Whether no value is NaN or infinite.
bool AllFiniteCpu(const float* x, int32_t n);

}  // namespace rivulet::kernels
