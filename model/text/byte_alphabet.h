// SPDX-License-Identifier: Apache-2.0
// The 256 printable code points that byte-level vocabularies write bytes as: printable bytes of
// Latin-1 are themselves, the others U+0100 on in their order. Source: the GPT-2 tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

// UTF-8 of the code point of each byte.
const std::array<std::string, 256>& ByteAlphabet();

// The bytes that `text`, all of whose code points are of the alphabet, stands for; else false.
bool BytesOfAlphabet(absl::string_view text, std::string* bytes);

}  // namespace rivulet
