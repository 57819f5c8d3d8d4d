// SPDX-License-Identifier: Apache-2.0
// Names of the types of cached keys and values.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/softmax_attention.h"

namespace rivulet {

// "f32", "f16" or "bf16".
const char* CacheTypeName(kernels::CacheType type);
// Errors: INVALID_ARGUMENT (OPTION_OUT_OF_RANGE).
absl::StatusOr<kernels::CacheType> ParseCacheType(absl::string_view name);

// The suffix of a backend's numerics id for this type: "" or "-kv-TYPE".
std::string CacheNumerics(kernels::CacheType type);
// Whether states of backends with these numerics ids hold keys and values of the same type.
bool SameCache(absl::string_view numerics_id, absl::string_view other);

}  // namespace rivulet
