// SPDX-License-Identifier: Apache-2.0
// `post_processor` of tokenizer.json: adds tokens before and behind a text (TemplateProcessing),
// and removes the space beside a word from offsets (ByteLevel with trim_offsets); Sequence of
// these.
// Tested by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

// Thread: const calls from any thread.
class PostProcessor {
 public:
  // From `value`, which may be null. Errors: INVALID_TOKENIZER, UNSUPPORTED_TOKENIZER.
  static absl::StatusOr<PostProcessor> Create(const JsonValue* value, absl::string_view path);

  // Changes the tokens of `text`. `token_text`: a token's spelling in the vocabulary; for an added
  // token its text. Errors: TextBudget::status().
  using TokenText = std::function<absl::string_view(int32_t id, SourceSpan span)>;
  absl::Status Apply(absl::string_view text, bool add_tokens, const TokenText& token_text,
                     TextBudget* budget, TextTokens* tokens) const;

  // The largest id that it adds, -1 if it adds none.
  int32_t largest_id() const;

 private:
  struct Step {
    bool trims = false;                   // else a template
    bool add_prefix_space = false;        // of the pre-tokenizer, if `trims`
    std::vector<int32_t> before, behind;  // ids of a template
  };
  absl::Status Add(const JsonValue& value, absl::string_view path);
  absl::Status AddTemplate(const JsonValue& value, absl::string_view path);

  std::vector<Step> steps_;
};

}  // namespace rivulet
