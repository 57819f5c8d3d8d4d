// SPDX-License-Identifier: Apache-2.0
// `added_tokens` of tokenizer.json: tokens that are found in text before anything is cut or merged.
//
// Of the tokens that begin leftmost, the longest is taken. One with `single_word` is taken only
// between characters that are no \w; with lstrip and rstrip it includes the white space beside it.
// Tokens with `normalized` are searched for, in their normalized form, in the text between the
// others after that has been normalized.
// Cost: at most kMaxAddedTokenBytes nodes of a trie per byte of text.
// Tested by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/json_reader.h"
#include "model/text/aligned_text.h"
#include "model/text/bpe.h"
#include "model/text/byte_trie.h"
#include "model/text/normalizer.h"
#include "model/text/text_budget.h"

namespace rivulet {

constexpr size_t kMaxAddedTokenBytes = 256;

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;  // control tokens: not looked for where parse_special_tokens is false
};

// A stretch of text: an added token, or, with id -1, text between them.
struct AddedSegment {
  TextRange range;
  int32_t id = -1;
};

// Thread: const calls from any thread.
class AddedTokens {
 public:
  // Of tokenizer.json. Errors: INVALID_TOKENIZER where an id is not below kMaxVocabularyIds, stands
  // twice or belongs to another token of `model`, where content is empty, too long or stands twice,
  // or is a token of `model` with another id.
  static absl::StatusOr<AddedTokens> Create(JsonReader* file, const BpeModel& model,
                                            const Normalizer& normalizer);

  // Does `action` with stretches of `text`, in order, none empty, which cover it, until one fails.
  // `normalized` says which tokens. Errors: those of `action`, and TextBudget::status().
  using SegmentAction = absl::FunctionRef<absl::Status(AddedSegment segment)>;
  absl::Status Split(absl::string_view text, bool normalized, bool parse_special_tokens,
                     TextBudget* budget, SegmentAction action) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  absl::Status Add(const JsonValue& value, absl::string_view path, const BpeModel& model,
                   const Normalizer& normalizer);

  std::vector<AddedToken> tokens_;  // in the order of the file
  ByteTrie raw_, normalized_;       // values: indices of tokens_
};

}  // namespace rivulet
