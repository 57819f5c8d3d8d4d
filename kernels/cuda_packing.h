// SPDX-License-Identifier: Apache-2.0
// How the weights of a matrix product lie in a GPU's memory (kernels/cuda/gemm/gemm_cuda.h reads
// them), and the conversion from the packing of the CPU (gemm.h).
//
// A lane of a warp finds its weights in 16 consecutive bytes (int8: 8), and the weights that a warp
// loads at once are consecutive:
//   F16 [n / 8][k / 32][lane][8]: the two operands of mma.sync m16n8k16 for column c = lane / 4, at
//       k = 16 j + 2 (lane % 4) + {0, 1, 8, 9}, j = 0, 1
//   Int8 [n / 8]: [k / 32][lane][8] bytes q + 128 in the order of F16, then scales s in F16
//       [k / 32][8]
//   F32 [n / 32][k / 4][lane][4]: column = lane, four consecutive k
// all padded with zeros.
//
// Tested by: tests/parity/cuda_packing_test.cc
#pragma once

#include <cstddef>

#include "kernels/gemm.h"

namespace rivulet::kernels {

constexpr int CudaPanels(int n) { return (n + 7) / 8; }   // of 8 columns
constexpr int CudaSteps(int k) { return (k + 31) / 32; }  // of 32 k

// Bytes of a kInt8 panel and step: its integers, and its scales, which follow all steps of the
// panel.
inline constexpr size_t kInt8Bytes = 256, kInt8ScaleBytes = 16;
constexpr size_t Int8PanelBytes(int k) {
  return static_cast<size_t>(CudaSteps(k)) * (kInt8Bytes + kInt8ScaleBytes);
}

// Bytes of a packed matrix, a multiple of 512. `type`: kF32, kF16 or kInt8.
size_t CudaPackedSize(WeightType type, int k, int n);

// Packs columns first .. first + count - 1 of `from`, of any type, into columns column .. of a
// packed matrix of `type` with the same k; `type` kInt8 needs a kInt8 `from`. `packed` (host) must
// be zero at first. F16 rounds to nearest even. Returns false if a weight is too large for F16.
// Thread: any; disjoint columns may be packed at once.
[[nodiscard]] bool PackForCuda(WeightType type, const PackedMatrix& from, int first, int count,
                               int column, void* packed);

}  // namespace rivulet::kernels
