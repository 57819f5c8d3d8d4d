// SPDX-License-Identifier: Apache-2.0
// Checks of the options of a CUDA backend, and the limits that follow from them.
#pragma once

#include "absl/status/status.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"
#include "model/model.h"

namespace rivulet {

// OK, or INVALID_ARGUMENT naming the field and its range.
absl::Status CheckCudaOptions(const CudaBackendOptions& options);
// The types in which the host reads the weights.
WeightChoice CudaWeightChoice(const Model& model, const CudaBackendOptions& options);
// All limits except weight_bytes and products. Without a number in the options, num_slots is
// the largest number and context the longest.
// REQUIRES: checked options.
// `numerics_version`: CudaNetwork's.
BackendLimits CudaLimits(const ModelConfig& config, const CudaBackendOptions& options,
                         const CudaDevice& device, int numerics_version);

// Whether products read F16.
inline bool CudaHalves(const CudaBackendOptions& options) {
  return options.precision != CudaPrecision::kFloat32;
}

}  // namespace rivulet
