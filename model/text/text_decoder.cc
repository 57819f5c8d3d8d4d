// SPDX-License-Identifier: Apache-2.0
#include "model/text/text_decoder.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// `text` does not begin with UTF-8. The number of its first bytes that are the beginning of some
// code point; at least one. *complete: more text could not complete that code point.
size_t BrokenBytes(absl::string_view text, bool* complete) {
  const auto lead = static_cast<uint8_t>(text[0]);
  *complete = true;
  if (lead < 0xC2 || lead > 0xF4) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  // The second byte is limited to exclude overlong forms, surrogates and numbers beyond U+10FFFF.
  const uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  size_t count = 1;
  for (; count < length && count < text.size(); ++count) {
    const auto byte = static_cast<uint8_t>(text[count]);
    if (byte < (count == 1 ? least : 0x80) || byte > (count == 1 ? most : 0xBF)) return count;
  }
  *complete = false;
  return count;
}

}  // namespace

TextDecoder::TextDecoder(const TextTokenizer* tokenizer, const DecodeOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      drop_space_(options.at_start && tokenizer->adds_leading_space()) {}

void TextDecoder::Add(int32_t id, std::string* text) {
  if (options_.skip_special_tokens && tokenizer_->IsSpecial(id)) return;
  AddBytes(tokenizer_->TokenBytes(id), text);
}

void TextDecoder::AddBytes(absl::string_view bytes, std::string* text) {
  if (bytes.empty()) return;
  if (drop_space_) absl::ConsumePrefix(&bytes, " ");
  drop_space_ = false;
  const std::string all = absl::StrCat(held_, bytes);
  held_.clear();
  for (absl::string_view rest = all; !rest.empty();) {
    uint32_t code_point = 0;
    size_t length = DecodeUtf8(rest, &code_point);
    if (length > 0) {
      absl::StrAppend(text, rest.substr(0, length));
    } else {
      bool complete = false;
      length = BrokenBytes(rest, &complete);
      if (!complete) {
        held_ = std::string(rest);
        return;
      }
      absl::StrAppend(text, kReplacement);
    }
    rest.remove_prefix(length);
  }
}

void TextDecoder::Finish(std::string* text) {
  if (!held_.empty()) absl::StrAppend(text, kReplacement);
  held_.clear();
}

}  // namespace rivulet
