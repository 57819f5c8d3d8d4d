// SPDX-License-Identifier: Apache-2.0
// Products by our own kernels: their arguments, for each type of input rows, and their launch.
// Thread, for all functions: any.
#pragma once

#include <type_traits>

#include "absl/status/status.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "model/cuda/cuda_device.h"

namespace rivulet {

// out = a w + bias: a [rows, lda] of float, for GemmCuda, or of F16 (uint16_t), for WideGemmCuda. A
// caller that wants out_half passes null as `out`.
template <class Value>
auto Product(const kernels::CudaMatrix& w, const Value* a, int lda, float* out, int ld_out,
             int rows) {
  std::conditional_t<std::is_same_v<Value, float>, kernels::CudaGemmArgs, kernels::CudaWideGemmArgs>
      args;
  args.w = w;
  args.a = a;
  args.lda = lda;
  args.out = out;
  args.ld_out = ld_out;
  args.rows = rows;
  return args;
}

// The product plus `residual` [.., ld]; null: without it.
template <class Args>
Args WithResidual(Args args, const float* residual, int ld) {
  if (residual == nullptr) return args;
  args.epilogue = kernels::Epilogue::kResidual;
  args.residual = residual;
  args.ld_residual = ld;
  return args;
}

inline absl::Status Launch(const kernels::CudaLaunch& launch, const kernels::CudaGemmArgs& args) {
  return CudaStatus(kernels::GemmCuda(launch, args), "launching a matrix product");
}
inline absl::Status Launch(const kernels::CudaLaunch& launch,
                           const kernels::CudaWideGemmArgs& args) {
  return CudaStatus(kernels::WideGemmCuda(launch, args), "launching a product of many rows");
}

}  // namespace rivulet
