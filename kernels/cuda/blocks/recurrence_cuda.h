// SPDX-License-Identifier: Apache-2.0
// The state update of the family's models on the GPU: the equations of recurrence.h for all
// segments and heads of one layer. Segments are independent; the tokens of one advance its state in
// order.
//
//   y = q_scale S^T q + skip v,   with beta v in place of v where kDecay has a beta
//
// Mamba-2 uses skip, and passes its step size as beta.
//
// One warp takes some columns of a head of a segment: 32 columns for up to 64 keys, 16 for up to
// 128, 8 for up to 256, 4 for up to 512. Its part of S stays in registers across the segment's
// tokens: S is read once and written once per call, whatever their number. A token's values per key
// come through shared memory, loaded one token ahead. Where that gives fewer than two warps per
// multiprocessor, as with one prompt, a warp takes 8 columns for up to 64 keys and 4 for up to 128,
// and loads three tokens ahead; the bits are the same.
//
// Numerics: a sum over keys runs over a lane's keys in index order, then over the lanes in a fixed
// butterfly. So the bits of a column depend on that column alone, and several tokens in one call
// give the same bits as calls of one token each. They are not the CPU's bits, because its sums have
// another order.
// Cost: 8 key_dim value_dim bytes a segment and head; flop as on the CPU.
// Tested by: tests/parity/cuda_recurrence_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/recurrence.h"

namespace rivulet::kernels {

inline constexpr int kMaxCudaKeyDim = 512;

// One vector per token row and head; that of row r and head h begins at data + r ld + h
// head_stride. ld 0: all rows share one.
struct CudaHeadVectors {
  const float* data = nullptr;
  int ld = 0, head_stride = 0;
};

struct CudaRecurrenceArgs {
  UpdateRule rule = UpdateRule::kDecay;
  const CudaSegment* segments = nullptr;  // [num_segments], slots of active ones distinct
  int num_segments = 0;
  int heads = 0, key_dim = 0, value_dim = 0;
  int heads_per_key = 1;        // heads that share q and k (Mamba-2's groups): neighbours, ...
  bool tiled_keys = false;      // ... or head h has those of h % (heads / heads_per_key)
  int w_dim = 0;                // values of w a token: 0 (w = 1), 1 or key_dim
  CudaHeadVectors q, k, v, w;   // [key_dim], [key_dim], [value_dim], [w_dim]
  CudaHeadVectors beta;         // [1]: kDelta always, kDecay where set
  CudaHeadVectors a, b;         // [key_dim] each, kRankOne alone
  float q_scale = 1;            // of S^T q
  float beta_scale = 1;         // beta is multiplied with it
  const float* skip = nullptr;  // [heads], kDecay alone; null: 0
  float* states = nullptr;      // 16-byte aligned; slot i's at states + i floats_per_slot
  size_t floats_per_slot = 0;   // a multiple of 4, as s_offset
  size_t s_offset = 0;          // of this layer's S [heads][key_dim][value_dim] in a slot
  float* y = nullptr;           // [rows, ld_y] heads x value_dim; no other array may overlap
  int ld_y = 0;
  int rows = 0;  // token rows of the pass; decides when the kernel starts, never bits
};

// Null if the arguments are valid, else the reason.
const char* CheckRecurrenceCuda(const CudaRecurrenceArgs& args);
// Call once per device, before the first launch.
cudaError_t PrepareRecurrenceCuda();
// cudaErrorInvalidValue where CheckRecurrenceCuda objects. Rows of no segment keep their y.
cudaError_t RecurrenceCuda(const CudaLaunch& launch, const CudaRecurrenceArgs& args);

}  // namespace rivulet::kernels
