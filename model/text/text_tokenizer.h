// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back, for the vocabularies of language models: tokenizer.json (byte-pair
// encoding) and the RWKV World vocabulary.
//
// Units: offsets and lengths are bytes of UTF-8; ids are below kMaxVocabularyIds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/aligned_text.h"
#include "model/text/text_budget.h"

namespace rivulet {

struct JsonValue;

constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;  // of a tokenizer's file
constexpr size_t kMaxTextBytes = size_t{64} << 20;       // of one text

struct EncodeOptions {
  // The text begins at position 0 of a sequence. At later positions the file's post-processor adds
  // no tokens.
  bool at_start = true;
  bool add_special_tokens = true;    // false: no token is added at position 0 either
  bool parse_special_tokens = true;  // false: control tokens in the text are text
};

struct TextTokens {
  std::vector<int32_t> ids;
  // [ids.size()]: all code points of the text of which a token holds at least a part, so spans of
  // neighbours may overlap; empty at 0 for a token that the post-processor added.
  std::vector<SourceSpan> spans;
  // The number of tokens that the post-processor added at the beginning, and at the end.
  size_t added_before = 0, added_behind = 0;
};
constexpr size_t kBytesPerToken = sizeof(int32_t) + sizeof(SourceSpan);  // of TextTokens

// Thread: immutable, any thread.
class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;

  // The work stays within `budget`, whatever the text and the tokenizer's file. It takes the bytes
  // of the tokens from the budget and does not return them.
  // Errors: INVALID_ARGUMENT, field "text": INVALID_UTF8 with the byte; TEXT_TOO_LONG;
  // TEXT_NOT_IN_VOCABULARY with code point and byte; the errors of TextBudget::status().
  virtual absl::StatusOr<TextTokens> Encode(absl::string_view text, const EncodeOptions& options,
                                            TextBudget* budget) const = 0;
  // Encode with the budget for a text of this size and without a callback.
  absl::StatusOr<TextTokens> Encode(absl::string_view text, const EncodeOptions& options) const {
    TextBudget budget(text.size());
    return Encode(text, options, &budget);
  }

  // The bytes that a token adds to the text: a code point may be spread over several tokens. "" for
  // an id that the vocabulary does not have.
  virtual absl::string_view TokenBytes(int32_t id) const = 0;

  // Whether it is a control token, such as the end of a text.
  virtual bool IsSpecial(int32_t id) const = 0;

  // Whether the text of a whole sequence begins with a space that is not part of the user's text.
  virtual bool adds_leading_space() const = 0;

  // One above the largest id.
  virtual int size() const = 0;
};

// The errors of Encode that do not depend on the vocabulary: TEXT_TOO_LONG, INVALID_UTF8.
absl::Status CheckText(absl::string_view text);

// The tokenizer that the text of a tokenizer.json describes. Errors: INVALID_ARGUMENT; reasons
// INVALID_JSON, INVALID_TOKENIZER (the file contradicts itself) and UNSUPPORTED_TOKENIZER (asks for
// an operation that is not implemented); the field is the member's path. `ignored`, if not null,
// gets the members that are not applied to a prompt; transformers does not apply them either.
absl::StatusOr<std::unique_ptr<TextTokenizer>> ParseTokenizerJson(
    absl::string_view json, std::vector<std::string>* ignored = nullptr);
// ParseTokenizerJson for the parsed value of the file. REQUIRES, as ParseStrictJson ensures: texts
// are UTF-8, and no object has a key twice.
absl::StatusOr<std::unique_ptr<TextTokenizer>> CreateJsonTokenizer(
    const JsonValue& root, std::vector<std::string>* ignored = nullptr);

}  // namespace rivulet
