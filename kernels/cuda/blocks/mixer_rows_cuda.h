// SPDX-License-Identifier: Apache-2.0
// The operations of mixer_rows.h on the GPU, with its equations and arguments and device pointers;
// StepSizes is part of causal_conv_cuda.h. A warp takes a head of a row in Rwkv7Heads and
// Rwkv7Outputs, a block a row in the others. Cost: each array is read or written once.
// Tested by: tests/parity/cuda_mixer_rows_test.cc
#pragma once

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/mixer_rows.h"

namespace rivulet::kernels {

// Call once per device, before the first launch.
cudaError_t PrepareMixerRowsCuda();
// cudaErrorInvalidValue where an argument is missing or out of range.
cudaError_t RotateHeadsCuda(const CudaLaunch& launch, const RotateHeadsArgs& args);
cudaError_t LowerBoundKeysCuda(const CudaLaunch& launch, const LowerBoundKeysArgs& args);
cudaError_t Rwkv7HeadsCuda(const CudaLaunch& launch, const Rwkv7HeadsArgs& args);
// If `half` is set, the results go there and o is unchanged.
cudaError_t Rwkv7OutputsCuda(const CudaLaunch& launch, const Rwkv7OutputsArgs& args,
                             const CudaHalfRows& half = {});

}  // namespace rivulet::kernels
