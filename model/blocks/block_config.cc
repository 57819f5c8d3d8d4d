// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/block_config.h"

#include "kernels/state_layout.h"

namespace rivulet {

const char* BlockKindName(BlockKind kind) {
  switch (kind) {
    case BlockKind::kRetNet:
      return "retnet";
    case BlockKind::kGla:
      return "gla";
    case BlockKind::kHgrn2:
      return "hgrn2";
    case BlockKind::kMamba2:
      return "mamba2";
    case BlockKind::kDeltaNet:
      return "delta_net";
    case BlockKind::kGatedDeltaNet:
      return "gated_deltanet";
    case BlockKind::kKda:
      return "kda";
    case BlockKind::kRwkv7:
      return "rwkv7";
  }
  return "";
}

BlockState BlockConfig::state() const {
  BlockState state;
  size_t at = 0;
  const auto add = [&at](size_t floats) {
    const size_t begin = at;
    at += kernels::StateLayout::RoundUp(floats, 4);
    return begin;
  };
  state.s = add(size_t(num_heads) * size_t(key_dim) * size_t(value_dim));
  state.conv = add(conv_width == 0 ? 0 : size_t(conv_width - 1) * size_t(conv_channels()));
  const size_t shift = kind == BlockKind::kRwkv7 ? size_t(hidden_size) : 0;
  state.mixer_shift = add(shift);
  state.ffn_shift = add(shift);
  state.floats_per_layer = at;
  state.floats_per_slot = kernels::StateLayout::RoundUp(size_t(num_layers) * at, 16);
  return state;
}

}  // namespace rivulet
