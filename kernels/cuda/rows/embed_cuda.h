// SPDX-License-Identifier: Apache-2.0
// Token embedding with its position on the GPU: the equation of embed.h, many rows at once.
// Sinusoidal positions behind the table are computed in double, sin(pi x) with x = p frequency.
//
// Cost: 4 ld bytes a row, and the bytes of its token in the table.
// Tested by: tests/parity/cuda_embed_test.cc
#pragma once

#include <cstdint>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/gemm.h"

namespace rivulet::kernels {

struct CudaEmbedArgs {
  const void* table = nullptr;  // [vocab, columns] of `type`; F16 and BF16 are widened
  WeightType type = WeightType::kF32;
  const float* positions = nullptr;  // [position_rows, columns]; may be null if there are none
  int64_t position_rows = 0;
  const double* frequencies = nullptr;  // [columns] of CudaFrequencies(); null: every position is
                                        // in the table
  int columns = 0;                      // of the token part; of the position part, too
  bool has_positions = false;
  bool concat = false;              // [token ; position], else their sum
  const int32_t* tokens = nullptr;  // [rows], each in the table, also those of inactive rows
  const int64_t* at = nullptr;      // [rows] positions; may be null without has_positions
  float* out = nullptr;             // [rows, ld]; columns from the embedding's last on become 0
  uint16_t* half = nullptr;         // where not null: also [rows, ld] `out` rounded to F16
  int rows = 0, ld = 0;
  int width = 0;  // columns from here on are not touched; 0: ld
};

// Call once per device, before the first launch.
cudaError_t PrepareEmbedCuda();
cudaError_t EmbedCuda(const CudaLaunch& launch, const CudaEmbedArgs& args);

// The factors of sinusoidal positions, computed on the host: 10000^(-2i/columns) / pi for columns
// 2i and 2i + 1. `out`: [columns]
void CudaFrequencies(int columns, double* out);

}  // namespace rivulet::kernels
