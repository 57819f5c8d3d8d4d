// SPDX-License-Identifier: Apache-2.0
// golden.json of a model directory (float64 reference values), and the score of a sequence directly
// from a Backend.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/backend.h"
#include "model/config.h"

namespace rivulet::testing {

struct GoldenSequence {
  std::vector<int32_t> tokens;  // without the implied bos
  int64_t num_scored = 0;
  double nll_nats = 0;
  std::vector<std::vector<double>> outputs;  // [positions][output_size]
};

struct Golden {
  std::vector<int64_t> positions;  // scored tokens, 0 = the first
  std::vector<GoldenSequence> sequences;
};

// Reads DIR/golden.json; on failure ends the test program.
Golden ReadGolden(const std::string& directory);

// Largest absolute error of raw outputs that the project promises for a model directory in float32.
double OutputTolerance(const std::string& directory);

struct BackendScore {
  double nll_nats = 0;
  std::vector<float> logprobs;              // [num_scored]
  std::vector<std::vector<float>> outputs;  // [num_scored][output_size]
  std::vector<float> state;                 // the slot's state afterwards
};

// Feeds the sequence (after the bos, if the model has one) to `slot`, `chunk` tokens per run, and
// scores every token that has a predecessor. Leaves the slot zeroed.
BackendScore ScoreThroughBackend(Backend& backend, const ModelConfig& config, Slot slot,
                                 std::span<const int32_t> tokens, int chunk);

// Largest absolute error of the raw outputs at the golden's positions; positions beyond the
// sequence are left out. Infinity for an output that is not a number, and if outputs are missing or
// have another size.
double WorstOutputError(const Golden& golden, const GoldenSequence& sequence,
                        const BackendScore& score);

}  // namespace rivulet::testing
