// SPDX-License-Identifier: Apache-2.0
// Unshared: for tests that hand an error from one thread to another.
#pragma once

#include "absl/status/status.h"
#include "model/base/error.h"

namespace rivulet {

// A copy that shares no memory with `status`. Copies share a reference count inside Abseil, and
// ThreadSanitizer does not see that it orders their destruction.
inline absl::Status Unshared(const absl::Status& status) {
  return MakeError(status.code(), status.message(), GetErrorDetail(status));
}

}  // namespace rivulet
