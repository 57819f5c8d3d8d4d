// SPDX-License-Identifier: Apache-2.0
// Any schema, any structural tag and any regular expression: a grammar for the library, or one
// typed error that names a place in the constraint. The first byte chooses.
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "model/base/error.h"
#include "server/constraints/constraint.h"
#include "tests/fuzz/promise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using rivulet::Constraint;
  using rivulet::fuzz::Promise;
  if (size == 0) return 0;
  Constraint constraint;
  const bool schema = data[0] == 'j';
  const bool tag = data[0] == 's';
  constraint.kind = schema ? Constraint::Kind::kJsonSchema
                    : tag  ? Constraint::Kind::kStructuralTag
                           : Constraint::Kind::kRegex;
  constraint.text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const absl::StatusOr<rivulet::Grammar> grammar = rivulet::GrammarOf(constraint);
  if (grammar.ok()) {
    // Every character class may grow to the ranges of its complement. A tag may repeat a part of a
    // schema, up to a limit of its own.
    Promise(tag || grammar->text.size() <= 4096 + 256 * size, "a grammar is not much longer");
    Promise(!schema || nlohmann::json::accept(grammar->text), "a schema stays JSON");
    Promise(*rivulet::GrammarOf(constraint) == *grammar, "it is a function of the constraint");
    return 0;
  }
  const rivulet::ErrorDetail detail = rivulet::GetErrorDetail(grammar.status());
  Promise(absl::IsInvalidArgument(grammar.status()), "errors are INVALID_ARGUMENT");
  Promise(detail.reason == "CONSTRAINT_INVALID" || detail.reason == "CONSTRAINT_UNSUPPORTED",
          "the reason is documented");
  Promise(absl::StartsWith(detail.field, "constraint"), "an error names its field");
  rivulet::fuzz::PromiseOneLine(grammar.status());
  return 0;
}
