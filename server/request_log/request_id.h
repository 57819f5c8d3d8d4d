// SPDX-License-Identifier: Apache-2.0
// Ids of requests, and the id of the trace that a request is part of.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

// Metadata key of a request's id, both ways, as proxies have it.
inline constexpr char kRequestIdKey[] = "x-request-id";
// Metadata key of W3C Trace Context.
inline constexpr char kTraceParentKey[] = "traceparent";

inline constexpr size_t kMaxRequestIdBytes = 128;

// Whether a client's text can be the id of its request: 1 to kMaxRequestIdBytes visible characters
// of ASCII, but no quote, backslash or comma: a line of the log holds the id as it is, and a comma
// is what proxies put between two ids. Thread: any.
bool IsRequestId(absl::string_view text);

// A new one: a random UUID, as "9f6c1a52-3c1e-4d55-8f0a-0d5b5c1f7e21". Thread: any.
std::string NewRequestId();

// The trace id in a value of `traceparent`, 32 lower-case hexadecimal digits; "" where the value is
// malformed, which W3C Trace Context (level 1, section 3.2) says to treat as absent. Thread: any.
absl::string_view TraceIdOf(absl::string_view traceparent);

}  // namespace rivulet
