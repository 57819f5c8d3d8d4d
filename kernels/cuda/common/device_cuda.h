// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA kernels: launches, waiting for the predecessor, warp sums, F16 products, and
// the conversion of integers to F16.
// Included by .cu files only, which nvcc compiles for a GPU and, for tests without one, g++ for the
// emulator (tests/support/cuda_emulator, RIVULET_CUDA_EMULATED).
//
// House rules of kernels: dynamic shared memory only (SharedMemory()), so that the emulator can
// poison it; every thread of a block reaches every barrier; const __restrict__ and __ldg only on
// weights: such loads may move ahead of WaitForPredecessor().
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/gemm.h"
#if defined(RIVULET_CUDA_EMULATED)
#include "kernels/half.h"
#endif

namespace rivulet::kernels {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kWarpLanes = 32;

// Call once per device, before the first launch of these kernels. All kernels ask for the most
// shared memory of a multiprocessor, whatever they use: it changes its split between shared memory
// and cache only when no block is left on it, so kernels of different splits could not overlap.
template <class... Kernels>
cudaError_t PrepareKernels(Kernels*... kernels) {
  cudaError_t error = cudaSuccess;
  for (const void* const kernel : {reinterpret_cast<const void*>(kernels)...}) {
    if (error != cudaSuccess) break;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  return error;
}

// PrepareKernels for a kernel that may ask for more dynamic shared memory than the usual 48 KiB.
template <class Kernel>
cudaError_t PrepareLargeKernel(Kernel* kernel, size_t shared_bytes) {
  const cudaError_t error = PrepareKernels(kernel);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes));
}

inline cudaError_t FirstError(std::initializer_list<cudaError_t> errors) {
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// All launches. `shared_bytes` is the dynamic shared memory of a block.
template <class... P, class... A>
cudaError_t LaunchGrid(const CudaLaunch& launch, void (*kernel)(P...), dim3 grid, int threads,
                       size_t shared_bytes, const A&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = launch.overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// A grid of `blocks` x 1 x 1. Nothing is launched for 0 blocks; cudaErrorInvalidValue for more than
// a grid can have.
template <class... P, class... A>
cudaError_t LaunchBlocks(const CudaLaunch& launch, void (*kernel)(P...), int64_t blocks,
                         int threads, size_t shared_bytes, const A&... args) {
  if (blocks < 0 || blocks > INT32_MAX) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  return LaunchGrid(launch, kernel, dim3(static_cast<unsigned>(blocks)), threads, shared_bytes,
                    args...);
}

// Element `column` of row `row`, without overflow.
__host__ __device__ inline size_t At(int row, int ld, int column = 0) {
  return static_cast<size_t>(row) * static_cast<size_t>(ld) + static_cast<size_t>(column);
}

// Waits until the kernels before this one have ended and their writes are visible; then lets the
// next kernel start. Every block calls it before it reads or writes anything but weights.
__device__ __forceinline__ void WaitForPredecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::WaitForPredecessor();
#endif
}

// The block's dynamic shared memory, 16-byte aligned.
__device__ __forceinline__ void* SharedMemory() {
#if defined(RIVULET_CUDA_EMULATED)
  return cuda_emulator::SharedMemory();
#else
  extern __shared__ __align__(16) unsigned char rivulet_shared[];
  return rivulet_shared;
#endif
}

__device__ __forceinline__ int LaneIndex() { return static_cast<int>(threadIdx.x) % kWarpLanes; }
__device__ __forceinline__ int WarpIndex() { return static_cast<int>(threadIdx.x) / kWarpLanes; }

// The sum over a warp's lanes, on all lanes, in the order of a butterfly.
template <class T>
__device__ __forceinline__ T WarpSum(T v) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) v += __shfl_xor_sync(kAllLanes, v, lanes);
  return v;
}

// Applies the epilogues that are activations; the other epilogues leave v as it is.
__device__ __forceinline__ float Activated(Epilogue epilogue, float v) {
  if (epilogue == Epilogue::kRelu) return v < 0 ? 0.0f : v;  // a NaN stays one
  if (epilogue != Epilogue::kGelu) return v;
  const float half = 0.5f * v;
  return fmaf(half, erff(v * 0.70710678118654752f), half);
}

// Two activations as F16, rounded to nearest even; `low` in the lower half. Finite values beyond
// F16's range become its largest value, so that rounding never makes a row non-finite; infinities
// and NaN become NaN, so that an error stays visible.
__device__ __forceinline__ uint32_t PackHalves(float low, float high) {
  low = fmaf(low, 0.0f, low), high = fmaf(high, 0.0f, high);  // infinity: NaN; others stay
#if defined(__CUDA_ARCH__)
  uint32_t packed;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#elif defined(RIVULET_CUDA_EMULATED)
  const auto half = [](float x) {
    const float most = 65504.0f;
    return uint32_t{F32ToF16(x > most ? most : x < -most ? -most : x)};
  };
  return half(low) | half(high) << 16;
#else
  return 0;
#endif
}

// One activation as F16, rounded in the same way.
__device__ __forceinline__ uint16_t RoundF16(float v) {
  return static_cast<uint16_t>(PackHalves(v, 0));
}

// An F16 as float32, exactly.
__device__ __forceinline__ float WidenF16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
  return wide;
#elif defined(RIVULET_CUDA_EMULATED)
  return F16ToF32(bits);
#else
  return 0;
#endif
}

// Four integers of a weight matrix as F16: bytes of `raised` are q + 128, and halves i and i + 1 of
// out[i / 2] become f16(q s), rounded to nearest even. `scales`: s in both halves.
__device__ __forceinline__ void Int8ToHalves(uint32_t raised, uint32_t scales, uint32_t (&out)[2]) {
#if defined(__CUDA_ARCH__)
  // The half with the bits 0x6400 + b is 1024 + b. So subtracting 1152 gives q, exactly.
  constexpr uint32_t kThousand = 0x64646464u, kRaised = 0x64806480u;
  out[0] = __byte_perm(raised, kThousand, 0x4140);
  out[1] = __byte_perm(raised, kThousand, 0x4342);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // .rn, so that the compiler does not fuse the two operations.
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(out[i]), "r"(kRaised));
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(out[i]), "r"(scales));
  }
#elif defined(RIVULET_CUDA_EMULATED)
  const float scale = F16ToF32(static_cast<uint16_t>(scales));
  const auto half = [&](int i) {
    const int q = static_cast<int>(raised >> 8 * i & 0xFF) - 128;
    return uint32_t{F32ToF16(static_cast<float>(q) * scale)};  // the product is exact in float32
  };
  out[0] = half(0) | half(1) << 16;
  out[1] = half(2) | half(3) << 16;
#endif
}

// d += a b for a warp's tiles a [16, 16] and b [16, 8] of F16 and d [16, 8] of float32, in the
// register layout of PTX mma.m16n8k16: with g = lane / 4 and t = lane % 4, halves (low, high)
//   a[0] = (g, 2t), (g, 2t+1)   a[1] = rows g + 8   a[2] = columns + 8   a[3] = both
//   b[0] = (2t, g), (2t+1, g)   b[1] = rows + 8
//   d[0], d[1] = (g, 2t), (g, 2t+1)   d[2], d[3] = rows g + 8
__device__ __forceinline__ void MmaF16(float (&d)[4], const uint32_t (&a)[4],
                                       const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::MmaF16(d, a, b, F16ToF32);
#endif
}

}  // namespace rivulet::kernels
