// SPDX-License-Identifier: Apache-2.0
// Softmax attention on the GPU: the equation of softmax_attention.h for all segments and heads of
// one layer, over what their slots have kept and the keys and values of the pass itself, which are
// kept behind it.
//
// A thread block takes up to 16 rows, a row being a head of queries of a token. Those that share a
// head of keys are in the same block and read its keys once. Where segments are few and short, as
// in a step, the blocks of 64 positions of a sequence are spread over the machine: one launch makes
// the maximum, the sum and the weighted values of each, a second one joins them. Otherwise a thread
// block walks them from the first to the last.
//
// Numerics: as in softmax_attention.h. Each score and each weighted value is one chain of fused
// multiply-adds in index order, of the positions that a token sees alone; the sum of a block is a
// butterfly. All ways share that code, so a token has the same bits whether prefilled or stepped,
// in any company. They are not the CPU's, because expf and the order of a block's sum differ.
// Cost: a thread block reads all keys and values that its tokens see; 2 (key_dim + value_dim) flop
// a position and row. Tested by: tests/parity/cuda_softmax_attention_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/softmax_attention.h"

namespace rivulet::kernels {

inline constexpr int kMaxCudaSoftmaxDim = 256;  // of key_dim and value_dim

struct CudaSoftmaxAttentionArgs {
  const CudaSegment* segments = nullptr;  // [num_segments], slots of active ones distinct
  int num_segments = 0;
  int rows = 0;                        // token rows of the pass; the segments' are among them
  const int64_t* positions = nullptr;  // [rows]
  // Token rows as the product leaves them, with the first columns of q [heads, queries, key_dim], k
  // [heads, key_dim] and v [heads, value_dim].
  const float* in = nullptr;  // [rows, ld_in]
  int ld_in = 0, q = 0, k = 0, v = 0;
  float* out = nullptr;          // [rows, ld_out] heads x queries x value_dim; rows of no segment
                                 // keep theirs
  uint16_t* out_half = nullptr;  // instead of out: the same rounded to F16
  int ld_out = 0;
  int heads = 0;    // of keys and values
  int queries = 1;  // heads of queries for each
  int key_dim = 0, value_dim = 0;
  int64_t window = 0, ring = 0;  // as in SoftmaxAttentionArgs
  float scale = 1;               // of scores
  float output_scale = 1;
  // Slot i's layer: its first block is at states + i floats_per_slot + kept, head h of it
  // h CacheFloats() floats behind that, the next block block_stride floats behind it.
  float* states = nullptr;
  size_t floats_per_slot = 0, kept = 0, block_stride = 0;
  // Where the blocks of a sequence may be spread: scratch of `partial_floats` floats, for rows of
  // SoftmaxPartialFloats() each. Fewer than a pass has rows: its blocks are walked.
  float* partials = nullptr;
  size_t partial_floats = 0;
  int64_t max_blocks = 0;  // that a sequence can have, or the ring
};

// Floats of CudaSoftmaxAttentionArgs::partials for one token row.
constexpr size_t SoftmaxPartialFloats(int query_heads, int value_dim, int64_t max_blocks) {
  return static_cast<size_t>(query_heads) * static_cast<size_t>(max_blocks) *
         (static_cast<size_t>(value_dim) + 2);
}
// The pairs of a segment and a head of keys from which on spreading makes nothing faster
// (estimated).
inline constexpr int kSoftmaxSpreadUnits = 128;

// Once a device, before the first launch.
cudaError_t PrepareSoftmaxAttentionCuda();
// cudaErrorInvalidValue where an argument is missing or out of range.
cudaError_t SoftmaxAttentionCuda(const CudaLaunch& launch, const CudaSoftmaxAttentionArgs& args);

}  // namespace rivulet::kernels
