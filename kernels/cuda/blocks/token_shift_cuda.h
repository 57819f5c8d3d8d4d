// SPDX-License-Identifier: Apache-2.0
// RWKV's token shift on the GPU, with the norm before it: the equations of group_norm.h (one group)
// and token_shift.h for all segments of one layer. The state holds a normed row.
//
//   h = norm(x),   y[m][t] = h[t] + (h[t - 1] - h[t]) mix[m]
//
// A block takes a segment of one token or, in passes with longer ones, four token rows
// (segment_rows_cuda.h): it norms these and the row before them, which another block norms as well.
// The norm has the bits of GroupNormCuda, the shift those of the CPU: a row's bits depend on x[t -
// 1], x[t] and the weights alone.
// Cost: 5 n to 8 n bytes a token read, 4 n mixes (2 n in F16) written; 8 n bytes of state a
// segment.
// Tested by: tests/parity/cuda_token_shift_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/token_shift.h"

namespace rivulet::kernels {

// Two rows of kMaxCudaShiftColumns fit into a block's shared memory on every architecture.
inline constexpr int kMaxCudaMixes = 6, kMaxCudaShiftColumns = 12288;

struct CudaTokenShiftArgs {
  const CudaSegment* segments = nullptr;  // [num_segments], slots of active ones distinct
  int num_segments = 0;
  int rows = 0;                                    // token rows; the segments' are among them
  const float* x = nullptr;                        // [rows, ld_x]
  const float *weight = nullptr, *bias = nullptr;  // [n]: of the norm
  float eps = 0;
  const float* mix = nullptr;  // [mixes, n]
  // Mix m of row r is at y + r ld_y + m mix_stride; not x. Exactly one of y and y_half is set.
  float* y = nullptr;
  uint16_t* y_half = nullptr;  // y rounded to F16, as a product would round it
  int ld_x = 0, ld_y = 0, mix_stride = 0, n = 0;
  int mixes = 0;               // 1 to kMaxCudaMixes
  float* states = nullptr;     // slot i's at states + i floats_per_slot
  size_t floats_per_slot = 0;  // of a whole slot
  size_t offset = 0;           // of this layer's [n] in a slot
};

// Call once per device, before the first launch.
cudaError_t PrepareTokenShiftCuda();
// cudaErrorInvalidValue where an argument is missing or out of range. Rows of no segment keep y.
cudaError_t TokenShiftCuda(const CudaLaunch& launch, const CudaTokenShiftArgs& args);

}  // namespace rivulet::kernels
