// SPDX-License-Identifier: Apache-2.0
// Matrix product on the tensor cores, for a in F16, with the bits of gemm_cuda.h with F16 weights
// (the same accumulators, k in the same chunks of 16). It has no norm: each column of tiles would
// compute the norm again; a launch of layer_norm_cuda.h writes the normalised rows once.
//
// A block of four warps computes 16 x 32, 32 x 32, 64 x 64, 128 x 64 or 128 x 128 outputs, 64 k at
// a time. cp.async loads both factors: rows of a swizzled for ldmatrix, W as packed, in the order
// of the fragments. Large tiles keep three chunks in shared memory. The two smallest tiles, for few
// rows, keep 12 and 8, because few blocks have to hide the latency of the device's memory.
//
// Cost: 2 rows k n flop; a is read once for every 32, 64 or 128 columns, W once for each row of
// tiles. Measured (H200, RWKV-7 0.4B): 15 us for 64 rows, 4,096 k and 1,024 columns and for 64
// rows and 1,024 x 1,024 on average, where gemm_cuda.h took 27 us.
// Estimated, for 128 x 128: 64 k are 256 mma.sync a warp quarter, about 820 cycles at the rate that
// mma.sync has on an H200 (62 % of wgmma's), against 512 cycles of shared memory (64 KiB at 128
// bytes) and 500 of second-level cache (32 KiB at 64 bytes a multiprocessor).
// Thread: any. Tested by: tests/parity/cuda_gemm_wide_test.cc
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/gemm_cuda.h"

namespace rivulet::kernels {

struct CudaWideGemmArgs {
  static constexpr bool kAlone = true;  // not a CudaGroupProduct
  CudaMatrix w;                         // kF16
  const uint16_t* a = nullptr;          // [.., lda] F16, 16-byte aligned, lda a multiple of 8
  const int32_t* gather = nullptr;  // row r of the product takes rows gather[r] of a and residual;
                                    // null: rows r
  const float* residual = nullptr;  // [.., ld_residual] for Epilogue::kResidual; not out
  // One of the two is set; columns n .. are not touched. 8- and 4-byte aligned, ld_out even.
  float* out = nullptr;          // [rows, ld_out]
  uint16_t* out_half = nullptr;  // [rows, ld_out] rounded to F16
  int rows = 0, lda = 0, ld_residual = 0, ld_out = 0;
  Epilogue epilogue = Epilogue::kNone;
};

// Null if the arguments are valid, else the reason.
const char* CheckWideGemmCuda(const CudaWideGemmArgs& args);
// Call once per device, before the first launch there.
cudaError_t PrepareWideGemmCuda();
// cudaErrorInvalidValue where CheckWideGemmCuda objects. rows = 0 launches nothing.
cudaError_t WideGemmCuda(const CudaLaunch& launch, const CudaWideGemmArgs& args);

// For tests: the tile shape to use, 0 .. kCudaWideGemmTiles - 1; -1: chosen by size. With a gather
// it is always 2. Thread: none may call WideGemmCuda.
inline constexpr int kCudaWideGemmTiles = 5;
void SetCudaWideGemmTileForTest(int tile);

}  // namespace rivulet::kernels
