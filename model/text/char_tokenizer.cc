// SPDX-License-Identifier: Apache-2.0
#include "model/text/char_tokenizer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

class CharTokenizer final : public TextTokenizer {
 public:
  // False: the code point is already there, with the id *other.
  bool Add(uint32_t code_point, absl::string_view bytes, int32_t* other) {
    const auto [place, is_new] = ids_.emplace(code_point, size());
    *other = place->second;
    if (is_new) pieces_.emplace_back(bytes);
    return is_new;
  }

  absl::StatusOr<TextTokens> Encode(absl::string_view text, const EncodeOptions& options,
                                    TextBudget* budget) const override;
  absl::string_view TokenBytes(int32_t id) const override {
    return id >= 0 && id < size() ? absl::string_view(pieces_[static_cast<size_t>(id)]) : "";
  }
  bool IsSpecial(int32_t) const override { return false; }
  bool adds_leading_space() const override { return false; }
  int size() const override { return static_cast<int>(pieces_.size()); }

 private:
  std::vector<std::string> pieces_;             // [size()] UTF-8
  absl::flat_hash_map<uint32_t, int32_t> ids_;  // of code points
};

absl::StatusOr<TextTokens> CharTokenizer::Encode(absl::string_view text, const EncodeOptions&,
                                                 TextBudget* budget) const {
  RIVULET_RETURN_IF_ERROR(CheckText(text));
  TextTokens tokens;
  if (!budget->Take(text.size() * kBytesPerToken)) return budget->status();
  tokens.ids.reserve(text.size());
  tokens.spans.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    if (!budget->Step(1)) return budget->status();
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(text.substr(at), &code_point);
    const auto found = ids_.find(code_point);
    if (found == ids_.end()) {
      return InvalidField(
          "TEXT_NOT_IN_ALPHABET", "text",
          absl::StrFormat("the text holds U+%04X at byte %d, which is not among the %d characters "
                          "of the model's alphabet",
                          code_point, at, size()));
    }
    tokens.ids.push_back(found->second);
    tokens.spans.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + length)});
    at += length;
  }
  return tokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextTokenizer>> CreateCharTokenizer(absl::string_view alphabet) {
  RIVULET_RETURN_IF_ERROR(CheckText(alphabet));
  auto tokenizer = std::make_unique<CharTokenizer>();
  for (size_t at = 0; at < alphabet.size();) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(alphabet.substr(at), &code_point);
    int32_t other = 0;
    if (!tokenizer->Add(code_point, alphabet.substr(at, length), &other)) {
      return InvalidField("INVALID_ALPHABET", "alphabet",
                          absl::StrFormat("U+%04X is both token %d and token %d", code_point, other,
                                          tokenizer->size()));
    }
    at += length;
  }
  if (tokenizer->size() == 0) {
    return InvalidField("INVALID_ALPHABET", "alphabet", "the alphabet is empty");
  }
  return std::unique_ptr<TextTokenizer>(std::move(tokenizer));
}

}  // namespace rivulet
