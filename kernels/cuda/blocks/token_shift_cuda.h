// SPDX-License-Identifier: Apache-2.0
// RWKV's token shift on the GPU: the equation of token_shift.h for all segments of one layer.
//
// One thread takes a column of a segment or, in passes with long segments, of 16 token rows
// (segment_rows_cuda.h), and loads four tokens at once. The bits are the CPU's: a row's depend on
// x[t - 1], x[t] and mix alone.
// Cost: 4 (1 + mixes) n bytes a token, 8 n bytes of state a segment.
// Tested by: tests/parity/cuda_token_shift_test.cc
#pragma once

#include <cstddef>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/token_shift.h"

namespace rivulet::kernels {

inline constexpr int kMaxCudaMixes = 6;

struct CudaTokenShiftArgs {
  const CudaSegment* segments = nullptr;  // [num_segments], slots of active ones distinct
  int num_segments = 0;
  int rows = 0;                // token rows; the segments' are among them
  const float* x = nullptr;    // [rows, ld_x]
  const float* mix = nullptr;  // [mixes, n]
  float* y = nullptr;          // mix m of row r at y + r ld_y + m mix_stride; not x
  int ld_x = 0, ld_y = 0, mix_stride = 0, n = 0;
  int mixes = 0;               // 1 to kMaxCudaMixes
  float* states = nullptr;     // slot i's at states + i floats_per_slot
  size_t floats_per_slot = 0;  // of a whole slot
  size_t offset = 0;           // of this layer's [n] in a slot
};

// Once a device, before the first launch.
cudaError_t PrepareTokenShiftCuda();
// cudaErrorInvalidValue where an argument is missing or out of range. Rows of no segment keep y.
cudaError_t TokenShiftCuda(const CudaLaunch& launch, const CudaTokenShiftArgs& args);

}  // namespace rivulet::kernels
