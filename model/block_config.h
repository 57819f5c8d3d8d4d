// SPDX-License-Identifier: Apache-2.0
// The kinds of models of the linear-attention family, and BlockConfig: a checkpoint's settings
// beside ModelConfig. A block is x += mix(norm(x)); x += ffn(norm(x)). In hybrids blocks differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/experts.h"
#include "model/rope.h"
#include "model/state_parts.h"

namespace rivulet {

class JsonReader;
struct ModelConfig;

// How a layer mixes tokens. The equations are in kernels/recurrence.h, model/cpu/cpu_mixers.cc
// and model/cpu/cpu_rwkv7.cc.
enum class Mixer : uint8_t { kGated, kDelta, kMamba2, kRwkv7, kShortConv };

// Mamba-2's norm and gate: o = norm(o silu(z)), o = norm(o) silu(z) or o = o silu(z).
enum class MambaNorm : uint8_t { kGateFirst, kNormFirst, kNone };

// The source of the factor w of the state.
enum class DecayForm : uint8_t {
  kNone,        // w = 1
  kFixed,       // a constant per head
  kOfHead,      // one per head, from a column of the input product
  kLowRank,     // one per key, from a product of low rank
  kLowerBound,  // one per key, from k, which is 1 - w
};

// A row of the table of kinds. The mixer's code and the settings add what is not in it.
struct BlockKind {
  const char* model_type;  // as config.json spells it
  absl::Status (*read_settings)(JsonReader*, ModelConfig*);
  // The parts of a layer's state, in order.
  std::vector<StatePart> (*state)(const ModelConfig&);
  Mixer mixer;
  DecayForm decay;
  const char* output_norm = "g_norm";  // as flash-linear-attention names its tensor
  bool rotary = false;                 // q and k are turned by the token's position
  bool low_rank_gate = false;          // the output's gate is the sigmoid of a product of low rank
  bool norm_all_heads = false;  // the output's norm is over all heads together; its eps is 1e-5
  bool hybrid = false;          // with layers of softmax attention (hybrid_settings.h)
  bool counts_layers = false;   // num_hidden_layers may be missing: a list of layers has as many
};
std::span<const BlockKind> BlockKinds();

// The layers with softmax attention of a hybrid. All are alike.
struct SoftmaxConfig {
  int num_heads = 0;     // of queries
  int num_kv_heads = 0;  // of keys and values; neighbouring heads of queries share one
  int head_dim = 0;
  float scale = 1;  // of scores
  // Scales of the layer's input and of its output. `scale` and `output_scale` already include the
  // first, which does not scale biases.
  float input_scale = 1, output_scale = 1;
  bool bias = false;
  bool head_norm = false;  // q and k of each head are normed before they are turned
  bool gate = false;       // o times sigmoid(g); g stands beside each head's q
  RopeConfig rope;

  int queries() const { return num_heads * head_dim; }
  int keys() const { return num_kv_heads * head_dim; }
};

enum class FeedForward : uint8_t { kNone, kDense, kExperts };

// The parts of a hybrid's layer, in this order; each has a norm before it, and adds to the row.
// With both mixers, these have the same input.
struct LayerParts {
  bool recurrent = true, attends = false;
  FeedForward ffn = FeedForward::kDense;
  bool mixes() const { return recurrent || attends; }
};

// A mixture of experts (kernels/experts.h). An expert is a feed-forward of `size` columns, of the
// form of the dense one.
struct ExpertsConfig {
  kernels::Router router;
  bool bias = false;         // of the choice
  int size = 0;              // columns of an expert
  int shared_size = 0;       // of the expert that every row uses; 0: there is none
  bool shared_gate = false;  // ... times the sigmoid of a product of the row with a vector
  int latent_size = 0;       // experts work on a projection of the row to this size; 0: on the row
};

struct BlockConfig {
  const BlockKind* kind = nullptr;  // in BlockKinds()
  bool tied_head = false;           // the embedding is the head's matrix
  int conv_width = 0;               // 0: no convolution
  int conv_channels = 0;            // q, k, v side by side, or Mamba-2's x, B, C
  bool conv_bias = false;
  bool output_gate = false;           // g_proj: o times f(g)
  bool negative_eigenvalues = false;  // delta rules: beta is doubled
  bool tiled_heads =
      false;  // of GGUF: head h has keys h % key_heads(), not those of its neighbours
  float gate_normalizer = 16;            // GLA
  std::optional<float> gate_floor;       // GLA: clamp_min, of the exponent
  int num_groups = 1;                    // Mamba-2: n_groups
  float dt_min = 0, dt_max = 0;          // Mamba-2: time_step_limit
  bool projection_bias = false;          // Mamba-2: use_bias
  bool first_norm = false;               // RWKV-7: norm_first, a norm behind the embedding
  bool norm_bias = false;                // RWKV-7
  std::vector<LayerParts> layers;        // of a hybrid: [num_layers]
  std::optional<SoftmaxConfig> softmax;  // of a hybrid
  std::optional<ExpertsConfig> experts;  // if any layer has experts
  bool squared_relu = false;             // the feed-forward is relu(up)^2; else silu(gate) up
  bool norm_around_one = false;          // norms multiply by 1 + weight, except the mixer's norm
  // Scales of the embedding's rows, of the outputs of mixer and feed-forward, of the feed-forward's
  // gate, and a divisor of the logits.
  float embedding_multiplier = 1, mixer_multiplier = 1, ffn_multiplier = 1, gate_multiplier = 1,
        logits_scaling = 1;
  MambaNorm mamba_norm = MambaNorm::kGateFirst;
  // Mamba-2 in Falcon-H1: scales of z, x, B, C and dt, which include the scale of the layer's
  // input; empty: 1. `mamba_input_scale` does not scale biases.
  std::vector<float> mamba_multipliers;
  float mamba_input_scale = 1;
  bool ffn_bias = false;
  bool out_bias = false;  // Mamba-2 in hybrids: of out_proj
};

// Where the parts of a layer's state lie, looked up once, in floats from the beginning of the
// layer; 0 where the kind lacks the part. S [heads, key_dim, value_dim]; the convolution's last
// inputs [conv_width - 1, conv_channels]; the last token's normed rows [hidden] of mixer and
// feed-forward.
struct BlockState {
  BlockState() = default;
  explicit BlockState(const StateParts& parts)
      : s(OffsetOf(parts, "S")),
        conv(OffsetOf(parts, "conv")),
        mixer_shift(OffsetOf(parts, "mixer_shift")),
        ffn_shift(OffsetOf(parts, "ffn_shift")),
        floats_per_layer(parts.floats_per_layer),
        floats_per_slot(parts.fixed_floats) {}
  size_t s = 0, conv = 0, mixer_shift = 0, ffn_shift = 0, floats_per_layer = 0, floats_per_slot = 0;

 private:
  static size_t OffsetOf(const StateParts& parts, absl::string_view name) {
    const StatePart* const part = parts.Find(name);
    return part == nullptr ? 0 : part->offset;
  }
};

}  // namespace rivulet
