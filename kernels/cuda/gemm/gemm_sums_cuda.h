// SPDX-License-Identifier: Apache-2.0
// How a block of gemm_tile_cuda.h or gemm_wide_cuda.cu ends its sums. Included by these only.
#pragma once

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/common/element_math_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_group_cuda.h"

namespace rivulet::kernels {

inline constexpr int kGemmThreads = 128, kGemmWarps = kGemmThreads / kWarpLanes;

// What becomes of a sum: by the epilogue of a product alone, or the activation of one of a group.
template <class P>
__device__ __forceinline__ float Finished(const P& p, float v) {
  return Activated(p.epilogue, v);
}
template <class In>
__device__ __forceinline__ float Finished(const CudaGroupProduct<In>& p, float v) {
  // Of ActivationOf those that CheckGemmGroupCuda allows: all would be 12 KiB of code.
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

// A thread's sums, from there to the output. More than kInPlace go through shared memory into loops
// that are hardly unrolled, which keeps the code short: registers cannot be counted through.
inline constexpr int kInPlace = 4;
constexpr size_t StagedBytes(int sums) {
  return sums <= kInPlace ? 0 : static_cast<size_t>(sums) * kGemmThreads * sizeof(float);
}
struct SumPlace {
  int row, column;
};
// place(i): where v[i] goes; it may not exist. `stage`: StagedBytes(kSums) of shared memory, in use
// up to now.
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
        // Loads first: the compiler cannot move them ahead of stores, which may go to the same
        // place for all it knows.
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
