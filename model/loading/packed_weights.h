// SPDX-License-Identifier: Apache-2.0
// PackedWeights: a model's weights, loaded for either backend. Matrices are packed for the CPU
// kernels, each in the type of its file unless WeightChoice says otherwise; the rest is float32.
// The CUDA backend uploads them (model/cuda/cuda_weights.h).
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
#include "kernels/quantized.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/loading/aligned_buffer.h"
#include "model/model.h"

namespace rivulet {

// A packed matrix and its bias. `bias` is zero padded to whole panels. Where a GGUF file has blocks
// of several types, `more` has the columns of y from the first of another type on.
struct MatrixWeights {
  AlignedBuffer panels;
  std::vector<float> bias;
  kernels::PackedMatrix packed;  // points into `panels`
  // The tensors whose rows are the columns of y, each with its first column, in order.
  std::vector<std::pair<std::string, int>> tensors;
  int first = 0;                    // column of y: a whole number of panels; not 0 in `more` alone
  std::vector<MatrixWeights> more;  // of the same input; without `more` themselves

  // The tensor of column `n` of y. REQUIRES: there is one.
  const std::string& TensorOf(int n) const;
  // Floats of an input row of a product, as GemmArgs takes it: numbers, or integers in their place.
  size_t input_row_floats() const {
    return kernels::IsQuantized(packed.type)
               ? kernels::QuantizedRowLayout(packed.k).bytes / sizeof(float)
               : size_t(packed.k);
  }
};

// Facts about the weights in memory.
struct WeightFacts {
  size_t bytes = 0;
  int64_t multiply_adds = 0;  // of all matrix products, for one token row
  size_t row_bytes = 0;       // of the matrices that one token row reads: of experts, the chosen
  // Most of the products have weights of at most 16 bits.
  bool short_weights = false;
  bool lossless = true;      // the matrices equal the file's
  bool blocks = false;       // the file has tensors of blocks of integers
  int widest_quantized = 0;  // most inputs of a matrix of 8 or 4 bits; 0: no such matrix
};

// A layer norm; an RMS norm if only `bias` is empty; no norm if both are empty.
struct NormWeights {
  std::vector<float> weight, bias;  // [hidden]
};

// First columns of the parts of the output of LayerWeights::in. -1: the kind has no such part.
struct InputColumns {
  int q = -1, k = -1, v = -1;
  int gate = -1;           // of the output; kind "linear" with a gate: of the state, one per head
  int low = -1;            // first half of the decay's low-rank product
  int low_gate = -1;       // first half of the gate's low-rank product
  int beta = -1, dt = -1;  // one per head; dt: input of the decay
  int small = 0;           // first column of in_small
  int n = 0;
  int low_rank = 0;  // RWKV-7: columns for the first halves of all low-rank products of a layer
};

// A projection of rank r: second(f(first(x))).
struct LowRank {
  MatrixWeights first, second;
};

struct Rwkv7Layer {
  NormWeights first_norm;      // layer 0 alone, if the configuration has it
  std::vector<float> mix;      // [6, hidden]: r w k v a g
  std::vector<float> ffn_mix;  // [hidden]
  MatrixWeights r, k, v;
  LowRank w, a, v_mix, g;                          // v_mix: from layer 1 on
  std::vector<float> k_k, k_a, r_k;                // [hidden]
  std::vector<float> group_norm, group_norm_bias;  // [hidden]
};

// A mixture of experts. The experts lie side by side in one packed matrix: expert e has the panels
// from e NumPanels(columns of one) on. `bias`: zeros, of one expert.
struct ExpertWeights {
  MatrixWeights router;     // hidden -> [a score for each expert | the gate of the shared expert]
  std::vector<float> bias;  // [experts], or empty
  MatrixWeights up, down;   // like LayerWeights's, for each expert
  MatrixWeights in, out;    // hidden -> latent -> hidden, or empty
};

struct LayerWeights {
  bool attends = false;                // of a hybrid: softmax attention; `in` has
                                       // PackedWeights::softmax_columns
  std::vector<float> q_norm, k_norm;   // ... [head_dim], or empty
  NormWeights norm1, norm2;            // none without mixer, or without feed-forward
  MatrixWeights in;                    // hidden -> InputColumns
  MatrixWeights in_small;              // ... exact projections beside a quantized `in`; first
                                       // column: InputColumns::small
  MatrixWeights decay;                 // second half of the decay's low-rank product
  MatrixWeights gate;                  // ... and of the gate's
  MatrixWeights out;                   // values -> hidden
  MatrixWeights up;                    // hidden -> [gate | up], each padded; squared_relu: up;
                                       // RWKV-7: key; "linear", "softmax": linear1
  MatrixWeights down;                  // ffn -> hidden; with experts both are the shared one's
  std::vector<float> conv, conv_bias;  // [width, channels], [channels] or empty
  std::vector<float> decay_scale;      // [keys or heads]
  std::vector<float> decay_bias;       // likewise, or empty
  std::vector<float> lower_bound;      // [keys], HGRN2
  std::vector<float> skip;             // [heads], Mamba-2's D
  std::vector<float> out_norm;         // [value_dim], or [values] for Mamba-2 and HGRN2
  // Kind "linear": [key_dim, columns], or per head for rfa, already times sigma; empty for elu.
  std::vector<float> omega;
  std::unique_ptr<Rwkv7Layer> rwkv7;       // null for the others
  std::unique_ptr<ExpertWeights> experts;  // null: a dense feed-forward
  // Attention on the mixer's input: in, out, q_norm and k_norm alone. Null: there is none.
  std::unique_ptr<LayerWeights> beside;
};

// The head that guesses the token after the next one, `mtp.*` of Qwen3.5 (multi-token prediction
// [DeepSeek-V3, 2.2; docs/models.md]). h_t is the row that the model's head reads, x the tokens:
//   u = fc [ norm(x_(t+1)'s row of the embedding) | norm(h_t) ],  g = norm(layer(u));
// the model's head makes logits of x_(t+2) from g. The layer has attention over its own keys.
struct PredictorWeights {
  NormWeights embedding_norm, hidden_norm, norm;
  MatrixWeights fc;  // 2 hidden -> hidden
  LayerWeights layer;
};

// Rows of a tensor [of, k] that become rows of a matrix.
struct TensorRows {
  std::string name;
  int rows = 0;
  int first = 0;    // row of the tensor
  int of = 0;       // rows of the tensor; 0: `rows`
  int stacked = 0;  // not 0: the tensor may also be [stacked, of / stacked, k]
};

// ... and their type in memory.
struct PackedRows {
  TensorRows rows;
  kernels::WeightType type;
};

// The weights in memory of a model.
struct WeightPlan {
  WeightFacts facts;
  int64_t idle_parameters = 0;       // of the experts that a token row does not choose
  std::vector<PackedRows> matrices;  // in the order of their reading
};

// Immutable once loaded; any thread.
struct PackedWeights {
  InputColumns columns;
  InputColumns softmax_columns;  // of a hybrid's layers with attention: q, k, v, gate
  MatrixWeights embedding;       // one row per token: columns of a packed [hidden -> vocab]
  // For kinds "linear" and "softmax" instead: [vocab, embedding_columns]; and [position_rows,
  // embedding_columns], empty without positions. Later sinusoidal positions are computed when
  // needed.
  std::vector<float> tokens, positions;
  int64_t position_rows = 0;
  kernels::FeatureMapArgs feature_map;  // of kind "linear", without omega
  std::vector<LayerWeights> layers;
  std::unique_ptr<PredictorWeights> predictor;  // null: there is none, or it was not asked for
  NormWeights final_norm;
  // Before the head, of kinds "linear" and "softmax": x = norm(gelu(linear(x))). Often empty.
  MatrixWeights transform;
  NormWeights transform_norm;
  MatrixWeights head;  // hidden -> output_size; empty if the embedding is the head
  WeightFacts facts;
  // [key_dim] each: weights with which an RMS norm gives the length 1, and key_dim^-1/2.
  std::vector<float> unit_length, scaled_length;
  // For heads of RetNet, of a hybrid's softmax attention, or of our own format; no rotation without
  // frequencies.
  RopeConfig rope;
  // RWKV-7 with tensors attn.initial_state: the state before the first token. Empty: zeros.
  std::vector<float> initial_state;  // [BlockState::floats_per_slot]

  // The matrix of the head.
  const MatrixWeights& Head() const { return head.packed.n == 0 ? embedding : head; }

  // Reads and packs; with `predict` also the predictor, if there is one. Every tensor of the
  // checkpoint must be used or skipped (IsSkippedTensor), and have the shape that the configuration
  // demands. Errors: DATA_LOSS (file; a tensor that is missing, misshapen or not
  // expected, named), INVALID_ARGUMENT (a weight too large for its type, named),
  // RESOURCE_EXHAUSTED (memory).
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Load(const Model& model,
                                                             const WeightChoice& choice,
                                                             bool predict = false);
  // The bytes and matrices that Load would keep; fails like Load for tensors that are missing,
  // misshapen or not expected. Reads no weight.
  static absl::StatusOr<WeightPlan> Plan(const Model& model, const WeightChoice& choice,
                                         bool predict = false);
};

// The choice for a backend that cannot multiply integers: the types of the file, with integers in
// blocks decoded.
WeightPrecision NumbersOnly(const Model& model);

}  // namespace rivulet
