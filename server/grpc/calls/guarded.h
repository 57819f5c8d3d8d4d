// SPDX-License-Identifier: Apache-2.0
// Turns an exception in the work for a call into the call's error. Without this, gRPC answers an
// exception of a handler with a bare UNIMPLEMENTED, and a call whose reaction throws never ends.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rivulet {

// REQUIRES: an exception is being handled. RESOURCE_EXHAUSTED, reason REQUEST_MEMORY, for
// std::bad_alloc and std::length_error; else INTERNAL, reason UNEXPECTED_EXCEPTION. Logs an event
// with the exception's text, which the client does not get. Thread: any.
absl::Status ErrorOfException();

// Returns what `work` returns, an absl::Status or an absl::StatusOr, or the error for its
// exception.
template <typename Work>
auto Guarded(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (...) {
    return ErrorOfException();
  }
}

}  // namespace rivulet
