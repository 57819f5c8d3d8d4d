// SPDX-License-Identifier: Apache-2.0
#include "model/base/error.h"
#include "model/cuda/cuda_backend.h"

namespace rivulet {

absl::Status CheckCudaDevice(int) {
  ErrorDetail detail;
  detail.reason = "BACKEND_ABSENT";
  detail.field = "backend";
  return MakeError(absl::StatusCode::kUnimplemented, "this build has no CUDA backend", detail);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the real backend keeps the model
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model>,
                                                           const CudaBackendOptions& options) {
  return CheckCudaDevice(options.device);
}

}  // namespace rivulet
