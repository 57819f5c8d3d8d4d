// SPDX-License-Identifier: Apache-2.0
// CudaScratch: the memory between the launches of a forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"

namespace rivulet {

// Activations. All pointers are device memory, rows [.., ld]. A model of the family has only
// outputs and adjusted here, and the rest in CudaBlockScratch.
class CudaScratch {
 public:
  struct Options {
    int head_rows = 0;         // of a piece of head outputs; 0: what 32 MiB hold
    bool for_library = false;  // rows that products read have the prefix of product_rows_cuda.h
    bool halves = true;        // ... and products read F16
  };
  static size_t Bytes(const ModelConfig& config, const BackendLimits& limits,
                      const Options& options);
  static absl::StatusOr<CudaScratch> Create(const ModelConfig& config, const BackendLimits& limits,
                                            const Options& options,
                                            const kernels::CudaLaunch& launch);

  float *x = nullptr, *y = nullptr, *qkv = nullptr, *attention = nullptr,
        *ffn = nullptr;  // [max_tokens]
  // What products read in F16: x, and in place of attention and ffn or, for a library, beside them.
  uint16_t *half = nullptr, *attention_half = nullptr,
           *ffn_half = nullptr;  // [max_tokens]; ld as of x, attention, ffn
  float* features = nullptr;     // [max_tokens and a long segment each kCudaLongSegment of them]
  float *outputs = nullptr, *adjusted = nullptr;  // [head_rows]
  int ld_x = 0, ld_qkv = 0, ld_attention = 0, ld_ffn = 0, ld_features = 0, ld_outputs = 0,
      ld_adjusted = 0;
  int width_x = 0;    // columns of x that are written; what lies behind is the next row's prefix
  int head_rows = 0;  // head outputs of one piece

 private:
  struct Array;
  static std::vector<Array> Arrays(const ModelConfig& config, const BackendLimits& limits,
                                   const Options& options, CudaScratch* scratch);
  absl::Status Place(const Array& array, void* memory, const kernels::CudaLaunch& launch);
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
