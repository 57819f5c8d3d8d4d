// SPDX-License-Identifier: Apache-2.0
// One line of `rivulet score --input`: {"tokens":[...]} or {"text":"..."}, with or without an "id".
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

using ScoreContent = std::variant<std::vector<int32_t>, std::string>;  // token ids, or text

// Errors: INVALID_ARGUMENT for an empty line, a byte order mark, a NUL byte, bad JSON, an unknown
// or repeated key, both "tokens" and "text" or neither, a wrong type, a token id outside int32. The
// message begins with the field ("tokens[3]"), if there is one. `*id`, unless `id` is null, becomes
// the JSON of the line's "id" (a string or an integer), even if the rest is invalid; "": no id.
absl::StatusOr<ScoreContent> ParseScoreLine(absl::string_view line, std::string* id = nullptr);

}  // namespace rivulet
