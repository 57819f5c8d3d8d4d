// SPDX-License-Identifier: Apache-2.0
// The only mapping from our Status to the error that a client sees.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"

namespace rivulet {

class ErrorCounts;

// Domain of every ErrorInfo that this server sends.
inline constexpr absl::string_view kErrorDomain = "rivulet";

// The code that a client sees, and the reason of its ErrorInfo. REQUIRES of the reason: `status` is
// not OK.
absl::StatusCode WireCode(const absl::Status& status);
std::string WireReason(const absl::Status& status);

// The same code and message, and as error details a google.rpc.Status with
//   ErrorInfo{reason, domain}   always; without a reason the name of the code, as "CANCELLED"
//   BadRequest{field, message}  where the Status names a field
//   RetryInfo{delay}            where the Status says when to try again
//   RequestInfo{request_id}     where it is not empty
// OK maps to OK without details. An error is counted in `errors`, by its code and reason; null for
// errors of AdminService, which are not counted. Thread: any.
grpc::Status ToGrpc(const absl::Status& status, ErrorCounts* errors,
                    absl::string_view request_id = "");

// The same as a message. REQUIRES: `status` is not OK.
void ToWire(const absl::Status& status, ErrorCounts* errors, absl::string_view request_id,
            google::rpc::Status* wire);

}  // namespace rivulet
