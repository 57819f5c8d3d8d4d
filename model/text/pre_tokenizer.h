// SPDX-License-Identifier: Apache-2.0
// `pre_tokenizer` of tokenizer.json: cuts text into the pieces that merges stay within.
// ByteLevel, Split, Digits, Metaspace, Sequence; anything else is an error that names it.
// Tested by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"
#include "model/text/aligned_text.h"
#include "model/text/pattern.h"

namespace rivulet {

// What Split does with the matches of its pattern.
enum class SplitBehavior : uint8_t {
  kRemoved,             // matches are dropped
  kIsolated,            // a piece each
  kMergedWithPrevious,  // the end of the piece before
  kMergedWithNext,      // the beginning of the piece behind
  kContiguous           // a piece for neighbours together
};

// A text and the pieces that it is cut into: in order, none overlapping, none empty. Bytes between
// pieces are dropped.
struct CutText {
  AlignedText text;
  std::vector<TextRange> pieces;
};

// Thread: const calls from any thread.
class PreTokenizer {
 public:
  // Of `value`, which may be null: then the whole text is one piece. Errors: INVALID_TOKENIZER,
  // UNSUPPORTED_TOKENIZER.
  static absl::StatusOr<PreTokenizer> Create(const JsonValue* value, absl::string_view path);

  // Pieces of `text`. Offsets of its spans are in the whole source. Errors: as Pattern::FindAll.
  absl::StatusOr<CutText> Cut(AlignedText text) const;

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
  static absl::Status Split(const Step& step, CutText* cut);
  static void Rewrite(const Step& step, CutText* cut);

  std::vector<Step> steps_;
};

}  // namespace rivulet
