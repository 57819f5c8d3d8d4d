// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the Backend on one NVIDIA GPU. Submit queues a run and returns; steps continue
// without the host. In builds without CUDA, CMake replaces it by a stub.
//
// A row's bits depend on model, precision, fed tokens and sampler alone: never on the other rows,
// its place, the bucket that a step was captured for, or how tokens are split over runs.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/model.h"

namespace rivulet {

// Uploads the weights, reserves the slots, captures a step for every bucket of row counts and runs
// each once, so that nothing is allocated or loaded later. Errors: UNIMPLEMENTED (reason
// BACKEND_ABSENT: this build has none), UNAVAILABLE (BACKEND_ABSENT: no driver or no usable device;
// CUDA_ERROR), INVALID_ARGUMENT (options, a device that does not exist, a plan or products that it
// cannot run, a weight too large for fp16), RESOURCE_EXHAUSTED with the sum (weights, slots, free
// memory), DATA_LOSS (weights).
//
// A CUDA error or a hung device poisons the backend: every later call returns UNAVAILABLE with
// reason CUDA_ERROR or CUDA_HANG. After a hang the destructor does not free the device's memory,
// because that would wait for ever; the end of the process frees it.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model> model,
                                                           const CudaBackendOptions& options);

// Checks that a backend can be created on device `index`. Errors: the errors of CreateCudaBackend
// with reason BACKEND_ABSENT, NO_SUCH_DEVICE or CUDA_ERROR.
absl::Status CheckCudaDevice(int index);

}  // namespace rivulet
