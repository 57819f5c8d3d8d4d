// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/block_config.h"

#include <algorithm>

#include "model/config.h"

namespace rivulet {

StateParts BlockStateParts(const ModelConfig& config) {
  const BlockConfig& block = config.block();
  const size_t shift = block.kind->mixer == Mixer::kRwkv7 ? size_t(config.hidden_size) : 0;
  return StateParts(
      config.num_layers,
      {{"S", {size_t(config.num_heads), size_t(config.key_dim), size_t(config.value_dim)}},
       {"conv", {size_t(std::max(block.conv_width - 1, 0)), size_t(block.conv_channels)}},
       {"mixer_shift", {shift}},
       {"ffn_shift", {shift}}});
}

}  // namespace rivulet
