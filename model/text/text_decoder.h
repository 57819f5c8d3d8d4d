// SPDX-License-Identifier: Apache-2.0
// Decodes generated tokens to text, one at a time. A code point may be spread over tokens: its
// bytes are held back until it is complete. Only text is held back: callers send token ids at once.
// Tested by: tests/unit/model/text/text_decoder_test.cc
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

struct DecodeOptions {
  // The first token is at position 0 of a sequence: the space that the vocabulary puts before a
  // text is removed.
  bool at_start = false;
  bool skip_special_tokens = false;  // control tokens have no text
};

// Thread: one at a time. Lifetime: the tokenizer must outlive it.
class TextDecoder {
 public:
  TextDecoder(const TextTokenizer* tokenizer, const DecodeOptions& options);

  // Appends the text that the token completes: UTF-8, possibly "". Bytes that can no longer become
  // UTF-8 are replaced by U+FFFD, one for each longest beginning of a code point among them, as
  // Unicode recommends. At most 3 bytes are held back.
  void Add(int32_t id, std::string* text);
  // Add for the bytes of a token, whether it is a control token or not.
  void AddBytes(absl::string_view bytes, std::string* text);

  // At the end of the reply: held-back bytes become one U+FFFD. Then a new reply may begin.
  void Finish(std::string* text);

 private:
  const TextTokenizer* tokenizer_;
  DecodeOptions options_;
  bool drop_space_;   // the next byte, if it is a space
  std::string held_;  // the beginning of a code point
};

}  // namespace rivulet
