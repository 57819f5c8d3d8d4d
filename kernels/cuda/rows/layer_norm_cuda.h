// SPDX-License-Identifier: Apache-2.0
// Layer normalisation on the GPU: the equation and arguments of layer_norm.h, with device pointers,
// x and y 16-byte aligned and ld a multiple of 4. Inside a layer the norm is the prologue of the
// product that reads it (gemm_cuda.h); this operation is for two norms in sequence and for products
// of many rows.
//
// One warp a row: lane l adds columns 4 l .. 4 l + 3, then 128 further, and so on; lanes are folded
// by a butterfly. The order is fixed, so a row's bits depend on the row alone; the prologue gives
// the same bits. Cost: 8 rows n bytes. Tested by: tests/parity/cuda_layer_norm_test.cc
#pragma once

#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/layer_norm.h"

namespace rivulet::kernels {

// Call once per device, before the first launch.
cudaError_t PrepareLayerNormCuda();
// `half`, where not null: also [rows, ld] y rounded to F16; 8-byte aligned. Columns n to width - 1
// become 0, columns from `width` on are not touched. `width`: a multiple of 4, or 0 for ld.
cudaError_t LayerNormCuda(const CudaLaunch& launch, const LayerNormArgs& args,
                          uint16_t* half = nullptr, int width = 0);

}  // namespace rivulet::kernels
