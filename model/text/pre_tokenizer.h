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

// How Split treats the matches of its pattern.
enum class SplitBehavior : uint8_t {
  kRemoved,             // matches are dropped
  kIsolated,            // each match is a piece
  kMergedWithPrevious,  // a match ends the piece before
  kMergedWithNext,      // a match begins the piece behind
  kContiguous           // neighbouring matches are one piece
};

// Takes a piece: a range of a text that is valid until the action returns.
using PieceAction = absl::FunctionRef<absl::Status(const AlignedText& text, TextRange piece)>;

// Thread: const calls from any thread.
class PreTokenizer {
 public:
  // From `value`, which may be null: then the whole text is one piece. Errors: INVALID_TOKENIZER,
  // UNSUPPORTED_TOKENIZER.
  static absl::StatusOr<PreTokenizer> Create(const JsonValue* value, absl::string_view path);

  // Calls `action` with the pieces of a range of `text`, in order, none empty, until a call fails.
  // Spans of the text are in the whole source. Memory: one piece per step, beside the text. Errors:
  // the errors of `action`, and TextBudget::status().
  absl::Status Cut(const AlignedText& text, TextRange range, TextBudget* budget,
                   PieceAction action) const;

 private:
  enum class Prepend : uint8_t { kNever, kAlways, kFirst };
  struct Step {
    enum class Kind : uint8_t { kSplit, kByteMap, kMetaspace, kPrefixSpace };
    Kind kind = Kind::kSplit;
    Pattern pattern;  // kSplit
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool inverted = false;               // text between matches counts as the match
    std::string replacement;             // kMetaspace: replaces a space
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
