// SPDX-License-Identifier: Apache-2.0
// Writes a model directory whose large matrices are integers of 8 or 4 bits, so that a start has
// nothing to round and reads fewer bytes. model/FORMAT.md says how they lie in the file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "model/weight_choice.h"

namespace rivulet {

struct QuantizedDirectory {
  int64_t bytes_before = 0, bytes_after = 0;  // of the weights
  int rounded = 0;                            // tensors, or parts of them
  int kept = 0;                               // ... that are as they were
};

// Writes to `out` the model of the directory `from` as the CPU would keep it with `choice`, and
// copies the directory's other files. A matrix whose width is no multiple of 32 stays as it is.
// The metadata of the weights names `choice` and the SHA-256 of what it was made of. `progress` is
// told the bytes of weights written so far, and all. Takes the memory of one tensor and its rounded
// copy. `out` has no weights until all of them are on the disk, and nothing after an error.
//
// Errors: those of Model::Load; INVALID_ARGUMENT (`choice` without int8 and int4; `from` is no
// directory, or holds blocks of integers already; `out` exists and is not empty; a weight that is
// too large, named); UNAVAILABLE (`out` cannot be written).
absl::StatusOr<QuantizedDirectory> QuantizeDirectory(
    const std::string& from, const std::string& out, const WeightChoice& choice,
    absl::FunctionRef<void(int64_t done, int64_t all)> progress);

}  // namespace rivulet
