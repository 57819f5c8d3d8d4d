// SPDX-License-Identifier: Apache-2.0
// CpuBackend: the Backend on the cores of this machine. Submit does the work before it returns.
//
// A row's bits depend on model, weight precision, fed tokens and sampler alone: never on the other
// rows, the number of threads, how tokens are split over runs, or AVX2 against AVX-512
// (kernels/README.md says why).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/model.h"

namespace rivulet {

// Decodes and packs the weights and reserves the slots (pages are taken when a slot is first used).
// Errors: DATA_LOSS (weights), INVALID_ARGUMENT (options), RESOURCE_EXHAUSTED with the sum
// (weights, slots, memory), UNAVAILABLE (BACKEND_ABSENT: a CPU without AVX2 and FMA).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::shared_ptr<const Model> model,
                                                          const CpuBackendOptions& options);

// Bytes of matrices that `backend`, which CreateCpuBackend made, has read for products of all rows
// so far; a matrix counts once a pass. Products of experts are not counted. Thread: as Backend.
size_t CpuMatrixBytes(const Backend& backend);

// The limits that CreateCpuBackend would choose now. Sets only num_slots, slots_choice,
// bytes_per_slot and weight_bytes (an estimate for kinds "linear" and "softmax"). Reads no weight,
// so `model` may be from Model::Open. Errors: the errors of CreateCpuBackend that do not depend on
// the weights' values.
absl::StatusOr<BackendLimits> PlanCpuBackend(const Model& model, const CpuBackendOptions& options);

}  // namespace rivulet
