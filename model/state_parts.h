// SPDX-License-Identifier: Apache-2.0
// StateParts: the layout of the state of one sequence in a slot, by the kind of its model. Only the
// network looks into a part: a slot is cleared, copied, read and written as one contiguous array,
// and a cleared slot is all zeros, or the initial state of the model (RWKV-7).
//
//   recurrent parts of all layers | rings of keys and values | blocks of keys and values
//
// The first two exist from the first token on. Each 64 tokens fill one more block, in which the
// layers that attend to all positions lie in order. So a sequence uses one piece of memory from the
// slot's beginning on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/softmax_attention.h"

namespace rivulet {

// One array of a recurrent layer's state, in float32.
struct StatePart {
  std::string name;           // unique within the list
  std::vector<size_t> shape;  // row-major; any 0: the part is empty
  // In floats, set by StateParts: its beginning in the layer, and its size with padding.
  size_t offset = 0, floats = 0;
};

// The cache of a layer with softmax attention (kernels/softmax_attention.h). All such layers of a
// model are alike.
struct AttentionPart {
  int heads = 0, key_dim = 0, value_dim = 0;  // of keys and values
  int64_t window = 0;                         // 0: all positions
  kernels::CacheType type = kernels::CacheType::kF32;

  size_t floats_per_block() const;
  int64_t ring() const;  // blocks; 0: there is no window
};

// The kinds of a model's layers. A layer may be both.
struct LayerMix {
  std::vector<bool> recurrent, attends;  // [layers] each
};

// Bytes of a state by number of tokens. A segment is the part of the state for segment_tokens
// tokens. Once all these tokens were fed, it never changes, and kept states share it.
struct StateSize {
  size_t fixed = 0, per_block = 0;                  // per_block: 0 where nothing grows
  int64_t block_tokens = 64, segment_tokens = 256;  // segment_tokens is a multiple of block_tokens
  // The type of keys and values, and the byte at which they begin; before that byte all is float32.
  kernels::CacheType kept_type = kernels::CacheType::kF32;
  size_t cache_begin_bytes = 0;

  // Bytes of a sequence that has fed `positions` tokens, with the bos.
  size_t At(int64_t positions) const;
  size_t per_token() const;
  // The number of segments of a state after `positions` tokens. They follow its fixed bytes.
  int64_t Segments(int64_t positions) const;
  size_t segment_bytes() const;
  // Whether a state of some number of positions up to `most` has this size.
  bool Fits(size_t bytes, int64_t most) const;
  // Whether the values of a state from byte `begin` on are finite.
  bool AllFinite(std::span<const float> values, size_t begin = 0) const;
};

// Every part begins 16-byte aligned, and a slot is padded to 64 bytes, so that slots side by side
// begin on cache lines. Padding is zero. All recurrent layers are alike.
struct StateParts {
  // A model of recurrent layers alone.
  StateParts(int layers, std::vector<StatePart> parts);
  StateParts(const LayerMix& mix, std::vector<StatePart> parts, const AttentionPart& attention);
  // The keys and values of one layer.
  explicit StateParts(const AttentionPart& kept) : StateParts({{false}, {true}}, {}, kept) {}

  // The part `name`; null: there is none.
  const StatePart* Find(absl::string_view name) const;
  StateSize size() const;

  std::vector<StatePart> parts;
  std::optional<AttentionPart> attention;
  size_t floats_per_layer = 0;  // of the recurrent parts
  size_t fixed_floats = 0;      // of a slot, without blocks
  size_t block_floats = 0;      // added by each 64 tokens
  size_t kept_from = 0;         // where keys and values begin
  // In floats, by layer; 0 if the layer has no such part. cache_offset: of keys and values, from
  // the slot's beginning for a ring, else from the block's beginning.
  std::vector<size_t> recurrent_at, cache_offset;
};

}  // namespace rivulet
