// SPDX-License-Identifier: Apache-2.0
// Softmax attention on the GPU: the equation of softmax_attention.h for all segments and heads of
// one layer, over the keys and values in their slots and those of the pass itself, which are then
// stored in the slots.
//
// A thread block takes up to 16 rows; a row is one head of queries of one token. Rows that share a
// head of keys are in the same thread block and read its keys once. Where segments are few and
// short, as in a step, a sequence's blocks of 64 positions are spread over the machine: one launch
// computes the maximum, the sum and the weighted values of each block, a second one joins the
// blocks. Otherwise a thread block walks the blocks from the first to the last.
//
// Numerics: as in softmax_attention.h. Each score and each weighted value is one chain of fused
// multiply-adds in index order, over the positions that the token sees; the sum of a block is a
// butterfly. All kernels share that code, so a token has the same bits whether prefilled or
// stepped, whatever else the batch holds. They are not the CPU's bits, because expf and the order
// of a block's sum differ.
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
  // Token rows, the output of the layer's product. `q`, `k`, `v` are the first columns of q [heads,
  // queries, key_dim], k [heads, key_dim] and v [heads, value_dim].
  const float* in = nullptr;  // [rows, ld_in]
  int ld_in = 0, q = 0, k = 0, v = 0;
  float* out = nullptr;          // [rows, ld_out] heads x queries x value_dim; rows of no segment
                                 // keep theirs
  uint16_t* out_half = nullptr;  // instead of out: the output rounded to F16
  int ld_out = 0;
  int heads = 0;    // of keys and values
  int queries = 1;  // heads of queries for each
  int key_dim = 0, value_dim = 0;
  int64_t window = 0, ring = 0;  // as in SoftmaxAttentionArgs
  float scale = 1;               // of scores
  float output_scale = 1;
  // In slot i this layer's first block begins at states + i floats_per_slot + kept. Head h of a
  // block is h CacheFloats() floats behind the block's beginning, the next block block_stride
  // floats.
  float* states = nullptr;
  size_t floats_per_slot = 0, kept = 0, block_stride = 0;
  // Scratch of `partial_floats` floats for spreading the blocks of sequences,
  // SoftmaxPartialFloats() per row. If it is too small for the rows of a pass, thread blocks walk
  // the blocks.
  float* partials = nullptr;
  size_t partial_floats = 0;
  int64_t max_blocks = 0;  // most blocks of a sequence, or of the ring
};

// Floats of CudaSoftmaxAttentionArgs::partials for one token row.
constexpr size_t SoftmaxPartialFloats(int query_heads, int value_dim, int64_t max_blocks) {
  return static_cast<size_t>(query_heads) * static_cast<size_t>(max_blocks) *
         (static_cast<size_t>(value_dim) + 2);
}
// From this number of (segment, head of keys) pairs on, spreading makes nothing faster (estimated).
inline constexpr int kSoftmaxSpreadUnits = 128;

// Call once per device, before the first launch.
cudaError_t PrepareSoftmaxAttentionCuda();
// cudaErrorInvalidValue where an argument is missing or out of range.
cudaError_t SoftmaxAttentionCuda(const CudaLaunch& launch, const CudaSoftmaxAttentionArgs& args);

}  // namespace rivulet::kernels
