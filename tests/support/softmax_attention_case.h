// SPDX-License-Identifier: Apache-2.0
// One softmax attention with its data, for the tests of the CPU kernel and the CUDA kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "kernels/softmax_attention.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// Rows [q | k | v | padding] of all heads, `tokens` for each of `slots` sequences. The states are
// zeros, each after `before` floats.
struct SoftmaxAttentionCase {
  SoftmaxAttentionCase(int keys, int values, int of_key, int64_t seen, int count, int of_heads = 1,
                       int sequences = 1, int floats_before = 0)
      : key_dim(keys),
        value_dim(values),
        queries(of_key),
        tokens(count),
        heads(of_heads),
        slots(sequences),
        before(floats_before),
        window(seen),
        ring(window == 0 ? 0 : RingBlocks(window)),
        blocks(window == 0 ? CacheBlocks(tokens) : ring),
        rows(RandomFloats(size_t(slots * tokens * ld()), 5, -2, 2)),
        states(size_t(slots) * floats_per_slot()) {}
  // Keys and values that the type holds exactly, so that only what is kept rounds.
  void RoundTo(CacheType kept) {
    KeepAs(kept);
    for (float& x : rows) {
      x = type == CacheType::kF16 ? F16ToF32(F32ToF16(x)) : Bf16ToF32(F32ToBf16(x));
    }
  }
  void KeepAs(CacheType kept) {
    type = kept;
    states.assign(size_t(slots) * floats_per_slot(), 0.0f);
  }
  int k() const { return heads * queries * key_dim; }
  int v() const { return k() + heads * key_dim; }
  int ld() const { return v() + heads * value_dim + 3; }
  int width() const { return heads * queries * value_dim; }
  int ld_y() const { return width() + 5; }
  size_t y_size() const { return size_t(slots * tokens * ld_y()); }
  size_t stride() const { return size_t(heads) * CacheFloats(key_dim, value_dim, type) + 16; }
  size_t floats_per_slot() const { return size_t(before) + size_t(blocks) * stride(); }

  // `count` tokens of sequence `slot` from `first` on; `y` and `states` are of all sequences.
  SoftmaxAttentionArgs Args(int slot, int first, int count, float* y, float* all_states,
                            int head = 0) const {
    const float* const row = rows.data() + (slot * tokens + first) * ld();
    SoftmaxAttentionArgs args;
    args.tokens = count;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.queries = queries;
    args.position = first;
    args.window = window;
    args.scale = kScale;
    args.q = {row + head * queries * key_dim, size_t(ld())};
    args.k = {row + k() + head * key_dim, size_t(ld())};
    args.v = {row + v() + head * value_dim, size_t(ld())};
    args.cache = all_states + size_t(slot) * floats_per_slot() + before +
                 size_t(head) * CacheFloats(key_dim, value_dim, type);
    args.type = type;
    args.block_stride = stride();
    args.ring = ring;
    args.y_stride = size_t(ld_y());
    args.y = y + (slot * tokens + first) * ld_y() + head * queries * value_dim;
    return args;
  }

  static constexpr float kScale = 0.7f;
  int key_dim, value_dim, queries, tokens, heads, slots, before;
  int64_t window, ring, blocks;
  CacheType type = CacheType::kF32;
  std::vector<float> rows, states;
};

inline std::vector<SoftmaxAttentionCase> SoftmaxAttentionCases(const std::vector<int>& windows,
                                                               int tokens, int heads = 1,
                                                               int slots = 1, int before = 0) {
  std::vector<SoftmaxAttentionCase> cases;
  for (const auto& [keys, values, queries] : {std::array{8, 8, 1},
                                              {5, 7, 3},
                                              {64, 64, 4},
                                              {33, 100, 2},
                                              {16, 24, 6},
                                              {128, 128, 6},
                                              {256, 256, 1},
                                              {12, 200, 18}}) {
    for (const int window : windows) {
      cases.emplace_back(keys, values, queries, window, tokens, heads, slots, before);
    }
  }
  return cases;
}

inline std::string Name(const SoftmaxAttentionCase& c) {
  return std::to_string(c.key_dim) + " keys, " + std::to_string(c.value_dim) + " values, " +
         std::to_string(c.queries) + " queries, window " + std::to_string(c.window);
}

}  // namespace rivulet::kernels
