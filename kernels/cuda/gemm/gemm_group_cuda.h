// SPDX-License-Identifier: Apache-2.0
// Matrix products of the same rows count as one launch on the GPU: for each of up to eight
//
//   out[r][c] = f( b[c] + sum_k a[r][k] W[c][k] )
//
// with the bits of gemm_cuda.h (a of float) or gemm_wide_cuda.h (a of F16) and of activation.h
// behind it. Blocks of all products run side by side: small ones then cost nothing beside a large
// one, where as launches of their own each would wait for the one before and leave most of the
// machine idle.
// Cost: that of the products. Thread: any.
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
  // One of the two, as there; out_half for F16 rows alone.
  float* out = nullptr;
  uint16_t* out_half = nullptr;
  int rows = 0, lda = 0, ld_out = 0;
  Activation activation = Activation::kIdentity;  // or kSigmoid, kTanh, kSquaredRelu
};

// The products neither read nor write what another of them writes. All have the same rows, and
// weights in float32, or each in F16 or kInt8.
template <class In>
struct CudaProductGroup {
  CudaGroupProduct<In> of[kMostGroupProducts];
  int count = 0;
};

// Null if the arguments are valid, else the reason.
const char* CheckGemmGroupCuda(const CudaProductGroup<float>& group);
const char* CheckGemmGroupCuda(const CudaProductGroup<uint16_t>& group);
// cudaErrorInvalidValue where CheckGemmGroupCuda objects. rows = 0 or no product launches nothing.
// PrepareGemmCuda() and PrepareWideGemmCuda() prepare these kernels, too, and
// SetCuda(Wide)GemmTileForTest() chooses their tiles.
cudaError_t GemmGroupCuda(const CudaLaunch& launch, const CudaProductGroup<float>& group);
cudaError_t GemmGroupCuda(const CudaLaunch& launch, const CudaProductGroup<uint16_t>& group);

}  // namespace rivulet::kernels
