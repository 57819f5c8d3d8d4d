// SPDX-License-Identifier: Apache-2.0
// Rotary positions [Su 2021]: pairs (x_i, x_{i + n/2}) of the first n values of a head are turned
// by position * f_i. Reads the settings of transformers checkpoints.
#pragma once

#include <vector>

#include "absl/status/status.h"

namespace rivulet {

class JsonReader;

struct RopeConfig {
  std::vector<double> frequencies;  // [n / 2], f_i; empty: no positions
  double factor = 1;                // of cosines and sines: yarn's attention_factor
  bool interleaved = false;         // pairs (x_{2i}, x_{2i + 1}) instead
};

// f_i = base^(-2i / n), [n / 2]; n is even.
std::vector<double> RopeFrequencies(double base, int n);

// Defaults of a kind of model.
struct RopeDefaults {
  int head_dim = 0;
  // max_position_embeddings; 0: the file has none, and a type that needs the trained length must
  // give it.
  double max_positions = 0;
  // The share of a head that is turned. 1: type default turns the whole head, whatever
  // partial_rotary_factor says.
  double partial = 1;
  double theta = 10000;
};

// Reads `rope_parameters`, or `rope_scaling` with the settings beside it. Types: default, linear,
// llama3, yarn. Errors: INVALID_ARGUMENT, naming the setting; UNSUPPORTED_MODEL for other types.
absl::Status ParseRope(JsonReader* settings, const RopeDefaults& defaults, RopeConfig* rope);

}  // namespace rivulet
