// SPDX-License-Identifier: Apache-2.0
// Up to eight matrix products with the same number of rows as one launch on the GPU. For each
//
//   out[r][c] = f( b[c] + sum_k a[r][k] W[c][k] )
//
// with the bits of gemm_cuda.h (float a) or gemm_wide_cuda.h (F16 a), followed by activation.h.
// Blocks of all products run side by side: small products then cost nothing beside a large one. As
// separate launches each would wait for the one before and leave most of the machine idle.
// Cost: the sum of the products' costs. Thread: any.
// Tested by: tests/parity/cuda_gemm_group_test.cc
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"

namespace rivulet::kernels {

inline constexpr int kMostGroupProducts = 8;

// In: float, or uint16_t for F16.
template <class In>
struct CudaGroupProduct {
  static constexpr bool kAlone = false;
  CudaMatrix w;
  const In* a = nullptr;  // [rows, lda], as gemm_cuda.h or gemm_wide_cuda.h want it
  // One of the two is set, as in those headers; out_half only with F16 rows.
  float* out = nullptr;
  uint16_t* out_half = nullptr;
  int rows = 0, lda = 0, ld_out = 0;
  Activation activation = Activation::kIdentity;  // or kSigmoid, kTanh, kSquaredRelu
};

// No product reads or writes what another product writes. All have the same `rows`. All weights are
// float32, or each product has F16 or kInt8.
template <class In>
struct CudaProductGroup {
  CudaGroupProduct<In> of[kMostGroupProducts];
  int count = 0;
};

// Null if the arguments are valid, else the reason.
const char* CheckGemmGroupCuda(const CudaProductGroup<float>& group);
const char* CheckGemmGroupCuda(const CudaProductGroup<uint16_t>& group);
// cudaErrorInvalidValue where CheckGemmGroupCuda objects. rows = 0 or no product launches nothing.
// PrepareGemmCuda() and PrepareWideGemmCuda() prepare these kernels, too;
// SetCuda(Wide)GemmTileForTest() chooses their tiles.
cudaError_t GemmGroupCuda(const CudaLaunch& launch, const CudaProductGroup<float>& group);
cudaError_t GemmGroupCuda(const CudaLaunch& launch, const CudaProductGroup<uint16_t>& group);

}  // namespace rivulet::kernels
