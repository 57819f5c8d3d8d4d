// SPDX-License-Identifier: Apache-2.0
// Writes a model directory whose large matrices are integers of 8 or 4 bits, so that a server's
// start need not round and reads fewer bytes. model/FORMAT.md describes these tensors.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "model/weight_choice.h"

namespace rivulet {

struct QuantizedDirectory {
  int64_t bytes_before = 0, bytes_after = 0;  // of the weights
  int rounded = 0;                            // tensors, or parts of tensors
  int kept = 0;                               // ... that are unchanged
};

// Writes to `out` the model of the directory `from`, rounded as the CPU would round it with
// `choice`, and copies the directory's other files. A matrix whose width is no multiple of 32 is
// not changed. The metadata of the weights names `choice` and the SHA-256 of the original weights.
// Calls `progress` with the bytes of weights written so far, and the total. Takes the memory of one
// tensor and its rounded copy. `out` has no weights until all of them are on the disk, and nothing
// after an error.
//
// Errors: the errors of Model::Load; INVALID_ARGUMENT (`choice` without int8 and int4; `from` is no
// directory, or already holds blocks of integers; `out` exists and is not empty; a weight that is
// too large, named); UNAVAILABLE (`out` cannot be written).
absl::StatusOr<QuantizedDirectory> QuantizeDirectory(
    const std::string& from, const std::string& out, const WeightChoice& choice,
    absl::FunctionRef<void(int64_t done, int64_t all)> progress);

}  // namespace rivulet
