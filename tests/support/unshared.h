// SPDX-License-Identifier: Apache-2.0
// Unshared: for tests that hand an error from one thread to another.
#pragma once

#include "absl/status/status.h"
#include "model/base/error.h"

namespace rivulet {

// A copy that shares no memory with `status`. Copies count their references inside Abseil, where
// ThreadSanitizer does not see that this orders their ends.
inline absl::Status Unshared(const absl::Status& status) {
  return MakeError(status.code(), status.message(), GetErrorDetail(status));
}

}  // namespace rivulet
