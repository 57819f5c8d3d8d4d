// SPDX-License-Identifier: Apache-2.0
#include "model/base/utf8.h"

namespace rivulet {

size_t DecodeUtf8(absl::string_view text, uint32_t* code_point) {
  const auto byte = [&text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    *code_point = first;
    return 1;
  }
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  uint32_t value = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (!IsUtf8Tail(text[i])) return 0;
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kLeast[length] || value > 0x10FFFF || surrogate) return 0;
  *code_point = value;
  return length;
}

void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto byte = [text](uint32_t value) { text->push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    byte(code_point);
    return;
  }
  const int tail = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  constexpr uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  byte(kLead[tail] | code_point >> (6 * tail));
  for (int i = tail - 1; i >= 0; --i) byte(0x80 | (code_point >> (6 * i) & 0x3F));
}

size_t ValidUtf8Bytes(absl::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(text.substr(offset), &code_point);
    if (length == 0) break;
    offset += length;
  }
  return offset;
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace rivulet
