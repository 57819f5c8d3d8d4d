// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/sessions/replicated/session_store.h"

namespace rivulet {

// Whether a store can carry out `write`. INVALID_ARGUMENT, with the part and its value: an error of
// the caller, so every store checks this before anything else.
absl::Status CheckWrite(const StoreWrite& write);

// `duration` in whole milliseconds, rounded up; a hundred years at most, so that sums with today's
// milliseconds are exact in a double (Lua in Redis computes with doubles), and Redis accepts them.
int64_t StoreMilliseconds(absl::Duration duration);

}  // namespace rivulet
