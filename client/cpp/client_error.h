// SPDX-License-Identifier: Apache-2.0
// gRPC's errors as absl::Status.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"
#include "rivulet/client.h"

namespace rivulet {

// Code and message as they are; the google.rpc.Status that the server attached, if any, becomes a
// payload that GetErrorInfo() of rivulet/client.h reads.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Whether a server said more than code and message, as ours always does. Errors without details are
// made up on the way.
bool HasDetails(const absl::Status& status);

// FromGrpcStatus of an error that came as a message.
absl::Status FromWireStatus(const google::rpc::Status& status);

// Reasons about sessions that several replicas may serve.
inline constexpr absl::string_view kSessionNotFound = "SESSION_NOT_FOUND";
inline constexpr absl::string_view kSessionMoved = "SESSION_MOVED";

// Whether the replica says that another one is to be asked: it drains, or the session has moved.
bool LeavesReplica(const ErrorInfo& info);

// INVALID_ARGUMENT (MESSAGE_TOO_LARGE): a request of `bytes` is not sent to a server that takes
// `limit`. `request_name`: "GenerateRequest".
absl::Status MessageTooLarge(absl::string_view request_name, size_t bytes, int64_t limit);

// Of a reply that the caller does not want any more.
absl::Status EndedByCaller();

}  // namespace rivulet
