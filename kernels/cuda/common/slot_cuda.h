// SPDX-License-Identifier: Apache-2.0
// Slots of recurrent state in device memory: zeroing and copying, in stream order. `floats` a slot,
// a multiple of 16 (state_layout.h); slot i begins at states + i floats. Cost: one write of each
// slot, and one read for a copy. Tested by: tests/parity/cuda_slot_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"

namespace rivulet::kernels {

// Once a device, before the first launch.
cudaError_t PrepareSlotCuda();
// `slots`: [count] in device or mapped host memory, unchanged until the kernel ran.
cudaError_t ZeroSlotsCuda(const CudaLaunch& launch, float* states, size_t floats,
                          const int32_t* slots, int count);
cudaError_t CopySlotCuda(const CudaLaunch& launch, float* states, size_t floats, int32_t from,
                         int32_t to);

}  // namespace rivulet::kernels
