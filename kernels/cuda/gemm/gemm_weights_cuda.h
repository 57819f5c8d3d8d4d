// SPDX-License-Identifier: Apache-2.0
// How the products on the tensor cores read their weights: a lane's part of 8 columns and 32 k
// (cuda_packing.h), and the F16 operands made from it. Included by
// gemm_*_cuda.cu only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"

namespace rivulet::kernels {

// Loads are by __ldcg: the compiler would move loads by __ldg behind WaitForPredecessor().
struct HalfWeights {
  using Lane = uint4;  // of a panel and step, in memory and in shared memory
  static constexpr bool kScaled = false;
  static constexpr size_t PanelBytes(int k) {
    return static_cast<size_t>(CudaSteps(k)) * kWarpLanes * sizeof(Lane);
  }
  using Piece = Lane;  // in registers
  // Where a panel and step begin, and their scales.
  static __device__ __forceinline__ const Lane* Block(const CudaMatrix& w, int panel, int step) {
    return static_cast<const Lane*>(w.packed) + At(panel, CudaSteps(w.k), step) * kWarpLanes;
  }
  static __device__ __forceinline__ Piece Load(const CudaMatrix& w, int panel, int step) {
    return __ldcg(Block(w, panel, step) + LaneIndex());
  }
  // The lane's part of a panel and step that the caller put into shared memory.
  static __device__ __forceinline__ Piece Take(const Lane* w, const uint16_t*, int block) {
    return w[block * kWarpLanes + LaneIndex()];
  }
  static __device__ __forceinline__ Piece Zero() { return make_uint4(0, 0, 0, 0); }
  // The operand of mma.sync for k = 16 half .. 16 half + 15.
  static __device__ __forceinline__ void Halves(const Piece& piece, int half, uint32_t (&b)[2]) {
    b[0] = half == 0 ? piece.x : piece.z;
    b[1] = half == 0 ? piece.y : piece.w;
  }
};

struct Int8Weights {
  using Lane = uint2;
  static constexpr bool kScaled = true;
  static constexpr size_t PanelBytes(int k) { return Int8PanelBytes(k); }
  struct Piece {
    uint2 q;
    uint16_t scale;
  };
  static __device__ __forceinline__ const unsigned char* Panel(const CudaMatrix& w, int panel) {
    return static_cast<const unsigned char*>(w.packed) +
           static_cast<size_t>(panel) * PanelBytes(w.k);
  }
  static __device__ __forceinline__ const Lane* Block(const CudaMatrix& w, int panel, int step) {
    return reinterpret_cast<const Lane*>(Panel(w, panel)) + step * kWarpLanes;
  }
  static __device__ __forceinline__ const uint16_t* Scales(const CudaMatrix& w, int panel,
                                                           int step) {
    const auto* scales = Panel(w, panel) + static_cast<size_t>(CudaSteps(w.k)) * kInt8Bytes;
    return reinterpret_cast<const uint16_t*>(scales) + step * 8;
  }
  static __device__ __forceinline__ Piece Load(const CudaMatrix& w, int panel, int step) {
    return {__ldcg(Block(w, panel, step) + LaneIndex()),
            __ldcg(Scales(w, panel, step) + LaneIndex() / 4)};
  }
  static __device__ __forceinline__ Piece Take(const Lane* w, const uint16_t* scales, int block) {
    return {w[block * kWarpLanes + LaneIndex()], scales[block * 8 + LaneIndex() / 4]};
  }
  static __device__ __forceinline__ Piece Zero() { return {make_uint2(0, 0), 0}; }
  static __device__ __forceinline__ void Halves(const Piece& piece, int half, uint32_t (&b)[2]) {
    const uint32_t scale = piece.scale;
    Int8ToHalves(half == 0 ? piece.q.x : piece.q.y, scale | scale << 16, b);
  }
};

// Calls run(HalfWeights()) or run(Int8Weights()), whichever has this type.
template <class Run>
__device__ __forceinline__ void WithWeights(WeightType type, const Run& run) {
  if (type == WeightType::kInt8) {
    run(Int8Weights());
  } else {
    run(HalfWeights());
  }
}

}  // namespace rivulet::kernels
