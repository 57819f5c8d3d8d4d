// SPDX-License-Identifier: Apache-2.0
// The table of error reasons: every reason that an error of server/ or model/ carries
// (model/base/error.h), with its code and a sentence for people. docs/api.md lists it;
// tests/lint/error_reasons_test.py writes that list, and checks that every literal reason of the
// code is in the table and no reason is unused.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// Where errors with a reason come from.
enum class ReasonScope : uint8_t {
  kCall,   // calls of clients and operators
  kStart,  // settings, model directories, backends: the start of a server. LoadModel has them too,
           // with FAILED_PRECONDITION in place of INVALID_ARGUMENT, NOT_FOUND and OUT_OF_RANGE
};

struct ErrorReason {
  absl::string_view name;  // UPPER_SNAKE_CASE
  absl::StatusCode code;
  ReasonScope scope;
  absl::string_view sentence;
};

// All reasons, in the order of their names. Thread: any.
std::span<const ErrorReason> ErrorReasons();

// Whether an error with this code may have this reason: a reason of the table with its code there
// (reasons of kStart have any code), or, for errors without their own reason, the name of the code.
// Thread: any.
bool IsErrorReason(absl::string_view name, absl::StatusCode code);

}  // namespace rivulet
