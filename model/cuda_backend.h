// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the Backend on one NVIDIA GPU. This build holds a stub; CMake chooses which source
// is compiled.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/model.h"

namespace rivulet {

enum class CudaPrecision : uint8_t {
  kDefault,  // matrix products may run in fp16; state, norms, feature maps and head in float32
  kFloat32,
};

struct CudaBackendOptions {
  int num_slots = 1024;
  CudaPrecision precision = CudaPrecision::kDefault;
  int device = 0;
};

// UNIMPLEMENTED (reason BACKEND_ABSENT) where this build has no CUDA backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model> model,
                                                           const CudaBackendOptions& options);

}  // namespace rivulet
