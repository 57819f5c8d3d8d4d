// SPDX-License-Identifier: Apache-2.0
// ReasoningCounter: counts the tokens of a sample that are reasoning, between two texts.
// Tested by: tests/unit/server/engine/sequences/reasoning_counter_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "server/engine/sequences/stop_matcher.h"

namespace rivulet {

// One sample. Work is proportional to the text, memory constant. Thread: one.
class ReasoningCounter {
 public:
  // `begin` "": the sample begins within the reasoning. REQUIRES: `end` holds one string; both live
  // as long as the counter.
  ReasoningCounter(absl::string_view begin, const StopStrings* end) : begin_(begin), end_(end) {
    while (!begin_.empty() && IsSpace(begin_.front())) begin_.remove_prefix(1);  // as in the sample
    begun_ = begin_.empty();
  }

  // Adds the bytes of the sample's next token, a control token's name included.
  void Add(absl::string_view bytes) {
    if (ended_) return;
    ++tokens_;
    for (const char byte : bytes) {
      if (begun_) {
        matched_ = end_->Advance(0, matched_, byte);
        ended_ = matched_ == (*end_)[0].size();
      } else if (matched_ > 0 || !IsSpace(byte)) {
        ended_ = byte != begin_[matched_++];
        begun_ = !ended_ && matched_ == begin_.size();
        if (begun_) matched_ = 0;
      }
      if (ended_) return;
    }
  }

  // From the first token to the one that completes `end`, or to the last; 0 if the sample's text
  // does not begin with `begin`, white space aside.
  int64_t tokens() const { return begun_ ? tokens_ : 0; }

 private:
  static bool IsSpace(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
  }

  absl::string_view begin_;
  const StopStrings* end_;
  bool begun_ = false, ended_ = false;  // ended without begun: there is no reasoning
  size_t matched_ = 0;                  // bytes of begin_, then of end_
  int64_t tokens_ = 0;
};

}  // namespace rivulet
