// SPDX-License-Identifier: Apache-2.0
// Code points in UTF-8. Sequences that are cut short or longer than needed, surrogates, and code
// points beyond U+10FFFF are not UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

// Reads the code point that begins at text[0]. Returns its length in bytes (1 to 4), or 0 for bytes
// that are not UTF-8. REQUIRES: `text` is not empty.
size_t DecodeUtf8(absl::string_view text, uint32_t* code_point);

// Appends the UTF-8 of `code_point`. REQUIRES: a Unicode scalar value.
void AppendUtf8(uint32_t code_point, std::string* text);

// Offset of the first byte that is not UTF-8, text.size() if there is none.
size_t ValidUtf8Bytes(absl::string_view text);

inline bool IsUtf8(absl::string_view text) { return ValidUtf8Bytes(text) == text.size(); }

// Whether `byte` is not the first of its code point.
inline bool IsUtf8Tail(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// White_Space of Unicode.
bool IsWhiteSpace(uint32_t c);

}  // namespace rivulet
