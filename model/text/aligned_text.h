// SPDX-License-Identifier: Apache-2.0
// Text between the source and tokens: every byte maps to bytes of the source, so that a token of
// normalized, prefixed and byte-mapped text has offsets in the source.
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

// Text in UTF-8. All bytes of one code point map to one code point of the source: to itself, or, if
// it was inserted or composed, to a neighbour. Unchanged text takes no memory; changed text takes 5
// bytes per byte.
// Lifetime: the source must outlive it. Thread: a value; no sharing.
class AlignedText {
 public:
  AlignedText() = default;
  // The unchanged `part` of the source, which begins there at `begin`. Text made from it has spans
  // within it.
  AlignedText(absl::string_view part, uint32_t begin)
      : source_(part), source_begin_(begin), is_source_(true) {}

  absl::string_view text() const { return is_source_ ? source_ : absl::string_view(text_); }
  absl::string_view text(TextRange range) const {
    return text().substr(range.begin, range.end - range.begin);
  }
  size_t size() const { return text().size(); }
  bool empty() const { return text().empty(); }

  // The span of the source for a range, which is not empty.
  SourceSpan Source(TextRange range) const {
    return {span(range.begin).begin, span(range.end - 1).end};
  }
  SourceSpan span(size_t byte) const;

  // Becomes an empty text with the source of `other`; keeps its allocation.
  void BeginAs(const AlignedText& other);
  // Reserves memory for a text of `bytes` bytes.
  void Reserve(size_t bytes) {
    text_.reserve(bytes);
    begins_.reserve(bytes);
  }
  // Appends UTF-8 that maps to `span`, of one code point; or a range of another text with the same
  // source. REQUIRES: BeginAs.
  void Append(absl::string_view text, SourceSpan span);
  void Append(const AlignedText& other, TextRange range);

  // The bytes of a budget for this text, and for a changed text of `size` bytes.
  size_t budgeted() const { return is_source_ ? 0 : BytesOf(text_.size()); }
  static constexpr size_t BytesOf(size_t size) { return size * (1 + sizeof(uint32_t)); }

 private:
  absl::string_view source_;  // [source_begin_, source_begin_ + size) of the source
  uint32_t source_begin_ = 0;
  bool is_source_ = false;  // the text is source_, and what follows is empty
  std::string text_;
  std::vector<uint32_t> begins_;  // [text_.size()]: beginning of the code point in the source
};

}  // namespace rivulet
