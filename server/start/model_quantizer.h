// SPDX-License-Identifier: Apache-2.0
// The work of `rivulet quantize`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/loading/quantize_directory.h"

namespace rivulet {

// QuantizeDirectory with `weights` as in the setting `weights`. Errors: the errors of
// QuantizeDirectory and of ParseWeightChoice.
absl::StatusOr<QuantizedDirectory> QuantizeModel(
    const std::string& from, const std::string& out, absl::string_view weights,
    absl::FunctionRef<void(int64_t done, int64_t all)> progress);

}  // namespace rivulet
