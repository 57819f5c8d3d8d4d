// SPDX-License-Identifier: Apache-2.0
// The RWKV World vocabulary. A text is cut from its beginning, each time at the end of the longest
// token that the rest begins with.
//
// The file (rwkv_vocab_v20230424.txt) has a line for each token: its id, a space, the token as a
// Python literal ('text', "text" or b'bytes'), a space, its length in bytes. Id 0 has no line: it
// ends a text. The file is not part of this project.
// Cost: for each byte of a text, at most as many steps as the longest token has bytes.
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
// of 1 to kMaxVocabularyIds - 1, ids or tokens that stand twice, bad literals, other lengths,
// tokens of more than 256 bytes, a single byte that no token is (such a text could not be
// expressed).
absl::StatusOr<std::unique_ptr<TextTokenizer>> ParseWorldVocabulary(absl::string_view file);

// The same from the tokens by id, as GGUF files have them: each what stands in a Python literal of
// bytes (b'...') between its quotes; "" for an id without a token, and id 0 is not looked at.
// Errors: INVALID_ARGUMENT, reason INVALID_TOKENIZER, naming the token.
absl::StatusOr<std::unique_ptr<TextTokenizer>> CreateWorldTokenizer(
    const std::vector<std::string>& escaped);

}  // namespace rivulet
