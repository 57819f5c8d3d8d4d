// SPDX-License-Identifier: Apache-2.0
// BlockConfig: a model of the linear-attention family as its checkpoint describes it, a list of
// equal blocks: x += mix(norm(x)); x += ffn(norm(x)). Which mixer a kind has is in the kernels'
// headers (kernels/recurrence.h) and in model/cpu/block_mixers.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rivulet {

enum class BlockKind : uint8_t {
  kRetNet,
  kGla,
  kHgrn2,
  kMamba2,
  kDeltaNet,
  kGatedDeltaNet,
  kKda,
  kRwkv7,
};

// As `model_type` spells it: "gated_deltanet".
const char* BlockKindName(BlockKind kind);

// Where the parts of a layer's state lie in a slot, in floats from its beginning. Every part begins
// 16-byte aligned, the slot is padded to 64 bytes; padding is zero. All layers are alike.
struct BlockState {
  size_t s = 0;            // S [heads][key_dim][value_dim]
  size_t conv = 0;         // the last inputs [conv_width - 1][conv_channels]
  size_t mixer_shift = 0;  // the last token's normed row [hidden]; RWKV-7 alone, as the next
  size_t ffn_shift = 0;
  size_t floats_per_layer = 0;
  size_t floats_per_slot = 0;
};

// Immutable once parsed; every dimension is at least 1 unless said otherwise.
struct BlockConfig {
  BlockKind kind = BlockKind::kGla;
  int vocab_size = 0, hidden_size = 0, num_layers = 0;
  int num_heads = 0, key_dim = 0, value_dim = 0;  // a head
  // Heads of q and k, each for as many neighbouring heads of v and S; 0: num_heads.
  int num_key_heads = 0;
  int ffn_size = 0;  // 0: no feed-forward (Mamba-2)
  float norm_eps = 1e-6f;
  bool tied_head = false;  // the embedding is the head's matrix
  std::vector<int32_t> eos_token_ids;

  int conv_width = 0;  // 0: no convolution
  bool conv_bias = false;
  bool output_gate = false;           // g_proj: o times f(g)
  bool negative_eigenvalues = false;  // delta rules: beta is doubled
  float gate_normalizer = 16;         // GLA
  std::optional<float> gate_floor;    // GLA: clamp_min, of the exponent
  int num_groups = 1;                 // Mamba-2: n_groups
  float dt_min = 0, dt_max = 0;       // Mamba-2: time_step_limit
  bool projection_bias = false;       // Mamba-2: use_bias
  bool first_norm = false;            // RWKV-7: norm_first, a norm behind the embedding
  bool norm_bias = false;             // RWKV-7

  int key_heads() const { return num_key_heads > 0 ? num_key_heads : num_heads; }
  int keys() const { return key_heads() * key_dim; }
  int values() const { return num_heads * value_dim; }
  // Channels of the convolution: q, k, v side by side, or Mamba-2's x, B, C.
  int conv_channels() const {
    if (conv_width == 0) return 0;
    return kind == BlockKind::kMamba2 ? values() + 2 * num_groups * key_dim : 2 * keys() + values();
  }
  BlockState state() const;
};

}  // namespace rivulet
