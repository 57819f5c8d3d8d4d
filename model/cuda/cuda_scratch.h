// SPDX-License-Identifier: Apache-2.0
// CudaScratch: the memory between the launches of CudaForward.
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

// Rows begin on cache lines: n columns take so many.
inline int CudaPadded(int n) { return (n + 31) / 32 * 32; }

// What products read: for a library rows that have the prefix of product_rows_cuda.h, and F16
// unless the precision is float32.
struct CudaProductReads {
  bool for_library = false;
  bool halves = true;
};

// Activations. All pointers are device memory, rows [.., ld].
class CudaScratch {
 public:
  static size_t Bytes(const ModelConfig& config, const BackendLimits& limits,
                      const CudaProductReads& reads);
  static absl::StatusOr<CudaScratch> Create(const ModelConfig& config, const BackendLimits& limits,
                                            const CudaProductReads& reads,
                                            const kernels::CudaLaunch& launch);

  float *x = nullptr, *y = nullptr, *qkv = nullptr, *attention = nullptr,
        *ffn = nullptr;  // [max_tokens]
  // What products read in F16: x, and in place of attention and ffn or, for a library, beside them.
  uint16_t *half = nullptr, *attention_half = nullptr,
           *ffn_half = nullptr;  // [max_tokens]; ld as of x, attention, ffn
  float* features = nullptr;     // [max_tokens and a long segment each kCudaLongSegment of them]
  int ld_x = 0, ld_qkv = 0, ld_attention = 0, ld_ffn = 0, ld_features = 0;
  int width_x = 0;  // columns of x that are written; what lies behind is the next row's prefix

 private:
  struct Array;
  static std::vector<Array> Arrays(const ModelConfig& config, const BackendLimits& limits,
                                   const CudaProductReads& reads, CudaScratch* scratch);
  absl::Status Place(const Array& array, void* memory, const kernels::CudaLaunch& launch);
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
