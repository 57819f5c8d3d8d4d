// SPDX-License-Identifier: Apache-2.0
// PackedWeights: a model's weights as both backends load them. Matrices are packed for the CPU
// kernels, each in the type of its file unless told otherwise; the rest is float32. The CUDA
// backend uploads them (model/cuda/cuda_weights.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/feature_map.h"
#include "kernels/gemm.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/loading/aligned_buffer.h"
#include "model/model.h"

namespace rivulet {

// A packed matrix and its bias. `bias` is zero padded to whole panels.
struct MatrixWeights {
  AlignedBuffer panels;
  std::vector<float> bias;
  kernels::PackedMatrix packed;  // points into `panels`
  // The tensors whose rows are the columns of y, each with its first column. In order.
  std::vector<std::pair<std::string, int>> tensors;

  // The tensor that column `n` of y is of. REQUIRES: there is one.
  const std::string& TensorOf(int n) const;
};

// What the weights are in memory.
struct WeightFacts {
  size_t bytes = 0;
  int64_t multiply_adds = 0;  // of all matrix products, for one token row
  // Most of the products have weights of at most 16 bits.
  bool short_weights = false;
  bool lossless = true;      // the matrices equal the file's
  bool blocks = false;       // the file has tensors of blocks of integers
  int widest_quantized = 0;  // most inputs of a matrix of 8 or 4 bits; 0: there is none
};

// Of root mean squares where `bias` is empty, else a layer norm; none where both are.
struct NormWeights {
  std::vector<float> weight, bias;  // [hidden]
};

// First columns of what LayerWeights::in makes of a row. -1: the kind has no such part.
struct InputColumns {
  int q = -1, k = -1, v = -1;
  int gate = -1;           // of the output; of kind "linear" with a gate, one a head: of the state
  int low = -1;            // first half of the decay's low-rank product
  int low_gate = -1;       // first half of the gate's
  int beta = -1, dt = -1;  // one a head; dt: what the decay is made of
  int small = 0;           // where in_small begins
  int n = 0;
  int low_rank = 0;  // RWKV-7: columns for the first halves of all low-rank products of a layer
};

// A projection of rank r: second(f(first(x))).
struct LowRank {
  MatrixWeights first, second;
};

struct Rwkv7Layer {
  NormWeights first_norm;      // layer 0 alone, where the configuration has it
  std::vector<float> mix;      // [6, hidden]: r w k v a g
  std::vector<float> ffn_mix;  // [hidden]
  MatrixWeights r, k, v;
  LowRank w, a, v_mix, g;                          // v_mix: from layer 1 on
  std::vector<float> k_k, k_a, r_k;                // [hidden]
  std::vector<float> group_norm, group_norm_bias;  // [hidden]
};

struct LayerWeights {
  bool attends = false;                // of a hybrid: softmax attention; `in` makes
                                       // PackedWeights::softmax_columns
  std::vector<float> q_norm, k_norm;   // ... [head_dim], or empty
  NormWeights norm1, norm2;            // norm2: none where there is no feed-forward
  MatrixWeights in;                    // hidden -> InputColumns
  MatrixWeights in_small;              // ... those that stay exact beside a quantized `in`; first
                                       // column: InputColumns::small
  MatrixWeights decay;                 // second half of the decay's low-rank product
  MatrixWeights gate;                  // ... and of the gate's
  MatrixWeights out;                   // values -> hidden
  MatrixWeights up;                    // hidden -> [gate | up], each padded; RWKV-7: key;
                                       // "linear", "softmax": linear1
  MatrixWeights down;                  // ffn -> hidden
  std::vector<float> conv, conv_bias;  // [width, channels], [channels] or empty
  std::vector<float> decay_scale;      // [keys or heads]
  std::vector<float> decay_bias;       // likewise, or empty
  std::vector<float> lower_bound;      // [keys], HGRN2
  std::vector<float> skip;             // [heads], Mamba-2's D
  std::vector<float> out_norm;         // [value_dim], or [values] for Mamba-2 and HGRN2
  // Kind "linear": [key_dim, columns], or per head for rfa, already times sigma; empty for elu.
  std::vector<float> omega;
  std::unique_ptr<Rwkv7Layer> rwkv7;  // null for the others
  // Attention that has the mixer's input: in, out, q_norm and k_norm alone. Null: there is none.
  std::unique_ptr<LayerWeights> beside;
};

// Rows of a tensor [of, k] that become rows of a matrix.
struct TensorRows {
  std::string name;
  int rows = 0;
  int first = 0;  // row of the tensor
  int of = 0;     // rows of the tensor; 0: `rows`
};

// ... and their type in memory.
struct PackedRows {
  TensorRows rows;
  kernels::WeightType type;
};

// What is kept of a model.
struct WeightPlan {
  size_t bytes = 0;
  std::vector<PackedRows> matrices;  // in the order of their reading
};

// Immutable once loaded; any thread.
struct PackedWeights {
  InputColumns columns;
  InputColumns softmax_columns;  // of the layers of a hybrid that attend: q, k, v, gate
  MatrixWeights embedding;       // one row a token: columns of a packed [hidden -> vocab]
  // Of kinds "linear" and "softmax" in its place: [vocab, embedding_columns]; and [position_rows,
  // embedding_columns], empty where there are none. Later sinusoidal positions are computed when
  // needed.
  std::vector<float> tokens, positions;
  int64_t position_rows = 0;
  kernels::FeatureMapArgs feature_map;  // of kind "linear", without omega
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  MatrixWeights head;  // hidden -> output_size; empty where the embedding is the head
  WeightFacts facts;
  // [key_dim] each: what makes a norm of root mean squares one of the length 1, and of
  // key_dim^-1/2.
  std::vector<float> unit_length, scaled_length;
  // Of RetNet's heads, or a hybrid's with softmax attention; without frequencies positions turn
  // nothing.
  RopeConfig rope;
  // RWKV-7 with tensors attn.initial_state: the state of a slot that has fed nothing. Empty: zeros.
  std::vector<float> initial_state;  // [BlockState::floats_per_slot]

  // The matrix of the head.
  const MatrixWeights& Head() const { return head.packed.panels == nullptr ? embedding : head; }

  // Reads and packs. Every tensor of the checkpoint must be used, and have the shape that the
  // configuration asks for. Errors: DATA_LOSS (file; a tensor that is missing, misshapen or not
  // expected, named), INVALID_ARGUMENT (a weight too large for its type, named),
  // RESOURCE_EXHAUSTED (memory).
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Load(const Model& model,
                                                             const WeightChoice& choice);
  // What Load would keep, and its errors for tensors that are missing, misshapen or not expected.
  // No weight is read.
  static absl::StatusOr<WeightPlan> Plan(const Model& model, const WeightChoice& choice);
};

// The choice for a backend that multiplies numbers alone: as the file has them, and integers in
// blocks decoded.
WeightPrecision NumbersOnly(const Model& model);

}  // namespace rivulet
