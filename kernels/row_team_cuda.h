// SPDX-License-Identifier: Apache-2.0
// The kRowThreads threads that sample a row together: a block, or one of several such teams of a
// block, each at a row of its own. Included by .cu files only.
#pragma once

#include "kernels/device_cuda.h"

namespace rivulet::kernels {

inline constexpr int kRowThreads = 128, kRowWarps = kRowThreads / kWarpLanes;
inline constexpr int kMostTeams = 2;  // of a block

// This thread's, and this warp's, place in its team.
__device__ __forceinline__ int RowThread() { return static_cast<int>(threadIdx.x) % kRowThreads; }
__device__ __forceinline__ int RowWarp() { return WarpIndex() % kRowWarps; }
__device__ __forceinline__ int RowTeam() { return static_cast<int>(threadIdx.x) / kRowThreads; }

#if defined(RIVULET_CUDA_EMULATED)
__device__ inline void RowBarrier(const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
  cuda_emulator::PartBarrier(kRowThreads, {file, line});
}
__device__ inline bool RowAny(bool mine, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  return cuda_emulator::PartBarrier(kRowThreads, {file, line}, mine) > 0;
}
#else
// A barrier of the team. Barrier 0 is the block's: one team may wait here and another there. The
// numbers are constants, so that kernels do not hold all barriers of a multiprocessor.
template <int kId>
__device__ __forceinline__ bool TeamAny(bool mine) {
  int any = mine ? 1 : 0;
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %0, 0; barrier.red.or.pred p, %1, %2, p; "
      "selp.s32 %0, 1, 0, p; }"
      : "+r"(any)
      : "n"(kId), "n"(kRowThreads)
      : "memory");
#endif
  return any != 0;
}
template <int kId>
__device__ __forceinline__ void TeamBarrier() {
#if defined(__CUDA_ARCH__)
  asm volatile("barrier.sync %0, %1;" ::"n"(kId), "n"(kRowThreads) : "memory");
#endif
}
__device__ __forceinline__ void RowBarrier() {
  RowTeam() == 0 ? TeamBarrier<1>() : TeamBarrier<2>();
}
// The same, and whether any thread of the team says `mine`.
__device__ __forceinline__ bool RowAny(bool mine) {
  return RowTeam() == 0 ? TeamAny<1>(mine) : TeamAny<2>(mine);
}
#endif

}  // namespace rivulet::kernels
