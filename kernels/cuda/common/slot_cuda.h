// SPDX-License-Identifier: Apache-2.0
// Slots of states in device memory: zeroing and copying, in stream order. `floats` a slot, a
// multiple of 16 (state_layout.h); slot i begins at states + i floats. Cost: each value is written
// once, and for a copy read once. Tested by: tests/parity/cuda_slot_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"

namespace rivulet::kernels {

// A part of a slot, in floats; multiples of 4.
struct CudaSlotPart {
  int64_t first = 0, floats = 0;
  int32_t slot = 0;
};

// Call once per device, before the first launch.
cudaError_t PrepareSlotCuda();
// `parts`: [count] in device or mapped host memory, unchanged until the kernel ran. `most`: floats
// of the longest part.
cudaError_t ZeroSlotsCuda(const CudaLaunch& launch, float* states, size_t floats,
                          const CudaSlotPart* parts, int count, size_t most);
// Copies the first `used` floats, a multiple of 4.
cudaError_t CopySlotCuda(const CudaLaunch& launch, float* states, size_t floats, size_t used,
                         int32_t from, int32_t to);

}  // namespace rivulet::kernels
