// SPDX-License-Identifier: Apache-2.0
// Ids of requests.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

// Metadata key of a request's id, in requests and replies; proxies use the same key.
inline constexpr char kRequestIdKey[] = "x-request-id";

inline constexpr size_t kMaxRequestIdBytes = 128;

// Whether a client's text can be the id of its request: 1 to kMaxRequestIdBytes visible characters
// of ASCII without quotes, backslashes and commas. A line of the log holds the id unchanged, and
// proxies put a comma between two ids. Thread: any.
bool IsRequestId(absl::string_view text);

// A new id: a random UUID, for example "9f6c1a52-3c1e-4d55-8f0a-0d5b5c1f7e21". Thread: any.
std::string NewRequestId();

}  // namespace rivulet
