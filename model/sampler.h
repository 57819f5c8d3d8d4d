// SPDX-License-Identifier: Apache-2.0
// Sampling parameters and their checks. The mathematics is in kernels/categorical.h and
// kernels/mixture_of_logistics.h, shared by CPU and CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/base/fields.h"
#include "model/config.h"

namespace rivulet {

// How the next token is drawn. Order: penalties and logit_bias, temperature, top_k, top_p, min_p.
// Defaults draw from the model's own distribution. For a mixture head only temperature and seed may
// be set.
struct SamplingParams {
  float temperature = 1;  // >= 0; 0 = argmax (mixture: mean of the likeliest component)
  int32_t top_k = 0;      // keep the k likeliest; 0 = all
  float top_p = 1;        // (0, 1]: smallest set of likeliest tokens with at least this probability
  float min_p = 0;        // [0, 1]: drop tokens below min_p times the likeliest's probability
  float repetition_penalty =
      1;  // > 0: logits of tokens seen (prompt or output) divided (if > 0) or multiplied by it
  float frequency_penalty = 0;  // [-2, 2]: subtracted per occurrence in the output
  float presence_penalty = 0;   // [-2, 2]: subtracted once if the token is in the output
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id -> added to its logit, [-100, 100]
  uint64_t seed = 0;

  bool has_penalties() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
  bool operator==(const SamplingParams&) const = default;
};
// ReplyFingerprint has the same order; a new field goes last.
RIVULET_FIELDS(SamplingParams, seed, top_k, temperature, top_p, min_p, repetition_penalty,
               frequency_penalty, presence_penalty, logit_bias)

// OK, or INVALID_ARGUMENT naming `field_prefix` + the field, its value and the allowed range, for
// `config`'s head.
absl::Status ValidateSampling(const SamplingParams& params, const ModelConfig& config,
                              absl::string_view field_prefix);

}  // namespace rivulet
