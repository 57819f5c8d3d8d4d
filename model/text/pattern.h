// SPDX-License-Identifier: Apache-2.0
// Split patterns of tokenizer.json on PCRE2.
//
// The files are written for Oniguruma's Ruby syntax. A pattern is translated where the engines
// differ, and refused if it uses a construct that is not known to be the same:
//   \s \S   White_Space of Unicode, in which U+180E is not (PCRE2's own \s has it)
//   \w \W   outside of a class: Alphabetic, M, Nd, Pc;  \d \D: Nd
//   \p{X}   general categories of one or two letters, else the script X (not its extensions)
//   taken   literals, ., |, ( ) and (?: (?i: (?= (?! (?<= (?<!, classes without nesting, * + ?
//   {n,m}
//           followed by ? or (not after {n,m}) +, \n \r \t \f \v \uHHHH, escaped punctuation
//   refused anchors, back references, &&, other escapes
// Characters are classified by Unicode 14 (PCRE2 10.42): later letters are not \p{L} here.
//
// Cost: PCRE2 does not report the cost of a match, and its own limits count neither the characters
// of one item nor the matches of a text. So a search first uses a window of the subject with a
// small limit, which bounds its cost. If the window or the limit is too small, the pattern is
// matched with a callout before each of its items, which counts items and characters against the
// budget. Ordinary words need no callouts. PCRE2's compiler to machine code is not used, because
// its code does not count all steps.
// Tested by: tests/unit/model/text/pattern_test.cc
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/aligned_text.h"
#include "model/text/text_budget.h"

namespace rivulet {

// Thread: const calls from any thread.
class Pattern {
 public:
  // Errors: UNSUPPORTED_TOKENIZER (refused, or PCRE2 does not compile it), naming `field`.
  static absl::StatusOr<Pattern> Compile(absl::string_view pattern, absl::string_view field);
  // A pattern that matches only `text`, which is not empty.
  static Pattern Literal(absl::string_view text);

  // Calls `action` with the matches in order, none overlapping, until a call fails. A match may be
  // empty, but not at the end of the match before. REQUIRES: `subject` is UTF-8. Errors: the errors
  // of `action`, TextBudget::status(), and TEXT_TOO_HARD if PCRE2 needs too much memory.
  using MatchAction = absl::FunctionRef<absl::Status(TextRange match)>;
  absl::Status ForEachMatch(absl::string_view subject, TextBudget* budget,
                            MatchAction action) const;

 private:
  struct Compiled;
  class Search;
  std::shared_ptr<const Compiled> compiled_;  // null for a literal
  std::string literal_;
};

// The pattern in PCRE2's syntax.
struct TranslatedPattern {
  std::string text;
  uint32_t longest_interval = 0;  // the largest n of {n}, {n,} and {n,m}
};
// Errors: as Compile.
absl::StatusOr<TranslatedPattern> TranslatePattern(absl::string_view pattern,
                                                   absl::string_view field);

}  // namespace rivulet
