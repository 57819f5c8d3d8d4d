// SPDX-License-Identifier: Apache-2.0
// Exceptions of the work for a call become its error. gRPC would answer a bare UNIMPLEMENTED for
// one that leaves a handler, and never end a call for one that leaves a reaction.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rivulet {

// REQUIRES: an exception is being handled. RESOURCE_EXHAUSTED, reason REQUEST_MEMORY, for
// std::bad_alloc and std::length_error; else INTERNAL, reason UNEXPECTED_EXCEPTION. Writes an event
// of the log, which has what the exception says; the client is not told that. Thread: any.
absl::Status ErrorOfException();

// What `work` returns, an absl::Status or an absl::StatusOr; its exceptions as errors.
template <typename Work>
auto Guarded(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (...) {
    return ErrorOfException();
  }
}

}  // namespace rivulet
