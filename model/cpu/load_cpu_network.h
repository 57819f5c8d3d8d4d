// SPDX-License-Identifier: Apache-2.0
// The CPU's networks, by the kind of the model.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "model/backend_options.h"
#include "model/cpu/cpu_network.h"
#include "model/model.h"

namespace rivulet {

// Reads and packs the weights; the network borrows model.config(). Errors: DATA_LOSS (a file; a
// tensor that is missing, misshapen or not expected, named), INVALID_ARGUMENT (a weight too large
// for `precision`, named), RESOURCE_EXHAUSTED (memory).
absl::StatusOr<std::unique_ptr<const CpuNetwork>> LoadCpuNetwork(const Model& model,
                                                                 WeightPrecision precision);

// What it would keep in memory, in bytes; about, for kind "linear". No weight is read. Errors:
// those of LoadCpuNetwork for tensors that are missing, misshapen or not expected.
absl::StatusOr<size_t> MeasureCpuWeights(const Model& model, WeightPrecision precision);

}  // namespace rivulet
