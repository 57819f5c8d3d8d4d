// SPDX-License-Identifier: Apache-2.0
// JSON schemas of constraints. The library that compiles them (XGrammar) drops what it does not
// know, and the siblings of "$ref", "const", "enum" and "anyOf". So this table says what a schema
// may have, and everything else is refused. docs/constraints.md has the table for users.
// Tested by: tests/unit/server/constraints/constraint_test.cc, tests/e2e/constraints/
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// The schema rewritten so that the library enforces all of it: no annotations, one kind of
// assertion in each subschema, what is implied written out. Its texts satisfy `schema`; not every
// text that does is one of them: objects have the properties that are named, in that order, and no
// others, unless additionalProperties is a schema or no property is named.
// Errors: INVALID_ARGUMENT, CONSTRAINT_INVALID (no JSON) or CONSTRAINT_UNSUPPORTED; the field is
// `field`, and the message has the JSON pointer.
absl::StatusOr<std::string> PlainSchema(absl::string_view schema, absl::string_view field);

}  // namespace rivulet
