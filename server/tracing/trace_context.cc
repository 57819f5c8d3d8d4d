// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/trace_context.h"

#include <algorithm>

namespace rivulet {
namespace {

// version "-" trace id "-" parent id "-" flags
constexpr size_t kTraceAt = 3, kParentAt = 36, kFlagsAt = 53, kLength = 55;

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view hex) { return hex.find_first_not_of('0') == hex.npos; }

// Whether the lowest bit of the hexadecimal digit is set.
bool IsOdd(char digit) { return (digit <= '9' ? digit - '0' : digit - 'a' + 10) % 2 == 1; }

}  // namespace

std::optional<TraceContext> ParseTraceParent(absl::string_view value) {
  if (value.size() < kLength) return std::nullopt;
  const absl::string_view version = value.substr(0, 2),
                          trace = value.substr(kTraceAt, kParentAt - 1 - kTraceAt),
                          parent = value.substr(kParentAt, kFlagsAt - 1 - kParentAt),
                          flags = value.substr(kFlagsAt, kLength - kFlagsAt);
  for (const size_t field : {kTraceAt, kParentAt, kFlagsAt}) {
    if (value[field - 1] != '-') return std::nullopt;
  }
  for (const absl::string_view digits : {version, trace, parent, flags}) {
    if (!IsLowerHex(digits)) return std::nullopt;
  }
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return std::nullopt;
  // Later versions may have more, behind another dash.
  if (value.size() > kLength && (version == "00" || value[kLength] != '-')) return std::nullopt;
  return TraceContext{std::string(trace), std::string(parent), IsOdd(flags.back())};
}

}  // namespace rivulet
