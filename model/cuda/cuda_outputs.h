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
  // Rows of one head pass: all rows of a step, or those that fit into `bytes`, but at least 32 MiB
  // of outputs and 128 rows. Each pass reads the head's weights and waits for its draws.
  static int HeadRows(const ModelConfig& config, const BackendLimits& limits, size_t bytes);
  static size_t Bytes(const ModelConfig& config, int head_rows);
  static absl::StatusOr<CudaOutputs> Create(const ModelConfig& config, int head_rows,
                                            const kernels::CudaLaunch& launch);

  float *outputs = nullptr, *adjusted = nullptr;
  int ld_outputs = 0, ld_adjusted = 0;
  int head_rows = 0;  // rows of one head pass

 private:
  static CudaOutputs Sized(const ModelConfig& config, int head_rows);  // all but the memory
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
