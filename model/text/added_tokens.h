// SPDX-License-Identifier: Apache-2.0
// `added_tokens` of tokenizer.json: tokens that are found in text before it is cut and merged.
//
// Of the tokens that begin leftmost, the longest is taken. A token with `single_word` is taken only
// between characters that are not \w; with lstrip and rstrip it includes the white space beside it.
// Tokens with `normalized` are searched in their normalized form, in the normalized text between
// the other tokens.
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
  bool special = false;  // control token: not searched if parse_special_tokens is false
};

// A stretch of text: an added token, or, with id -1, text between added tokens.
struct AddedSegment {
  TextRange range;
  int32_t id = -1;
};

// Thread: const calls from any thread.
class AddedTokens {
 public:
  // From tokenizer.json. Errors: INVALID_TOKENIZER if an id is not below kMaxVocabularyIds, appears
  // twice or belongs to another token of `model`, or if content is empty, too long, appears twice,
  // or is a token of `model` with another id.
  static absl::StatusOr<AddedTokens> Create(JsonReader* file, const BpeModel& model,
                                            const Normalizer& normalizer);

  // Calls `action` with stretches of `text`, in order, none empty, which cover the text, until a
  // call fails. `normalized`: which tokens to search. Errors: the errors of `action`, and
  // TextBudget::status().
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
