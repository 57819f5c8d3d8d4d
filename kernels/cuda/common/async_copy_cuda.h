// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from device memory to shared memory without registers (cp.async), and loads
// of 8 x 8 tiles of halves (ldmatrix). Included by .cu files only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {

#if defined(__CUDA_ARCH__)
__device__ __forceinline__ unsigned SharedAddress(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
#endif

// `to` (shared) := kBytes from `from`; both aligned to kBytes, 4 or 16. Done after WaitForCopies by
// the same thread; other threads see it after a barrier that follows.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 16);
#if defined(__CUDA_ARCH__)
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from)
                 : "memory");
  }
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::CopyAsync(to, from, kBytes, kBytes);
#endif
}

// Copies the first `bytes` of 16 from `from` and fills the rest with zeros. 0: `from` is not read.
__device__ __forceinline__ void CopyAsyncPadded(void* to, const void* from, int bytes) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(bytes)
               : "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::CopyAsync(to, from, 16, static_cast<size_t>(bytes));
#endif
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void CommitCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::CommitCopies();
#endif
}

// Waits until all but the last kOpen closed groups of this thread have arrived.
template <int kOpen>
__device__ __forceinline__ void WaitForCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::WaitForCopies(kOpen);
#endif
}

// Four 8 x 8 tiles of halves from shared memory. Lane 8 i + j gives the address (16-byte aligned)
// of row j of tile i; lane l gets halves 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of tile i in
// r[i].
__device__ __forceinline__ void LoadTiles(uint32_t (&r)[4], const void* row) {
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::LoadTiles(r, row);
#endif
}

}  // namespace rivulet::kernels
