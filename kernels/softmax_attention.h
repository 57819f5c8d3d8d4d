// SPDX-License-Identifier: Apache-2.0
// Causal softmax attention over cached keys and values: tokens of one sequence, in order; one head
// of keys and values with the heads of queries that share it.
//
//   y_t = sum_i p_i v_i / sum_i p_i     p_i = exp(scale q_t . k_i - max)     [Vaswani 2017, eq. 1]
//
// where i runs from 0, or from t - window + 1 on, to t: a token attends to itself.
//
// Keys and values lie in blocks of 64 positions, counted from position 0. A block holds, for one
// head, k [key_dim, 64] (transposed) and then v [64, value_dim]. With a window the blocks are a
// ring: block b is number b % ring. Keys and values of 16 bits, including those of this call's
// tokens, are rounded to nearest even when they are stored; every product is float32.
//
// Numerics: a block has its own maximum, sum and weighted values, and blocks are joined from the
// first to the last [Milakov & Gimelshein 2018]. Products sum in index order, the sum of a block in
// a fixed tree. A position that a token does not see changes nothing, whatever it holds, NaN
// included. So the bits depend on position and values alone: several tokens in one call give the
// same bits as calls of one token each, on every instruction set with fused multiply-adds.
// Thread: any; calls on different caches may run at once.
// Tested by: tests/parity/softmax_attention_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/recurrence.h"

namespace rivulet::kernels {

inline constexpr int kCacheBlock = 64;  // positions

// The type in which keys and values are cached.
enum class CacheType : uint8_t { kF32, kF16, kBf16 };

// Room of one head in one block, in floats of 4 bytes.
constexpr size_t CacheFloats(int key_dim, int value_dim, CacheType type = CacheType::kF32) {
  const size_t values = size_t{kCacheBlock} * (size_t(key_dim) + size_t(value_dim));
  return type == CacheType::kF32 ? values : values / 2;
}

// Blocks that hold `positions` positions.
constexpr int64_t CacheBlocks(int64_t positions) {
  return (positions + kCacheBlock - 1) / kCacheBlock;
}

// Blocks of the ring for a window of `window` >= 1 positions: enough that all blocks that a token
// sees stay while the block with its own position is written.
constexpr int64_t RingBlocks(int64_t window) {
  return (window - 2 + 2 * kCacheBlock) / kCacheBlock;
}

struct SoftmaxAttentionArgs {
  int tokens = 0, key_dim = 0, value_dim = 0;
  int queries = 1;       // heads of queries, side by side in q and y
  int64_t position = 0;  // of the first token
  int64_t window = 0;    // positions that a token sees, its own counted; 0: all
  float scale = 1;
  TokenVectors q;  // [queries, key_dim]
  TokenVectors k;  // [key_dim]
  TokenVectors v;  // [value_dim]
  // The head's part of block 0; positions before `position` are filled. Block b is block_stride *
  // (b, or b % ring) floats behind it. All of a block is read, also places that were never written.
  float* cache = nullptr;
  CacheType type = CacheType::kF32;
  size_t block_stride = 0;   // >= CacheFloats(key_dim, value_dim, type)
  int64_t ring = 0;          // >= RingBlocks(window), with a window alone; 0: no ring
  float* y = nullptr;        // [queries, value_dim] a token; overlaps no other array
  size_t y_stride = 0;       // >= queries * value_dim
  float* scratch = nullptr;  // [SoftmaxAttentionScratch(queries, key_dim, value_dim, type)]
};

size_t SoftmaxAttentionScratch(int queries, int key_dim, int value_dim, CacheType type);

void SoftmaxAttentionRef(const SoftmaxAttentionArgs& args);  // double; tests only
// Cost of a token: 2 * queries * (key_dim + value_dim) flop for each position that it sees, rounded
// up to blocks. A call reads each block once for every 64 tokens.
void SoftmaxAttentionCpu(const SoftmaxAttentionArgs& args);

// Softmax attention of one token without a window, in three steps, so that several threads can
// share its blocks: Keep stores the token; Part computes the part of one block, by any thread in
// any order; Join adds the parts of blocks `first` to `end` - 1 to one query, in this order.
// REQUIRES: one token, window 0.
void SoftmaxKeepCpu(const SoftmaxAttentionArgs& args);
// A part: maxima [queries], sums [queries], weighted values [queries, value_dim].
constexpr size_t SoftmaxPartFloats(int queries, int value_dim) {
  return size_t(queries) * (2 + size_t(value_dim));
}
// `next`: the block that this thread computes next, which is requested from memory; -1: unknown.
void SoftmaxPartCpu(const SoftmaxAttentionArgs& args, int64_t block, float* part,
                    int64_t next = -1);
// `parts`: the parts of these blocks, side by side. `so_far`: two floats for this query alone;
// their values before block 0 do not matter. After the last block the query's y is complete.
void SoftmaxJoinCpu(const SoftmaxAttentionArgs& args, int query, int64_t first, int64_t end,
                    const float* parts, float* so_far);

// What the cache holds for the positions of this call's tokens, before they are stored: KeepPlaces
// copies it to `kept` [tokens, PlaceFloats], PutBackPlaces copies the places from token `first` on
// back. They read of `args` the cache and its shape, position and tokens.
constexpr size_t PlaceFloats(int key_dim, int value_dim) {
  return size_t(key_dim) + size_t(value_dim);  // of 4 bytes, for every type
}
void KeepPlaces(const SoftmaxAttentionArgs& args, float* kept);
void PutBackPlaces(const SoftmaxAttentionArgs& args, int first, const float* kept);

}  // namespace rivulet::kernels
