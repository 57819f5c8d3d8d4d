// SPDX-License-Identifier: Apache-2.0
// `normalizer` of tokenizer.json: NFC, Prepend, Replace of a string, Sequence.
//
// NFC comes from utf8proc (Unicode 15; a library of 350 KB without data files, where ICU brings
// 30 MB): decomposition of a code point, combining classes, composition of a pair. The loop over
// the text is ours, because offsets depend on which code points became which.
// Tested by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py,
// tests/conformance/libraries/vocabularies_test.py
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"
#include "model/text/aligned_text.h"
#include "model/text/text_budget.h"

namespace rivulet {

// Thread: const calls from any thread.
class Normalizer {
 public:
  // From `value`, which may be null. Errors: INVALID_TOKENIZER, UNSUPPORTED_TOKENIZER.
  static absl::StatusOr<Normalizer> Create(const JsonValue* value, absl::string_view path);

  // Cost: linear in the text and its forms after each step, except for n log n in a run of
  // combining marks. Returns the bytes of `text` to the budget, and takes the bytes of the result.
  // Errors: TextBudget::status().
  absl::StatusOr<AlignedText> Apply(AlignedText text, TextBudget* budget) const;

 private:
  struct Step {
    enum class Kind { kNfc, kPrepend, kReplace };
    Kind kind = Kind::kNfc;
    std::string content;
    std::string pattern;  // kReplace: the string that `content` replaces
  };
  static absl::Status AddSteps(const JsonValue& value, absl::string_view path,
                               std::vector<Step>* steps);

  std::vector<Step> steps_;
};

// These return the bytes of their argument to the budget, and take the bytes of the result. Errors:
// TextBudget::status().
//
// Canonical composition (NFC) as `tokenizers` does it: marks that Unicode got after version 9 are
// starters. A composed code point maps to its first component.
absl::StatusOr<AlignedText> ComposeCanonically(AlignedText text, TextBudget* budget);
// Puts `content` before the text, unless the text is empty; maps to the text's first code point.
absl::StatusOr<AlignedText> PrependText(absl::string_view content, AlignedText text,
                                        TextBudget* budget);
// Replaces every `pattern` by `content`, which maps to the last code point replaced.
absl::StatusOr<AlignedText> ReplaceText(absl::string_view pattern, absl::string_view content,
                                        AlignedText text, TextBudget* budget);

}  // namespace rivulet
