// SPDX-License-Identifier: Apache-2.0
// What a piece of Fused() is to a lane (fused_cuda.h), and how it waits for copies. Included by
// fused_*cuda.cu only.
#pragma once

#include "kernels/async_copy_cuda.h"
#include "kernels/fused_slices_cuda.h"
#include "kernels/linear_attention_shape_cuda.h"

namespace rivulet::kernels {

inline constexpr unsigned kStepBytes = kWarpLanes * sizeof(uint4);  // 32 k of a tile

// How the lanes of a warp share a piece of S, kPieceFeatures whole rows of it. With d = lane /
// kAcross a lane has features d, d + kGroups, ... (the order of linear_attention_shape_cuda.h) and
// of each of these four columns of every block of kColumns.
template <class Order>
struct PieceShape {
  static constexpr int kAcross = kWarpLanes / Order::kGroups, kColumns = 4 * kAcross;
  static constexpr int kBlocks = Order::kValues / kColumns;  // of columns
  static constexpr int kFeatures = kPieceFloats / Order::kValues;
  static constexpr int kDown = kFeatures / Order::kGroups;      // features of a lane
  static constexpr int kPieces = Order::kFeatures / kFeatures;  // of a head
  static_assert(kDown * kBlocks == 8 && Order::kFeatures % kFeatures == 0);

  // Floats from the beginning of a piece of S to the lane's first vector, and from there on to its
  // `i`-th feature's `block`-th.
  __device__ static int LaneOffset() {
    return LaneIndex() / kAcross * Order::kValues + LaneIndex() % kAcross * 4;
  }
  __device__ static constexpr int Offset(int i, int block) {
    return i * Order::kGroups * Order::kValues + block * kColumns;
  }
};

// Until all but the last `open` closed groups of this thread's copies have arrived.
__device__ __forceinline__ void WaitForAllBut(int open) {
  static_assert(kFusedMaxDepth == 6);
  if (open >= 5) {
    WaitForCopies<5>();
  } else if (open == 4) {
    WaitForCopies<4>();
  } else if (open == 3) {
    WaitForCopies<3>();
  } else if (open == 2) {
    WaitForCopies<2>();
  } else if (open == 1) {
    WaitForCopies<1>();
  } else {
    WaitForCopies<0>();
  }
}

}  // namespace rivulet::kernels
