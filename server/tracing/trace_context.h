// SPDX-License-Identifier: Apache-2.0
// The trace that a request is part of: the header traceparent of W3C Trace Context.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

// Metadata key.
inline constexpr char kTraceParentKey[] = "traceparent";

struct TraceContext {
  std::string trace_id;   // 32 lower-case hexadecimal digits, not all 0
  std::string parent_id;  // the caller's span: 16 such digits, not all 0
  bool sampled = false;   // the caller records its spans
};

// Parses a value of kTraceParentKey; nullopt if it is malformed, as the specification asks. Of
// later versions, only the part that version 00 defines is read. Thread: any.
std::optional<TraceContext> ParseTraceParent(absl::string_view value);

}  // namespace rivulet
