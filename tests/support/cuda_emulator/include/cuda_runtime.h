// SPDX-License-Identifier: Apache-2.0
// The part of CUDA for kernel files, beyond the host API: built-in variables, vector types,
// barriers, warp exchanges, atomics, and launches. A .cu file compiled as C++ with this header runs
// on fibers, one a CUDA thread (block.h).
#pragma once

#include <cmath>
#include <cstring>
#include <tuple>

#include "cuda_runtime_api.h"
#include "tests/support/cuda_emulator/block.h"
#include "tests/support/cuda_emulator/copies.h"
#include "tests/support/cuda_emulator/mma.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace rivulet::cuda_emulator {

// The value of lane `source`, after every lane of `mask` gave its value.
template <class T>
T FromLane(unsigned mask, T value, int source, const char* op, Site site) {
  static_assert(sizeof(T) <= kPayloadBytes);
  WarpCollective(op, mask, &value, sizeof value, site);
  T out;
  std::memcpy(&out, LanePayload(source, mask, op, site), sizeof out);
  return out;
}
template <class To, class From>
To Bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace rivulet::cuda_emulator

#define RIVULET_EMULATED_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(RIVULET_EMULATED_SITE) {
  rivulet::cuda_emulator::BlockBarrier({file, line});
}
inline int __syncthreads_or(int predicate, RIVULET_EMULATED_SITE) {
  return rivulet::cuda_emulator::BlockBarrier({file, line}, predicate != 0) > 0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, RIVULET_EMULATED_SITE) {
  rivulet::cuda_emulator::WarpCollective("__syncwarp", mask, nullptr, 0, {file, line});
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, RIVULET_EMULATED_SITE) {
  const int lane = rivulet::cuda_emulator::Lane();
  return rivulet::cuda_emulator::FromLane(mask, value, lane / width * width + source % width,
                                          "__shfl_sync", {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, RIVULET_EMULATED_SITE) {
  const int lane = rivulet::cuda_emulator::Lane(), source = lane ^ lanes;
  return rivulet::cuda_emulator::FromLane(
      mask, value, source / width > lane / width ? lane : source, "__shfl_xor_sync", {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, RIVULET_EMULATED_SITE) {
  const int lane = rivulet::cuda_emulator::Lane(), source = lane - static_cast<int>(delta);
  return rivulet::cuda_emulator::FromLane(
      mask, value, source < lane / width * width ? lane : source, "__shfl_up_sync", {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, RIVULET_EMULATED_SITE) {
  const int lane = rivulet::cuda_emulator::Lane(), source = lane + static_cast<int>(delta);
  return rivulet::cuda_emulator::FromLane(
      mask, value, source / width > lane / width ? lane : source, "__shfl_down_sync", {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, RIVULET_EMULATED_SITE) {
  return rivulet::cuda_emulator::Ballot(mask, predicate != 0, {file, line});
}
inline int __any_sync(unsigned mask, int predicate, RIVULET_EMULATED_SITE) {
  return rivulet::cuda_emulator::Ballot(mask, predicate != 0, {file, line}) != 0;
}
inline int __all_sync(unsigned mask, int predicate, RIVULET_EMULATED_SITE) {
  return rivulet::cuda_emulator::Ballot(mask, predicate == 0, {file, line}) == 0;
}
#undef RIVULET_EMULATED_SITE

// The fibers share one operating system thread: every access is atomic and in program order.
inline void __threadfence() {}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T atomicAdd(T* p, T value) {
  const T before = *p;
  *p = static_cast<T>(before + value);
  return before;
}
template <class T>
T atomicOr(T* p, T value) {
  const T before = *p;
  *p = before | value;
  return before;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __float_as_uint(float f) { return rivulet::cuda_emulator::Bits<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return rivulet::cuda_emulator::Bits<float>(u); }
inline double sinpi(double x) { return std::sin((x - 2 * std::rint(x / 2)) * M_PI); }
inline double cospi(double x) { return std::cos((x - 2 * std::rint(x / 2)) * M_PI); }

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... args) {
  // Arguments are copied now, as a launch does; the kernel runs later.
  std::tuple<P...> copies(static_cast<P>(args)...);
  return rivulet::cuda_emulator::LaunchKernel(*config, reinterpret_cast<const void*>(kernel),
                                              [kernel, copies] { std::apply(kernel, copies); });
}
