// SPDX-License-Identifier: Apache-2.0
// The head of image models: a mixture of K discretised logistics over L levels of a value scaled to
// [-1, 1] [Salimans et al. 2017, PixelCNN++, section 2.1]. The head gives [K logits | K means | K
// log-scales].
//
// Inline and free of the standard library's containers: the CPU and the CUDA backend compile these
// very lines. Tested by: tests/parity/sampling_test.cc
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/philox.h"

namespace rivulet::kernels {

struct MixtureHead {
  int mixtures = 0;        // K
  int levels = 0;          // L
  bool elu_scale = false;  // sampling scale: elu(log_scale) + 1.0001 instead of exp(log_scale)
  int32_t banned = -1;     // a level that is never sampled (the bos), -1: none
};

inline constexpr float kMinLogScale = -7.0f;

// ln(1 + e^x) without overflow.
RIVULET_HOST_DEVICE inline float Softplus(float x) {
  return (x > 0 ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}

// ln of one component's probability of `level`. With a and b the scaled edges of its bin,
//   sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - e^(b - a)):
// the product form keeps its precision far out in the tails, where the difference of two sigmoids
// has none.
RIVULET_HOST_DEVICE inline float LogisticBinLogProb(float mean, float log_scale, int level,
                                                    int levels) {
  const float half_bin = 1.0f / static_cast<float>(levels - 1);
  const float x = 2.0f * static_cast<float>(level) * half_bin - 1.0f;
  log_scale = log_scale > kMinLogScale ? log_scale : kMinLogScale;
  const float inverse = expf(-log_scale);
  const float above = (x - mean + half_bin) * inverse;
  const float below = (x - mean - half_bin) * inverse;
  if (level == 0) return -Softplus(-above);          // ln sigmoid(above): the whole lower tail
  if (level == levels - 1) return -Softplus(below);  // ln (1 - sigmoid(below))
  const float log_bin =
      -Softplus(-above) - Softplus(below) + logf(-expm1f(-2.0f * half_bin * inverse));
  if (log_bin > -11.512925464970229f) return log_bin;  // ln 1e-5
  const float middle = (x - mean) * inverse;  // density at the middle times the bin's width
  return middle - log_scale - 2.0f * Softplus(middle) + logf(2.0f * half_bin);
}

// ln p(level) under the mixture; `head` = [3K] raw outputs.
RIVULET_HOST_DEVICE inline float MixtureLogProb(const MixtureHead& m, const float* head,
                                                int level) {
  // The largest logit is subtracted first: a large common part would swallow the digits of ln p_k.
  // The sum of the joint terms streams with a running maximum.
  float max_logit = head[0];
  for (int k = 1; k < m.mixtures; ++k) max_logit = head[k] > max_logit ? head[k] : max_logit;
  float sum_logit = 0, max_joint = -INFINITY, sum_joint = 0;
  for (int k = 0; k < m.mixtures; ++k) {
    const float logit = head[k] - max_logit;
    sum_logit += expf(logit);
    const float joint =
        logit + LogisticBinLogProb(head[m.mixtures + k], head[2 * m.mixtures + k], level, m.levels);
    if (joint > max_joint) sum_joint *= expf(max_joint - joint), max_joint = joint;
    sum_joint += expf(joint - max_joint);
  }
  return max_joint + logf(sum_joint) - logf(sum_logit);
}

// Component k of the draw u in (0, 1): the first whose cumulative weight reaches u; weights
// e^(logit / temperature).
RIVULET_HOST_DEVICE inline int DrawComponent(const MixtureHead& m, const float* head,
                                             float temperature, double u) {
  int likeliest = 0;
  for (int k = 1; k < m.mixtures; ++k) {
    if (head[k] > head[likeliest]) likeliest = k;
  }
  if (temperature == 0) return likeliest;
  double total = 0;
  for (int k = 0; k < m.mixtures; ++k) {
    total += static_cast<double>(expf((head[k] - head[likeliest]) / temperature));
  }
  double cumulative = 0;
  for (int k = 0; k < m.mixtures; ++k) {
    cumulative += static_cast<double>(expf((head[k] - head[likeliest]) / temperature));
    if (cumulative >= u * total) return k;
  }
  return likeliest;
}

// Draws a level. Temperature T divides the mixture logits and multiplies the scales; 0 takes the
// mean of the likeliest component. Random words: 0, 1 choose the component, 2, 3 the value.
RIVULET_HOST_DEVICE inline int32_t SampleMixture(const MixtureHead& m, const float* head,
                                                 float temperature, PhiloxWords random) {
  const int k = DrawComponent(m, head, temperature, UniformOpen(random.word[0], random.word[1]));
  float value = head[m.mixtures + k];
  if (temperature > 0) {
    float s = head[2 * m.mixtures + k];
    if (m.elu_scale) {
      s = (s > 0 ? s : expm1f(s)) + 1.0001f;
    } else {
      s = expf(s > kMinLogScale ? s : kMinLogScale);
    }
    const double u = UniformOpen(random.word[2], random.word[3]);
    value += temperature * s * static_cast<float>(log(u) - log1p(-u));
  }
  value = value < -1.0f ? -1.0f : (value > 1.0f ? 1.0f : value);
  const float scaled = (value + 1.0f) * 0.5f * static_cast<float>(m.levels - 1);
  int32_t level = static_cast<int32_t>(floorf(scaled + 0.5f));
  if (level == m.banned)
    level += (level == 0 || scaled > static_cast<float>(level)) && level < m.levels - 1 ? 1 : -1;
  return level;
}

}  // namespace rivulet::kernels
