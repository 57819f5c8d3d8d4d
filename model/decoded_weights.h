// SPDX-License-Identifier: Apache-2.0
// A model's weights in float32 on the host, layer by layer, as every backend starts from: matrices
// that share their input side by side, omega ready for the kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/feature_map.h"
#include "model/model.h"

namespace rivulet {

// y = x W^T + b. Rows of several tensors may stand one below the other.
struct DecodedMatrix {
  struct Part {
    std::string name;  // of its tensors, NAME.weight and NAME.bias
    int first_row = 0, rows = 0;
  };
  int k = 0, n = 0;
  std::vector<float> weight;  // [n, k]
  std::vector<float> bias;    // [n]
  std::vector<Part> parts;
};

struct DecodedNorm {
  std::vector<float> weight, bias;  // [hidden]
};

struct DecodedLayer {
  DecodedMatrix qkv;   // hidden -> [query heads*key_dim | key heads*key_dim | value heads*value_dim
                       // | gate heads]
  DecodedMatrix out;   // heads*value_dim -> hidden
  DecodedMatrix ffn1;  // hidden -> ffn
  DecodedMatrix ffn2;  // ffn -> hidden
  DecodedNorm norm1, norm2;
  // [key_dim, columns], or [heads, key_dim, columns] for rfa, already times sigma; empty for elu.
  std::vector<float> omega;
};

struct DecodedTables {
  std::vector<float> embedding;  // [vocab, embedding_columns]
  std::vector<float> positions;  // [position_rows, embedding_columns]; empty where there are none
  int64_t position_rows = 0;  // of the table; later sinusoidal positions are computed when needed
};

// Rows that the table of positions has: all learned ones, the first sinusoidal ones.
int64_t PositionTableRows(const ModelConfig& config);

// Errors of all: DATA_LOSS (file).
absl::StatusOr<DecodedTables> DecodeTables(const Model& model);
absl::StatusOr<DecodedLayer> DecodeLayer(const Model& model, int layer);
absl::StatusOr<DecodedNorm> DecodeFinalNorm(const Model& model);  // REQUIRES: config().final_norm
absl::StatusOr<DecodedMatrix> DecodeHead(const Model& model);     // hidden -> output_size

// The feature map of every layer and head, except omega.
kernels::FeatureMapArgs FeatureMapOf(const ModelConfig& config);

// The error for a weight that 16 bits cannot hold.
absl::Status WeightTooLarge(absl::string_view part);

}  // namespace rivulet
