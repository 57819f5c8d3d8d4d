// SPDX-License-Identifier: Apache-2.0
// The RWKV World vocabulary. A text is cut from its beginning: each token is the longest one that
// the rest of the text begins with.
//
// The file (rwkv_vocab_v20230424.txt) has a line for each token: its id, a space, the token as a
// Python literal ('text', "text" or b'bytes'), a space, its length in bytes. Id 0 has no line: it
// ends a text. The file is not part of this project.
// Cost: for each byte of a text at most n steps, with n the bytes of the longest token.
// Tested by: tests/unit/model/text/world_vocabulary_test.cc
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

// The tokenizer that the text of such a file describes. No token is added to a text, and no text is
// a control token. Errors: INVALID_ARGUMENT, reason INVALID_TOKENIZER, naming the line: ids outside
// of 1 to kMaxVocabularyIds - 1, ids or tokens that appear twice, bad literals, wrong lengths,
// tokens of more than 256 bytes, a single byte without a token (a text with that byte could not be
// expressed).
absl::StatusOr<std::unique_ptr<TextTokenizer>> ParseWorldVocabulary(absl::string_view file);

// The tokenizer from a list of tokens by id, as in GGUF files: each the text between the quotes of
// a Python literal of bytes (b'...'); "" for an id without a token; id 0 is ignored. Errors:
// INVALID_ARGUMENT, reason INVALID_TOKENIZER, naming the token.
absl::StatusOr<std::unique_ptr<TextTokenizer>> CreateWorldTokenizer(
    const std::vector<std::string>& escaped);

}  // namespace rivulet
