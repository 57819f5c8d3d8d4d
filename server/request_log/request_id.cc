// SPDX-License-Identifier: Apache-2.0
#include "server/request_log/request_id.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "model/base/random_word.h"

namespace rivulet {
namespace {

bool IsIdByte(char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\' && c != ','; }

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view hex) { return hex.find_first_not_of('0') == hex.npos; }

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

absl::string_view TraceIdOf(absl::string_view traceparent) {
  // "00-" 32 digits "-" 16 digits "-" 2 digits. A later version may have more behind another "-".
  constexpr size_t kLength = 55;
  const absl::string_view none = "";
  if (traceparent.size() < kLength) return none;
  const absl::string_view version = traceparent.substr(0, 2), trace = traceparent.substr(3, 32),
                          parent = traceparent.substr(36, 16), flags = traceparent.substr(53, 2);
  for (const size_t dash : {size_t{2}, size_t{35}, size_t{52}}) {
    if (traceparent[dash] != '-') return none;
  }
  for (const absl::string_view digits : {version, trace, parent, flags}) {
    if (!IsLowerHex(digits)) return none;
  }
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return none;
  if (traceparent.size() > kLength && (version == "00" || traceparent[kLength] != '-')) return none;
  return trace;
}

}  // namespace rivulet
