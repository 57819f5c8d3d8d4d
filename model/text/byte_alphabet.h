// SPDX-License-Identifier: Apache-2.0
// The 256 printable code points that byte-level vocabularies use for bytes: a printable byte of
// Latin-1 stands for itself, other bytes are U+0100, U+0101, ... in order. Source: the GPT-2
// tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

// UTF-8 of the code point of each byte.
const std::array<std::string, 256>& ByteAlphabet();

// Fills *bytes with the bytes for which `text` stands. False if it has a code point outside the
// alphabet.
bool BytesOfAlphabet(absl::string_view text, std::string* bytes);

}  // namespace rivulet
