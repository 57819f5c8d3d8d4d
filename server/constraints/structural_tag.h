// SPDX-License-Identifier: Apache-2.0
// Structural tags of constraints: texts, schemas and expressions, put together. docs/constraints.md
// has the table of formats for users; everything else is refused.
// Tested by: tests/unit/server/constraints/
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// The tag rewritten for rivulet-grammar (kStructuralTag in messages.h). Errors as PlainSchema.
absl::StatusOr<std::string> PlainStructuralTag(absl::string_view tag, absl::string_view field);

}  // namespace rivulet
