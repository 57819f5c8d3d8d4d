// SPDX-License-Identifier: Apache-2.0
// The operations around a library's matrix product: out = a W^T + b with the bits of our own
// products (gemm_cuda.h), if the library takes k in ascending order into one accumulator.
//
// Our accumulators start at the bias, a library adds it to the finished sum, and the roundings
// differ. So the bias is part of k here: every row of a has kProductPrefix elements before its
// first column, every row of W has the bias in the same place, and the library's sum after them is
// exactly the bias.
//   float32:  a  1, 0, 0, ...              W  b, 0, 0, ...
//   F16:      a  1, 2^-11, 2^-22, 0, ...   W  the three parts of b (SplitBias), 0, ...
// A tensor-core product has 16 k, so with 16 elements the chunks of k stay where ours are.
//
// Rows are row-major with `ld` elements from one to the next; pointers are to column 0. Thread:
// any. Tested by: tests/parity/cuda_product_rows_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/gemm.h"

namespace rivulet::kernels {

inline constexpr int kProductPrefix = 16;
// k as the library sees it: the prefix, and zeros behind the last column.
constexpr int ProductK(int k) { return kProductPrefix + (k + 7) / 8 * 8; }

// Three F16 with b = parts[0] + 2^-11 parts[1] + 2^-22 parts[2], exactly for all b from 2^-22 to
// 65504 in magnitude. parts[0] is infinite for larger b.
void SplitBias(float b, uint16_t (&parts)[3]);

// Rows of `w` [n, k] and `bias` [n] (float32, host) as rows of W: `packed` [n, ProductK(k)] of
// `type` (kF32 or kF16), host, zero at first. Returns false if a finite value becomes infinite.
[[nodiscard]] bool PackProductRows(WeightType type, const float* w, const float* bias, int n, int k,
                                   void* packed);

struct CudaProductRows {
  void* data = nullptr;  // column 0 of row 0: float, or F16 where `half`
  bool half = false;
  int ld = 0, rows = 0;
};

// Call once per device, before the first launch of the kernels below.
cudaError_t PrepareProductRowsCuda();

// Writes the prefix of every row. REQUIRES: rows begin kProductPrefix elements into their memory.
cudaError_t MarkProductRowsCuda(const CudaLaunch& launch, const CudaProductRows& rows);

// For checks of a library. Fills columns 0 to n - 1 with numbers in [-1, 1) that depend on column
// and row modulo `period` alone.
cudaError_t FillProductRowsCuda(const CudaLaunch& launch, const CudaProductRows& rows, int n,
                                int period);
// Adds to *different (device memory) how many elements of columns 0 to n - 1 have other bits than
// row `r mod period` of `expected`. Both are float32.
cudaError_t CountDifferentRowsCuda(const CudaLaunch& launch, const CudaProductRows& rows,
                                   const CudaProductRows& expected, int n, int period,
                                   unsigned* different);

}  // namespace rivulet::kernels
