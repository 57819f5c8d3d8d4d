// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

absl::Status BadUtf8(size_t offset) {
  return InvalidField("INVALID_UTF8", "text",
                      absl::StrCat("the text is not valid UTF-8 at byte ", offset));
}

}  // namespace

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
