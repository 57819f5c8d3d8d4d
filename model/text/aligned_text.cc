// SPDX-License-Identifier: Apache-2.0
#include "model/text/aligned_text.h"

#include "model/base/utf8.h"

namespace rivulet {
namespace {

constexpr uint32_t kNone = UINT32_MAX;  // no code point of the source

}  // namespace

SourceSpan AlignedText::span(size_t byte) const {
  size_t begin = byte;
  if (is_source_) {
    while (IsUtf8Tail(source_[begin])) --begin;
  } else {
    if (begins_[byte] == kNone) return {};
    begin = begins_[byte] - source_begin_;
  }
  size_t end = begin + 1;
  while (end < source_.size() && IsUtf8Tail(source_[end])) ++end;
  return {source_begin_ + static_cast<uint32_t>(begin), source_begin_ + static_cast<uint32_t>(end)};
}

void AlignedText::BeginAs(const AlignedText& other) {
  source_ = other.source_;
  source_begin_ = other.source_begin_;
  is_source_ = false;
  text_.clear();
  begins_.clear();
}

void AlignedText::Append(absl::string_view text, SourceSpan span) {
  text_.append(text.data(), text.size());
  begins_.insert(begins_.end(), text.size(), span.begin < span.end ? span.begin : kNone);
}

void AlignedText::Append(const AlignedText& other, TextRange range) {
  const absl::string_view text = other.text(range);
  text_.append(text.data(), text.size());
  if (other.is_source_) {
    for (size_t at = range.begin; at < range.end; ++at) {
      begins_.push_back(IsUtf8Tail(other.source_[at]) && at > range.begin
                            ? begins_.back()
                            : source_begin_ + static_cast<uint32_t>(at));
    }
    return;
  }
  const auto first = other.begins_.begin();
  begins_.insert(begins_.end(), first + static_cast<ptrdiff_t>(range.begin),
                 first + static_cast<ptrdiff_t>(range.end));
}

}  // namespace rivulet
