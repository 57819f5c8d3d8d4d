// SPDX-License-Identifier: Apache-2.0
// Text on its way from the source to tokens: every byte knows which bytes of the source it stands
// for, so that a token of normalized, prefixed and byte-mapped text has offsets in the source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace rivulet {

// Bytes [begin, end) of the source.
struct SourceSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
  friend bool operator==(const SourceSpan&, const SourceSpan&) = default;
};

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

// `text` is UTF-8. Bytes of one code point have one span: the code points of the source that it
// stands for, or, for one that was inserted, those of its neighbour.
// Thread: a value; no sharing.
class AlignedText {
 public:
  AlignedText() = default;
  // The source's bytes [begin, begin + text.size()).
  AlignedText(absl::string_view text, uint32_t begin);

  absl::string_view text() const { return text_; }
  absl::string_view text(TextRange range) const {
    return absl::string_view(text_).substr(range.begin, range.end - range.begin);
  }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

  // What the bytes of a range, which is not empty, stand for.
  SourceSpan Source(TextRange range) const {
    return {spans_[range.begin].begin, spans_[range.end - 1].end};
  }
  SourceSpan span(size_t byte) const { return spans_[byte]; }

  // Appends UTF-8 that stands for `span`; or a range of another text, as it is.
  void Append(absl::string_view text, SourceSpan span);
  void Append(const AlignedText& other, TextRange range);
  void Clear() {
    text_.clear();
    spans_.clear();
  }
  // Memory for a text of so many bytes.
  void Reserve(size_t bytes) {
    text_.reserve(bytes);
    spans_.reserve(bytes);
  }
  // What a text of so many bytes takes of a budget.
  static constexpr size_t BytesOf(size_t size) { return size * (1 + sizeof(SourceSpan)); }

 private:
  std::string text_;
  std::vector<SourceSpan> spans_;  // [text_.size()]
};

}  // namespace rivulet
