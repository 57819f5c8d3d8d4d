// SPDX-License-Identifier: Apache-2.0
// Regular expressions of constraints: those of ECMA 262 that denote a regular set of texts, without
// flags. The whole text must match, so an anchor at either end changes nothing.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// The same set of texts in the few forms that the library reads as ECMA 262 does: sets of code
// points "[...]", "(...)", "|" and quantifiers. `in_json`: of texts that stand in a JSON string, so
// without a code point that is escaped there. Errors: INVALID_ARGUMENT (CONSTRAINT_UNSUPPORTED),
// field `field`; its message begins with `place` and has the byte.
absl::StatusOr<std::string> PlainPattern(absl::string_view pattern, bool in_json,
                                         absl::string_view field, absl::string_view place);

}  // namespace rivulet
