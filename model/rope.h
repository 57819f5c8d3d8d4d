// SPDX-License-Identifier: Apache-2.0
// Rotary positions [Su 2021]: pairs (x_i, x_{i + n/2}) of the first n values of a head are turned
// by position * f_i. How checkpoints of transformers spell them.
#pragma once

#include <vector>

#include "absl/status/status.h"

namespace rivulet {

class JsonReader;

struct RopeConfig {
  std::vector<double> frequencies;  // [n / 2], f_i; empty: no positions
  double factor = 1;                // of cosines and sines: yarn's attention_factor
};

// Reads `rope_parameters`, or `rope_scaling` with the settings beside it, for heads of `head_dim`.
// Types: default, linear, llama3, yarn. `theta`: where the file has none. `max_positions`:
// max_position_embeddings. Errors: INVALID_ARGUMENT, naming the setting; UNSUPPORTED_MODEL for
// other types.
absl::Status ParseRope(JsonReader* settings, int head_dim, double default_partial,
                       double max_positions, RopeConfig* rope, double theta = 10000);

}  // namespace rivulet
