// SPDX-License-Identifier: Apache-2.0
// Normalisation of groups of rows on the GPU: the equations and arguments of rms_norm.h and
// group_norm.h, with device pointers, and with the gates that the models of the family have around
// these norms.
//
//   y = norm(x) * f(gate),  or with gate_first  y = norm(x * f(gate))
//
// A warp takes a group of up to 256 values, a block of 8 warps a longer one, if its values are
// whole float4 in memory and fit into shared memory. In both cases lane l of one warp adds columns
// l, l + 32, ..., and a butterfly folds the lanes. This order is fixed, so a group's bits depend on
// the group (and its gates) alone.
// Cost: 8 bytes a value, 6 with F16, 4 more with a gate.
// Tested by: tests/parity/cuda_group_rows_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/group_norm.h"
#include "kernels/rms_norm.h"

namespace rivulet::kernels {

struct CudaGate {
  Activation kind = Activation::kSilu;
  const float* data = nullptr;  // [rows, stride], column i for column i of x; null: no gate
  size_t stride = 0;
  bool first = false;
};

// Call once per device, before the first launch.
cudaError_t PrepareGroupRowsCuda();
// `gather`: row r of y is the norm of row gather[r] of x, and y is not x; null: of row r. Gates are
// not gathered. If `half` is set, the results are there, and y holds nothing of use.
// cudaErrorInvalidValue where an argument is missing or out of range.
cudaError_t RmsNormCuda(const CudaLaunch& launch, const RmsNormArgs& args,
                        const CudaGate& gate = {}, const int32_t* gather = nullptr,
                        const CudaHalfRows& half = {});
cudaError_t GroupNormCuda(const CudaLaunch& launch, const GroupNormArgs& args,
                          const int32_t* gather = nullptr, const CudaHalfRows& half = {});

}  // namespace rivulet::kernels
