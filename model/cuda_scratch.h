// SPDX-License-Identifier: Apache-2.0
// CudaScratch: the memory between the launches of a forward pass.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/cuda_device.h"

namespace rivulet {

// Activations. All pointers are device memory, rows [.., ld].
class CudaScratch {
 public:
  // `head_rows`: 0, or the rows of a piece of head outputs.
  static size_t Bytes(const ModelConfig& config, const BackendLimits& limits, int head_rows);
  static absl::StatusOr<CudaScratch> Create(const ModelConfig& config, const BackendLimits& limits,
                                            int head_rows, cudaStream_t stream);

  float *x, *y, *qkv, *attention, *ffn;  // [max_tokens]
  float* half;                           // [max_tokens, ld_x / 2] x in F16
  float* features;            // [max_tokens and a long segment each kCudaLongSegment of them]
  float *outputs, *adjusted;  // [head_rows]
  int ld_x, ld_qkv, ld_attention, ld_ffn, ld_features, ld_outputs, ld_adjusted;
  int head_rows;  // head outputs of one piece

 private:
  struct Array;
  static std::vector<Array> Arrays(const ModelConfig& config, const BackendLimits& limits,
                                   int head_rows, CudaScratch* scratch);
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
