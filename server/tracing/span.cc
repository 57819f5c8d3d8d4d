// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/span.h"

#include "absl/strings/str_format.h"
#include "model/base/random_word.h"

namespace rivulet {
namespace {

// An id of zeros means "no id".
uint64_t NonZeroWord() {
  uint64_t word = 0;
  while (word == 0) word = RandomWord();
  return word;
}

}  // namespace

std::string NewTraceId() { return absl::StrFormat("%016x%016x", RandomWord(), NonZeroWord()); }

std::string NewSpanId() { return absl::StrFormat("%016x", NonZeroWord()); }

}  // namespace rivulet
