// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "server/sessions/shared/session_store.h"

namespace rivulet {

// Whether a store can carry out `write`. INVALID_ARGUMENT, with the part and what it holds: an
// error of the caller, so every store answers with it before anything else.
absl::Status CheckWrite(const StoreWrite& write);

}  // namespace rivulet
