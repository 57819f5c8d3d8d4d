// SPDX-License-Identifier: Apache-2.0
//   part of state[slot] := 0        beginning of state[to] := beginning of state[from]
#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/common/slot_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 256;
constexpr size_t kBlockVectors = size_t{4} * kThreads;  // float4 that a block writes

// Block x of part y, y + gridDim.y, ...; `vectors` float4 a slot.
__global__ void __launch_bounds__(kThreads)
    ZeroSlots(float4* states, size_t vectors, const CudaSlotPart* parts, int count) {
  WaitForPredecessor();
  for (int i = static_cast<int>(blockIdx.y); i < count; i += static_cast<int>(gridDim.y)) {
    const CudaSlotPart part = parts[i];
    float4* const to =
        states + static_cast<size_t>(part.slot) * vectors + static_cast<size_t>(part.first) / 4;
    const auto end = static_cast<size_t>(part.floats) / 4;
    for (size_t j = blockIdx.x * kBlockVectors + threadIdx.x;
         j < (blockIdx.x + 1) * kBlockVectors && j < end; j += kThreads) {
      to[j] = make_float4(0, 0, 0, 0);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    CopySlot(const float4* from, float4* to, size_t vectors) {
  WaitForPredecessor();
  for (size_t j = blockIdx.x * kBlockVectors + threadIdx.x;
       j < (blockIdx.x + 1) * kBlockVectors && j < vectors; j += kThreads) {
    to[j] = from[j];
  }
}

unsigned BlocksFor(size_t vectors) {
  return static_cast<unsigned>((vectors + kBlockVectors - 1) / kBlockVectors);
}

}  // namespace

cudaError_t PrepareSlotCuda() { return PrepareKernels(ZeroSlots, CopySlot); }

cudaError_t ZeroSlotsCuda(const CudaLaunch& launch, float* states, size_t floats,
                          const CudaSlotPart* parts, int count, size_t most) {
  if (floats == 0 || floats % 16 != 0 || count < 0 || most > floats) return cudaErrorInvalidValue;
  if (count == 0 || most == 0) return cudaSuccess;
  constexpr int kMaxGridY = 4096;  // CUDA allows 65535; with more parts, a block takes several
  const dim3 grid(BlocksFor((most + 3) / 4),
                  static_cast<unsigned>(count < kMaxGridY ? count : kMaxGridY));
  return LaunchGrid(launch, ZeroSlots, grid, kThreads, 0, reinterpret_cast<float4*>(states),
                    floats / 4, parts, count);
}

cudaError_t CopySlotCuda(const CudaLaunch& launch, float* states, size_t floats, size_t used,
                         int32_t from, int32_t to) {
  if (floats == 0 || floats % 16 != 0 || used > floats || used % 4 != 0 || from < 0 || to < 0) {
    return cudaErrorInvalidValue;
  }
  if (from == to || used == 0) return cudaSuccess;
  auto* vectors = reinterpret_cast<float4*>(states);
  const size_t each = floats / 4;
  return LaunchBlocks(launch, CopySlot, BlocksFor(used / 4), kThreads, 0,
                      vectors + static_cast<size_t>(from) * each,
                      vectors + static_cast<size_t>(to) * each, used / 4);
}

}  // namespace rivulet::kernels
