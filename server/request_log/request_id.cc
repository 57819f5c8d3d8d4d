// SPDX-License-Identifier: Apache-2.0
#include "server/request_log/request_id.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "model/base/random_word.h"

namespace rivulet {
namespace {

bool IsIdByte(char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\' && c != ','; }

}  // namespace

bool IsRequestId(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxRequestIdBytes &&
         std::all_of(text.begin(), text.end(), IsIdByte);
}

std::string NewRequestId() {
  // Version 4 and variant 1 of RFC 9562, and 122 random bits.
  const uint64_t high = (RandomWord() & ~uint64_t{0xf000}) | 0x4000;
  const uint64_t low = (RandomWord() & ~(uint64_t{3} << 62)) | (uint64_t{1} << 63);
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                         high & 0xffff, low >> 48, low & 0xffffffffffff);
}

}  // namespace rivulet
