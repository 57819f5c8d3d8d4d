// SPDX-License-Identifier: Apache-2.0
// Constraint: what the text of a reply must be. The tokens that cannot continue such a text are
// masked before anything else of the sampler; nothing else changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rivulet {

struct Constraint {
  enum class Kind : uint8_t { kJsonSchema, kJsonObject, kRegex, kChoices, kStructuralTag };
  Kind kind = Kind::kJsonObject;
  std::string text;                  // the schema, the regular expression, or the structural tag
  std::vector<std::string> choices;  // kChoices: the text is one of them
  // The position of the sequence behind which the text begins; absent: where the reply begins.
  std::optional<int64_t> begin_position = std::nullopt;
  // Not empty: the text begins behind the first of these that is written, and until then tokens are
  // free, except those that end the reply. One that ends the prompt counts, white space behind it
  // too.
  std::vector<std::string> after = {};
  bool operator==(const Constraint&) const = default;
};

// What the library compiles. Equal grammars have equal fields.
struct Grammar {
  enum class Kind : char { kJsonSchema = 'j', kRegex = 'r', kEbnf = 'e', kStructuralTag = 's' };
  Kind kind = Kind::kEbnf;
  std::string text;
  bool operator==(const Grammar&) const = default;
};

inline constexpr size_t kMaxConstraintBytes = 65536;  // of all texts of a Constraint
inline constexpr size_t kMaxChoices = 1000;
inline constexpr size_t kMaxAfter = 8;
inline constexpr size_t kMaxAfterBytes = 64;  // of one of Constraint::after

// The grammar of the text. Errors, INVALID_ARGUMENT about a field below "constraint.":
// CONSTRAINT_INVALID (it says nothing, or is too long), CONSTRAINT_UNSUPPORTED (docs/constraints.md
// has the table of what is enforced; the field is that with the JSON pointer, or with the byte).
absl::StatusOr<Grammar> GrammarOf(const Constraint& constraint);

}  // namespace rivulet
