// SPDX-License-Identifier: Apache-2.0
// `pre_tokenizer` of tokenizer.json: cuts text into the pieces that merges stay within.
// ByteLevel, Split, Digits, Metaspace, Sequence; anything else is an error that names it.
// Tested by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"
#include "model/text/aligned_text.h"
#include "model/text/pattern.h"
#include "model/text/text_budget.h"

namespace rivulet {

// What Split does with the matches of its pattern.
enum class SplitBehavior : uint8_t {
  kRemoved,             // matches are dropped
  kIsolated,            // a piece each
  kMergedWithPrevious,  // the end of the piece before
  kMergedWithNext,      // the beginning of the piece behind
  kContiguous           // a piece for neighbours together
};

// What is done with a piece: a range of a text, which lives until the action returns.
using PieceAction = absl::FunctionRef<absl::Status(const AlignedText& text, TextRange piece)>;

// Thread: const calls from any thread.
class PreTokenizer {
 public:
  // Of `value`, which may be null: then the whole text is one piece. Errors: INVALID_TOKENIZER,
  // UNSUPPORTED_TOKENIZER.
  static absl::StatusOr<PreTokenizer> Create(const JsonValue* value, absl::string_view path);

  // Does `action` with the pieces of a range of `text`, in order, none empty, until one fails.
  // Spans of the text are in the whole source. Memory: beyond the text, that of a piece for each
  // step. Errors: those of `action`, and TextBudget::status().
  absl::Status Cut(const AlignedText& text, TextRange range, TextBudget* budget,
                   PieceAction action) const;

 private:
  enum class Prepend : uint8_t { kNever, kAlways, kFirst };
  struct Step {
    enum class Kind : uint8_t { kSplit, kByteMap, kMetaspace, kPrefixSpace };
    Kind kind = Kind::kSplit;
    Pattern pattern;  // kSplit
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool inverted = false;               // what does not match counts as the match
    std::string replacement;             // kMetaspace: what a space becomes
    Prepend prepend = Prepend::kAlways;  // kMetaspace
  };
  static absl::Status AddSteps(const JsonValue& value, absl::string_view path,
                               std::vector<Step>* steps);
  static absl::Status AddByteLevel(const JsonValue& value, absl::string_view path,
                                   std::vector<Step>* steps);
  static absl::Status AddSplit(const JsonValue& value, absl::string_view path,
                               std::vector<Step>* steps);
  static absl::Status AddDigits(const JsonValue& value, absl::string_view path,
                                std::vector<Step>* steps);
  static absl::Status AddMetaspace(const JsonValue& value, absl::string_view path,
                                   std::vector<Step>* steps);
  class Cutter;
  class Joiner;

  std::vector<Step> steps_;
};

}  // namespace rivulet
