// SPDX-License-Identifier: Apache-2.0
// BlockWeights: the weights of a model of the family as the CPU kernels want them: matrices packed,
// each in the type of its file unless told otherwise, the rest float32.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cpu/aligned_buffer.h"
#include "model/cpu/cpu_network.h"
#include "model/cpu/cpu_weights.h"
#include "model/weights/checkpoint_tensors.h"

namespace rivulet {

// First columns of what BlockLayer::in makes of a row. -1: the kind has no such part.
struct BlockColumns {
  int q = -1, k = -1, v = -1;
  int gate = -1;           // of the output
  int low = -1;            // first half of the decay's low-rank product
  int low_gate = -1;       // first half of the gate's
  int beta = -1, dt = -1;  // one a head; dt: what the decay is made of
  int n = 0;
};

// A projection of rank r: second(f(first(x))).
struct LowRank {
  CpuMatrix first, second;
};

struct Rwkv7Layer {
  std::vector<float> first_norm, first_norm_bias;  // layer 0 alone, where first_norm is set
  std::vector<float> mix;                          // [6, hidden]: r w k v a g
  std::vector<float> ffn_mix;                      // [hidden]
  CpuMatrix r, k, v;
  LowRank w, a, v_mix, g;                          // v_mix: from layer 1 on
  std::vector<float> k_k, k_a, r_k;                // [hidden]
  std::vector<float> group_norm, group_norm_bias;  // [hidden]
};

struct BlockLayer {
  std::vector<float> norm1, norm1_bias;  // [hidden]; the biases of RWKV-7 alone
  std::vector<float> norm2, norm2_bias;  // empty where there is no feed-forward
  CpuMatrix in;                          // hidden -> BlockColumns
  CpuMatrix decay;                       // second half of the decay's low-rank product
  CpuMatrix gate;                        // ... and of the gate's
  CpuMatrix out;                         // values -> hidden
  CpuMatrix up;                          // hidden -> [gate | up], each padded; RWKV-7: key
  CpuMatrix down;                        // ffn -> hidden
  std::vector<float> conv, conv_bias;    // [width, channels], [channels] or empty
  std::vector<float> decay_scale;        // [keys or heads]
  std::vector<float> decay_bias;         // likewise, or empty
  std::vector<float> lower_bound;        // [keys], HGRN2
  std::vector<float> skip;               // [heads], Mamba-2's D
  std::vector<float> out_norm;           // [value_dim], or [values] for Mamba-2 and HGRN2
  std::unique_ptr<Rwkv7Layer> rwkv7;     // null for the others
};

// Immutable once loaded; any thread.
struct BlockWeights {
  BlockColumns columns;
  CpuMatrix embedding;  // one row a token: columns of a packed [hidden -> vocab]
  std::vector<BlockLayer> layers;
  std::vector<float> final_norm, final_norm_bias;
  CpuMatrix head;  // hidden -> vocab; empty where the embedding is the head
  CpuWeightFacts facts;
  // [key_dim] each: what makes a norm of root mean squares one of the length 1, and of
  // key_dim^-1/2.
  std::vector<float> unit_length, scaled_length;
  // [key_dim / 2], RetNet: what a position is multiplied with for the angle of each pair.
  std::vector<double> rope_frequencies;

  // Reads and packs. Every tensor of the checkpoint must be used, and have the shape that `config`
  // asks for. Errors: DATA_LOSS (file; a tensor that is missing, misshapen or not expected, named),
  // INVALID_ARGUMENT (a weight too large for `precision`, named), RESOURCE_EXHAUSTED (memory).
  static absl::StatusOr<std::unique_ptr<BlockWeights>> Load(const CheckpointTensors& checkpoint,
                                                            const ModelConfig& config,
                                                            WeightPrecision precision);
  // What Load would keep, in bytes, and its errors for tensors that are missing, misshapen or not
  // expected. No weight is read.
  static absl::StatusOr<size_t> Measure(const CheckpointTensors& checkpoint,
                                        const ModelConfig& config, WeightPrecision precision);
};

}  // namespace rivulet
