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

// Keeps code and message. A google.rpc.Status that the server attached becomes a payload, which
// GetErrorInfo() of rivulet/client.h reads.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Whether the error has details beyond code and message. Our server always sends details; an error
// without them comes from a proxy or from gRPC.
bool HasDetails(const absl::Status& status);

// As FromGrpcStatus, for an error that came in a message.
absl::Status FromWireStatus(const google::rpc::Status& status);

// Reasons about sessions that several replicas may serve.
inline constexpr absl::string_view kSessionNotFound = "SESSION_NOT_FOUND";
inline constexpr absl::string_view kSessionMoved = "SESSION_MOVED";

// Whether the replica refers the call to another replica: it drains, or the session has moved.
bool LeavesReplica(const ErrorInfo& info);

// INVALID_ARGUMENT (MESSAGE_TOO_LARGE): a request of `bytes` is not sent to a server that accepts
// at most `limit` bytes. `request_name`: "GenerateRequest".
absl::Status MessageTooLarge(absl::string_view request_name, size_t bytes, int64_t limit);

// The error of a reply that the caller has cancelled.
absl::Status EndedByCaller();

}  // namespace rivulet
