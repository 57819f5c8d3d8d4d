// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace rivulet {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& s : strings_) {
    std::vector<uint16_t> fallback(s.size() + 1, 0);
    size_t border = 0;
    for (size_t n = 1; n < s.size(); ++n) {
      while (border > 0 && s[n] != s[border]) border = fallback[border];
      if (s[n] == s[border]) ++border;
      fallback[n + 1] = static_cast<uint16_t>(border);
    }
    fallback_.push_back(std::move(fallback));
  }
}

size_t StopStrings::Advance(size_t i, size_t matched, char byte) const {
  const std::string& s = strings_[i];
  while (matched > 0 && s[matched] != byte) matched = fallback_[i][matched];
  return s[matched] == byte ? matched + 1 : 0;
}

StopMatcher::StopMatcher(const StopStrings* strings)
    : strings_(strings), matched_(strings->size(), 0) {}

StopMatcher::Result StopMatcher::Push(absl::string_view text) {
  Result result;
  size_t hold = 0;
  for (size_t i = 0; i < strings_->size(); ++i) {
    const size_t size = (*strings_)[i].size();
    size_t matched = matched_[i];
    for (size_t at = 0; at < text.size(); ++at) {
      matched = strings_->Advance(i, matched, text[at]);
      if (matched < size) continue;
      // The first occurrence of a string is also its earliest.
      const int64_t end = length_ + static_cast<int64_t>(at + 1);
      const int64_t begin = end - static_cast<int64_t>(size);
      const bool better =
          result.match < 0 || begin < result.begin || (begin == result.begin && end > result.end);
      if (better) {
        result.match = static_cast<int>(i);
        result.begin = begin;
        result.end = end;
      }
      break;
    }
    matched_[i] = matched;
    hold = std::max(hold, matched);
  }
  length_ += static_cast<int64_t>(text.size());
  ends_.push_back(length_);
  result.release =
      ReleaseUpTo(result.match >= 0 ? result.begin : length_ - static_cast<int64_t>(hold));
  result.begin -= released_;
  result.end -= released_;
  return result;
}

int StopMatcher::ReleaseUpTo(int64_t offset) {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), offset);
  const int count = static_cast<int>(end - ends_.begin());
  if (count > 0) released_ = *(end - 1);
  ends_.erase(ends_.begin(), end);
  return count;
}

}  // namespace rivulet
