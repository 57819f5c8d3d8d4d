// SPDX-License-Identifier: Apache-2.0
// Linear attention on the GPU: the equation of linear_attention.h for all segments and heads of one
// layer. Segments are independent; the tokens of one advance its state in order.
//
// One block (small states: one warp) takes a head of a segment. S stays in registers, or in shared
// memory, across the segment's tokens: it is read once and written once, whatever their number. A
// token's arithmetic is the same either way, so it has the same bits whether prefilled or stepped,
// whatever else the batch holds. Kernels exist for features x value_dim of 32 x 32, 64 x 32, 64 x
// 64 and 128 x 64; a generic kernel takes the other shapes.
//
// Long segments of these shapes have kernels of their own with the same bits (no chunked algorithm:
// its bits would depend on the cuts; kernels/README.md says what this costs). One launch over the
// whole machine computes all feature maps; the blocks of a second one only advance the state
// (linear_attention_prefill_cuda.cu).
//
// Cost: 8 features (value_dim + 1) bytes of state a segment and head, 4 features value_dim flop and
// the feature maps a token. Tested by: tests/parity/cuda_linear_attention_test.cc,
// cuda_prefill_attention_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/feature_map.h"
#include "kernels/state_layout.h"

namespace rivulet::kernels {

struct CudaAttentionArgs {
  const CudaSegment* segments = nullptr;  // [num_segments], slots of active ones distinct
  int num_segments = 0;
  int num_long = 0;  // the first num_long segments are long: speed, never bits
  // Token rows, the output of the layer's product: queries of all heads (key_dim each), keys,
  // values (value_dim each), then, where `gated`, one gate per head.
  const float* qkv = nullptr;    // [rows, ld_qkv]
  float* out = nullptr;          // [rows, ld_out] heads x value_dim; rows of no segment keep theirs
  uint16_t* out_half = nullptr;  // instead of out: the output rounded to F16
  int ld_qkv = 0, ld_out = 0;
  float* states = nullptr;  // slot i at states + i layout.floats_per_slot(); 64-byte aligned
  StateLayout layout;
  int layer = 0;
  FeatureMapArgs map;         // omega: device memory, head 0's
  size_t omega_per_head = 0;  // floats from one head's omega to the next; 0: all share it
  bool gated = false;
  bool clamp = false;  // n(x) = max(x, normalizer), else x + normalizer
  float normalizer = 0;
  // Where num_long > 0: scratch [rows + num_long, AttentionFeatureFloats()], 16-byte aligned; its
  // first rows are the token rows.
  float* features = nullptr;
  int rows = 0;  // token rows of the pass, of all segments
};

// Floats of a row of CudaAttentionArgs::features; a multiple of 4.
int AttentionFeatureFloats(const StateLayout& layout);

// Null if a kernel for this shape exists, else the reason: there is none for more than about 4900
// features.
const char* CheckAttentionCuda(const StateLayout& layout, const FeatureMapArgs& map);
// Call once per device, before the first launch there: lets the kernels use more shared memory than
// 48 KiB.
cudaError_t PrepareAttentionCuda();
cudaError_t AttentionCuda(const CudaLaunch& launch, const CudaAttentionArgs& args);

}  // namespace rivulet::kernels
