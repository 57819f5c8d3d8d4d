// SPDX-License-Identifier: Apache-2.0
#include "model/text/aligned_text.h"

#include "model/base/utf8.h"

namespace rivulet {

AlignedText::AlignedText(absl::string_view text, uint32_t begin) : text_(text) {
  spans_.reserve(text.size());
  while (!text.empty()) {
    uint32_t code_point = 0;
    const auto length = static_cast<uint32_t>(DecodeUtf8(text, &code_point));
    spans_.insert(spans_.end(), length, {begin, begin + length});
    begin += length;
    text.remove_prefix(length);
  }
}

void AlignedText::Append(absl::string_view text, SourceSpan span) {
  text_.append(text.data(), text.size());
  spans_.insert(spans_.end(), text.size(), span);
}

void AlignedText::Append(const AlignedText& other, TextRange range) {
  text_.append(other.text_, range.begin, range.end - range.begin);
  const auto first = other.spans_.begin();
  spans_.insert(spans_.end(), first + static_cast<ptrdiff_t>(range.begin),
                first + static_cast<ptrdiff_t>(range.end));
}

}  // namespace rivulet
