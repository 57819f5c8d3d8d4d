// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/constraint.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/utf8.h"
#include "server/constraints/pattern.h"
#include "server/constraints/schema.h"
#include "server/constraints/structural_tag.h"

namespace rivulet {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view message) {
  return InvalidField("CONSTRAINT_INVALID", field, absl::StrCat(field, " ", message, "."));
}

// A literal of EBNF.
std::string Literal(absl::string_view text) {
  std::string literal = "\"";
  while (!text.empty()) {
    uint32_t c = 0;
    text.remove_prefix(DecodeUtf8(text, &c));
    if (c < 128 && absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      literal += static_cast<char>(c);
    } else {
      absl::StrAppendFormat(&literal, "\\U%08x", c);
    }
  }
  return literal + "\"";
}

absl::Status CheckAfter(const Constraint& constraint) {
  if (constraint.after.size() > kMaxAfter) {
    return Invalid("constraint.after", absl::StrCat("has ", constraint.after.size(),
                                                    " texts; allowed: at most ", kMaxAfter));
  }
  for (size_t i = 0; i < constraint.after.size(); ++i) {
    const size_t bytes = constraint.after[i].size();
    if (bytes >= 1 && bytes <= kMaxAfterBytes) continue;
    return Invalid(absl::StrCat("constraint.after[", i, "]"),
                   absl::StrCat("is ", bytes, " bytes long; allowed: 1 to ", kMaxAfterBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Grammar> GrammarOfChoices(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    return Invalid("constraint.choices",
                   absl::StrCat("has ", choices.size(), " texts; allowed: 1 to ", kMaxChoices));
  }
  std::vector<std::string> literals;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty() || !IsUtf8(choices[i])) {
      return Invalid(absl::StrCat("constraint.choices[", i, "]"), "is empty, or not UTF-8");
    }
    literals.push_back(Literal(choices[i]));
  }
  return Grammar{Grammar::Kind::kEbnf, absl::StrCat("root ::= ", absl::StrJoin(literals, " | "))};
}

}  // namespace

absl::StatusOr<Grammar> GrammarOf(const Constraint& constraint) {
  size_t bytes = constraint.text.size();
  for (const std::string& choice : constraint.choices) bytes += choice.size();
  if (bytes > kMaxConstraintBytes) {
    return Invalid("constraint", absl::StrCat("has texts of ", bytes, " bytes; allowed: at most ",
                                              kMaxConstraintBytes));
  }
  RIVULET_RETURN_IF_ERROR(CheckAfter(constraint));
  using Kind = Constraint::Kind;
  if (constraint.kind == Kind::kChoices) return GrammarOfChoices(constraint.choices);
  if (constraint.kind == Kind::kStructuralTag) {
    RIVULET_ASSIGN_OR_RETURN(std::string tag,
                             PlainStructuralTag(constraint.text, "constraint.structural_tag"));
    return Grammar{Grammar::Kind::kStructuralTag, std::move(tag)};
  }
  const bool regex = constraint.kind == Kind::kRegex, any = constraint.kind == Kind::kJsonObject;
  RIVULET_ASSIGN_OR_RETURN(
      std::string text,
      regex
          ? PlainPattern(constraint.text, false, "constraint.regex", "constraint.regex")
          : PlainSchema(any ? R"({"type":"object"})" : constraint.text, "constraint.json_schema"));
  return Grammar{regex ? Grammar::Kind::kRegex : Grammar::Kind::kJsonSchema, std::move(text)};
}

}  // namespace rivulet
