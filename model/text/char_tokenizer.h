// SPDX-License-Identifier: Apache-2.0
// The tokenizer of Rivulet's own format (model/FORMAT.md): a token is a code point of an alphabet.
// Tested by: tests/unit/model/text/char_tokenizer_test.cc
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

// `alphabet`: UTF-8, every code point once; the id of a code point is its index. No token is added
// to a text, and none is a control token. For another code point Encode returns
// TEXT_NOT_IN_ALPHABET with code point and byte. Errors of this function: INVALID_ARGUMENT, reasons
// INVALID_UTF8 and INVALID_ALPHABET (duplicate, empty).
absl::StatusOr<std::unique_ptr<TextTokenizer>> CreateCharTokenizer(absl::string_view alphabet);

}  // namespace rivulet
