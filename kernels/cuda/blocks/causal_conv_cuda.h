// SPDX-License-Identifier: Apache-2.0
// Causal convolution on the GPU: the equation of causal_conv.h for all segments and channels of one
// layer. The same launch can compute the step sizes of mixer_rows.h, which do not depend on it.
//
// One thread takes a channel of a segment or, in passes with long segments, of 16 token rows
// (segment_rows_cuda.h): it holds the last inputs in registers, and loads the inputs of four tokens
// at once. Sums run as on the CPU, so without SiLU the bits are the CPU's. A token has the same
// bits whether prefilled or stepped, whatever else the batch holds.
// Cost: 8 channels bytes a token, 8 (width - 1) channels bytes of state a segment.
// Tested by: tests/parity/cuda_causal_conv_test.cc
#pragma once

#include <cstddef>

#include "kernels/causal_conv.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/mixer_rows.h"

namespace rivulet::kernels {

struct CudaCausalConvArgs {
  const CudaSegment* segments = nullptr;  // [num_segments], slots of active ones distinct
  int num_segments = 0;
  int rows = 0;                   // token rows; the segments' are among them
  const float* x = nullptr;       // [rows, ld_x]
  const float* weight = nullptr;  // [width, channels]
  const float* bias = nullptr;    // [channels]; null: 0
  float* y = nullptr;             // [rows, ld_y]; not x
  int ld_x = 0, ld_y = 0, channels = 0, width = 0;
  bool silu = false;
  float* states = nullptr;     // slot i's at states + i floats_per_slot
  size_t floats_per_slot = 0;  // of a whole slot
  size_t offset = 0;           // of this layer's [width - 1, channels] in a slot
  // Used where steps.heads > 0, on the same token rows. steps.rows is not read; rows of no segment
  // keep their values. `dt` and `w` overlap neither x nor y.
  StepSizesArgs steps = {};
};

// Call once per device, before the first launch.
cudaError_t PrepareCausalConvCuda();
// cudaErrorInvalidValue where an argument is missing or out of range. Rows of no segment keep y.
cudaError_t CausalConvCuda(const CudaLaunch& launch, const CudaCausalConvArgs& args);

}  // namespace rivulet::kernels
