// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the Backend on one NVIDIA GPU. Submit queues a run and returns; steps continue
// without the host. Where a build has no CUDA, CMake puts a stub in its place.
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
// CUDA_ERROR), INVALID_ARGUMENT (options, a device that is not there, a plan or products that it
// cannot run, a weight too large for fp16), RESOURCE_EXHAUSTED naming the arithmetic (weights,
// slots, free memory), DATA_LOSS (weights).
//
// A CUDA error or a hung device poisons the backend: every later call returns UNAVAILABLE with
// reason CUDA_ERROR or CUDA_HANG. After a hang the destructor leaves the device's memory to the end
// of the process, as giving it back would wait for ever.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model> model,
                                                           const CudaBackendOptions& options);

// Whether there is a device `index` to create a backend on. Errors: those of CreateCudaBackend with
// reason BACKEND_ABSENT, NO_SUCH_DEVICE or CUDA_ERROR.
absl::Status CheckCudaDevice(int index);

}  // namespace rivulet
