// SPDX-License-Identifier: Apache-2.0
// StopMatcher: finds stop strings in a sample's text as its tokens arrive, and says which tokens
// must be held back because a stop string may begin in their text.
//
// A sample ends at the first token with which its text contains a stop string. If that token
// completes several stop strings, the earliest to begin counts, and among equal beginnings the
// longest. One KMP automaton per string: the work is proportional to text times strings for any
// text, and the longest matched prefix is exactly what must be held back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rivulet {

// The stop strings of one request, compiled. Thread: immutable, any thread.
class StopStrings {
 public:
  // REQUIRES: no string is empty or longer than 65535 bytes.
  explicit StopStrings(std::vector<std::string> strings);

  bool empty() const { return strings_.empty(); }
  size_t size() const { return strings_.size(); }
  const std::string& operator[](size_t i) const { return strings_[i]; }

  // Bytes of string `i` matched after `byte`, if `matched` bytes were matched before. REQUIRES:
  // matched < length of string i.
  size_t Advance(size_t i, size_t matched, char byte) const;

 private:
  std::vector<std::string> strings_;
  std::vector<std::vector<uint16_t>>
      fallback_;  // [string][n]: longest proper border of its first n bytes
};

// One sample's text. Thread: one.
class StopMatcher {
 public:
  explicit StopMatcher(const StopStrings* strings);

  struct Result {
    int release = 0;  // held tokens, oldest first, whose text is in no stop string
    int match = -1;   // the stop string that the text now contains; the tokens still held spell it
    int64_t begin = 0, end = 0;  // of the match, in bytes of the text of the tokens still held
  };
  // Adds a token with this text (which may be empty). REQUIRES: no match so far.
  Result Push(absl::string_view text);

  // Tokens not released so far.
  int held() const { return static_cast<int>(ends_.size()); }

 private:
  int ReleaseUpTo(int64_t offset);

  const StopStrings* strings_;
  std::vector<size_t> matched_;  // [string] bytes
  std::vector<int64_t> ends_;  // per held token: where its text ends, in bytes of the sample's text
  int64_t length_ = 0;         // bytes of the sample's text
  int64_t released_ = 0;       // ... of the tokens that were released
};

}  // namespace rivulet
