// SPDX-License-Identifier: Apache-2.0
// CudaOutputs: the head outputs of a pass, which sampling reads.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"

namespace rivulet {

// Device memory, rows [head_rows, ld].
class CudaOutputs {
 public:
  // `head_rows`: of a piece of head outputs; 0: what 32 MiB hold.
  static size_t Bytes(const ModelConfig& config, const BackendLimits& limits, int head_rows);
  static absl::StatusOr<CudaOutputs> Create(const ModelConfig& config, const BackendLimits& limits,
                                            int head_rows, const kernels::CudaLaunch& launch);

  float *outputs = nullptr, *adjusted = nullptr;
  int ld_outputs = 0, ld_adjusted = 0;
  int head_rows = 0;  // head outputs of one piece

 private:
  // All but the memory.
  static CudaOutputs Sized(const ModelConfig& config, const BackendLimits& limits, int head_rows);
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
