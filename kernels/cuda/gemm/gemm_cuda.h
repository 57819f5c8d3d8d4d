// SPDX-License-Identifier: Apache-2.0
// Matrix product with packed weights on the GPU: out = epilogue(norm(a) W^T + b).
//
//   out[r][c] = epilogue( b[c] + sum_k norm(a[r])[k] W[c][k] )       a [rows, k]   W [n, k]
//
// a, b and out are float32. W is float32 (arithmetic: float32 fused multiply-adds), F16 (a is
// rounded to F16, products and sums are float32 in the tensor cores: mma.sync m16n8k16), or kInt8
// of quantized.h: W = f16(q s), expanded in registers, with the same bits as F16 weights. norm is
// optional: the layer norm of layer_norm_cuda.h with the same bits.
//
// Every output has one accumulator that starts at the bias and takes k in ascending order (F16: in
// chunks of 16); k is never split. So a row's bits depend on its a and the weights alone, not on
// the number of rows, the row's place, or the tile shape, which is chosen for the machine's size.
// With float32 weights, no norm and no GELU, out has the bits of GemmCpu.
//
// Weights lie as cuda_packing.h says. They go from memory to registers; a, shared by the warps of a
// block, goes through shared memory.
//
// Cost: 2 rows k n flop; weights are read once for every 16 to 64 rows, a once for every 32 to 128
// columns. Thread: any. Tested by: tests/parity/cuda_gemm_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/cuda_packing.h"
#include "kernels/gemm.h"

namespace rivulet::kernels {

struct CudaMatrix {
  WeightType type = WeightType::kF32;  // kF32, kF16 or kInt8
  int k = 0, n = 0;
  const void* packed = nullptr;  // CudaPackedSize() bytes
  const float* bias = nullptr;   // [n]
};

struct CudaGemmArgs {
  static constexpr bool kAlone = true;  // not a CudaGroupProduct
  CudaMatrix w;
  const float* a = nullptr;         // [.., lda]
  const int32_t* gather = nullptr;  // row r of the product takes rows gather[r] of a and residual;
                                    // null: rows r
  const float* residual = nullptr;  // [.., ld_residual] for Epilogue::kResidual; not out
  float* out = nullptr;             // [rows, ld_out]; columns n .. are not touched
  int rows = 0, lda = 0, ld_residual = 0, ld_out = 0;
  Epilogue epilogue = Epilogue::kNone;
  // Layer norm of a's rows first; null weight: none. The normalised rows are also written to
  // norm_out unless it is null (they are the residual of a later product).
  const float* norm_weight = nullptr;  // [k]
  const float* norm_bias = nullptr;    // [k]
  float* norm_out = nullptr;           // [rows, ld_norm_out]; neither a nor out
  int ld_norm_out = 0;
  float norm_eps = 0;
};

// Null if the arguments are valid, else the reason: a, norm_out 16-byte aligned with ld multiple of
// 4, ...
const char* CheckGemmCuda(const CudaGemmArgs& args);
// Call once per device, before the first launch.
cudaError_t PrepareGemmCuda();
// cudaErrorInvalidValue where CheckGemmCuda objects. rows = 0 launches nothing.
cudaError_t GemmCuda(const CudaLaunch& launch, const CudaGemmArgs& args);

// For tests: the tile shape to use, 0 .. kCudaGemmTiles - 1; -1: chosen by size. Thread: none may
// call GemmCuda.
inline constexpr int kCudaGemmTiles = 4;  // the last: blocks of one warp, on the tensor cores
void SetCudaGemmTileForTest(int tile);

}  // namespace rivulet::kernels
