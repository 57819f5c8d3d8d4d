// SPDX-License-Identifier: Apache-2.0
// Errors with details. A Status of ours carries, beside code and message, a machine-readable reason
// and the name of the wrong field; server/grpc/wire/status_map.cc turns them into
// google.rpc.ErrorInfo and BadRequest, and nothing else in the project maps errors.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rivulet {

// The details of a Status. Empty strings: no detail.
struct ErrorDetail {
  std::string
      reason;  // UPPER_SNAKE_CASE, stable: clients switch on it, for example "TOKEN_OUT_OF_RANGE"
  std::string field;  // path of the offending field, for example "sampling.temperature" or
                      // "prompt.tokens[3]"
  absl::Duration retry_after = absl::ZeroDuration();  // > 0: after this time a retry makes sense
  // More for a client's program, for example the position to continue from; becomes
  // ErrorInfo.metadata.
  std::map<std::string, std::string> metadata = {};
};

// A Status with `detail` attached. `message` is a full sentence for a person: the field's value,
// and the allowed values. It never holds a path, pointer or secret of the server when the error can
// reach a client.
absl::Status MakeError(absl::StatusCode code, absl::string_view message, const ErrorDetail& detail);

// INVALID_ARGUMENT about one field.
absl::Status InvalidField(absl::string_view reason, absl::string_view field,
                          absl::string_view message);

// RESOURCE_EXHAUSTED; `retry_after`: the time after which a retry makes sense.
absl::Status Exhausted(absl::string_view reason, absl::Duration retry_after,
                       absl::string_view message);

// The detail attached to `status`; empty if there is none.
ErrorDetail GetErrorDetail(const absl::Status& status);

// `status` with "prefix: " before its message; code and detail stay.
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

}  // namespace rivulet

// Returns the Status of an expression from the current function if it is not OK.
#define RIVULET_RETURN_IF_ERROR(expr)                                                         \
  do {                                                                                        \
    if (absl::Status rivulet_status_ = (expr); !rivulet_status_.ok()) return rivulet_status_; \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` may be a declaration.
#define RIVULET_CONCAT_INNER_(a, b) a##b
#define RIVULET_CONCAT_(a, b) RIVULET_CONCAT_INNER_(a, b)
// RIVULET_ASSIGN_OR_RETURN(auto x, F()): x = *F(), or returns F()'s Status.
#define RIVULET_ASSIGN_OR_RETURN(lhs, expr) \
  RIVULET_ASSIGN_OR_RETURN_IMPL_(RIVULET_CONCAT_(rivulet_or_, __LINE__), lhs, expr)
#define RIVULET_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) return std::move(tmp).status();       \
  lhs = *std::move(tmp)
// NOLINTEND(bugprone-macro-parentheses)
