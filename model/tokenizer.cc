// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// Reads the code point that begins at text[0]. Returns its length in bytes, 0 for bytes that are
// not UTF-8: cut short, longer than needed, a surrogate, or beyond U+10FFFF.
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
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kLeast[length] || value > 0x10FFFF || surrogate) return 0;
  *code_point = value;
  return length;
}

absl::Status BadUtf8(size_t offset) {
  return InvalidField("INVALID_UTF8", "text",
                      absl::StrCat("the text is not valid UTF-8 at byte ", offset));
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(text, &code_point);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

absl::StatusOr<Tokenizer> Tokenizer::CreateChar(absl::string_view alphabet) {
  Tokenizer tokenizer;
  for (size_t offset = 0; offset < alphabet.size();) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(alphabet.substr(offset), &code_point);
    if (length == 0) return BadUtf8(offset);
    const auto id = static_cast<int32_t>(tokenizer.pieces_.size());
    const auto [place, is_new] = tokenizer.ids_.emplace(code_point, id);
    if (!is_new) {
      return InvalidField(
          "INVALID_ALPHABET", "alphabet",
          absl::StrFormat("U+%04X is both token %d and token %d", code_point, place->second, id));
    }
    tokenizer.pieces_.emplace_back(alphabet.substr(offset, length));
    offset += length;
  }
  if (tokenizer.pieces_.empty()) {
    return InvalidField("INVALID_ALPHABET", "alphabet", "the alphabet is empty");
  }
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(text.substr(offset), &code_point);
    if (length == 0) return BadUtf8(offset);
    const auto found = ids_.find(code_point);
    if (found == ids_.end()) {
      return InvalidField(
          "TEXT_NOT_IN_ALPHABET", "text",
          absl::StrFormat("the text holds U+%04X at byte %d, which is not among the %d characters "
                          "of the model's alphabet",
                          code_point, offset, size()));
    }
    ids.push_back(found->second);
    offset += length;
  }
  return ids;
}

absl::string_view Tokenizer::Decode(int32_t id) const {
  if (id < 0 || id >= size()) return "";
  return pieces_[static_cast<size_t>(id)];
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) absl::StrAppend(&text, Decode(id));
  return text;
}

}  // namespace rivulet
