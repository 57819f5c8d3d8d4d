// SPDX-License-Identifier: Apache-2.0
// How a block of gemm_tile_cuda.h or gemm_wide_cuda.cu stores its sums. Included by these only.
#pragma once

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/common/element_math_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_group_cuda.h"

namespace rivulet::kernels {

inline constexpr int kGemmThreads = 128, kGemmWarps = kGemmThreads / kWarpLanes;

// A sum after the epilogue of a single product, or the activation of a product of a group.
template <class P>
__device__ __forceinline__ float Finished(const P& p, float v) {
  return Activated(p.epilogue, v);
}
template <class In>
__device__ __forceinline__ float Finished(const CudaGroupProduct<In>& p, float v) {
  // Only the activations that CheckGemmGroupCuda allows: all of ActivationOf is 12 KiB of code.
  switch (p.activation) {
    case Activation::kSigmoid:
      return SigmoidOf(v);
    case Activation::kTanh:
      return tanhf(v);
    case Activation::kSquaredRelu:
      return SquaredReluOf(v);
    default:
      return v;
  }
}

// Writes a thread's sums to the output. More than kInPlace sums go through shared memory into loops
// that are hardly unrolled. This keeps the code short: a loop cannot index registers.
inline constexpr int kInPlace = 4;
constexpr size_t StagedBytes(int sums) {
  return sums <= kInPlace ? 0 : static_cast<size_t>(sums) * kGemmThreads * sizeof(float);
}
struct SumPlace {
  int row, column;
};
// place(i): where v[i] goes; this place may be outside the output. `stage`: StagedBytes(kSums) of
// shared memory; other threads may use it until the barrier here.
template <class P, int kSums, class PlaceOf>
__device__ __forceinline__ void WriteSums(const P& p, const float (&v)[kSums], float* stage,
                                          const PlaceOf& place) {
  constexpr bool kStaged = kSums > kInPlace;
  constexpr int kResiduals = kStaged ? 8 : kSums, kActivated = kStaged ? 2 : kSums;
  static_assert(kSums % kResiduals == 0 && kSums % kActivated == 0);
  const auto staged = [&](int i) -> float& { return stage[i * kGemmThreads + threadIdx.x]; };
  if constexpr (kStaged) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) staged(i) = v[i];
  }
  const auto exists = [&](SumPlace at) { return at.row < p.rows && at.column < p.w.n; };
  const auto value = [&](int i) { return kStaged ? staged(i) : v[i]; };
  if constexpr (P::kAlone) {
    if (p.epilogue == Epilogue::kResidual) {
#pragma unroll 1
      for (int first = 0; first < kSums; first += kResiduals) {
        // Loads first: the compiler cannot move loads ahead of stores that may alias them.
        float add[kResiduals] = {};
#pragma unroll
        for (int i = 0; i < kResiduals; ++i) {
          const SumPlace at = place(first + i);
          if (!exists(at)) continue;
          const int r = p.gather == nullptr ? at.row : p.gather[at.row];
          add[i] = p.residual[At(r, p.ld_residual, at.column)];
        }
#pragma unroll
        for (int i = 0; i < kResiduals; ++i) {
          const SumPlace at = place(first + i);
          if (exists(at)) p.out[At(at.row, p.ld_out, at.column)] = value(first + i) + add[i];
        }
      }
      return;
    }
  }
#pragma unroll 1
  for (int first = 0; first < kSums; first += kActivated) {
#pragma unroll
    for (int i = 0; i < kActivated; ++i) {
      const SumPlace at = place(first + i);
      if (!exists(at)) continue;
      p.out[At(at.row, p.ld_out, at.column)] = Finished(p, value(first + i));
    }
  }
}

}  // namespace rivulet::kernels
