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

// A place in a JSON text, as a JSON pointer.
struct Place {
  std::string pointer;
  Place operator/(absl::string_view key) const;
  Place operator/(size_t index) const;
  // For messages: the field and the pointer.
  std::string In(absl::string_view field) const;
  // Errors CONSTRAINT_UNSUPPORTED about `field` that name the place. `json`: what is there.
  absl::Status Unsupported(absl::string_view field, absl::string_view why) const;
  absl::Status NotAllowed(absl::string_view field, absl::string_view json,
                          absl::string_view allowed) const;
};

// The schema rewritten so that the library enforces all of it: no annotations, one kind of
// assertion in each subschema, what is implied written out. Its texts satisfy `schema`; not every
// text that does is one of them: objects have the properties that are named, in that order, and no
// others, unless additionalProperties is a schema or no property is named.
// Errors: INVALID_ARGUMENT, CONSTRAINT_INVALID (no JSON) or CONSTRAINT_UNSUPPORTED; the field is
// `field`, and the message has the JSON pointer, which begins with `place`.
absl::StatusOr<std::string> PlainSchema(absl::string_view schema, absl::string_view field,
                                        const Place& place = {});

}  // namespace rivulet
