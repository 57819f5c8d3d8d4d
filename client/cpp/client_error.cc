// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client_error.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "rivulet/client.h"

namespace rivulet {
namespace {

constexpr absl::string_view kStatusUrl = "type.googleapis.com/google.rpc.Status";

// A server of ours attaches details to each of its errors and never ends a call with UNKNOWN. An
// error without details comes from between: a balancer whose replica died in mid-reply ends the
// stream without a status, or resets it.
bool IsLostStream(const grpc::Status& status) {
  if (!status.error_details().empty()) return false;
  if (status.error_code() == grpc::StatusCode::UNKNOWN) return true;
  return status.error_code() == grpc::StatusCode::INTERNAL &&
         absl::StrContains(status.error_message(), "RST_STREAM");
}

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (IsLostStream(status)) {
    return absl::UnavailableError(
        absl::StrCat("the call ended without a status of the server, which may be gone: ",
                     status.error_message()));
  }
  // grpc::StatusCode and absl::StatusCode use the numbers of google.rpc.Code; absl maps an unknown
  // number to UNKNOWN.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) {
    result.SetPayload(kStatusUrl, absl::Cord(status.error_details()));
  }
  return result;
}

bool HasDetails(const absl::Status& status) { return status.GetPayload(kStatusUrl).has_value(); }

absl::Status FromWireStatus(const google::rpc::Status& status) {
  absl::Status result(static_cast<absl::StatusCode>(status.code()), status.message());
  result.SetPayload(kStatusUrl, absl::Cord(status.SerializeAsString()));
  return result;
}

bool LeavesReplica(const ErrorInfo& info) {
  return info.reason == "DRAINING" || info.reason == kSessionMoved;
}

absl::Status MessageTooLarge(absl::string_view request_name, size_t bytes, int64_t limit) {
  google::rpc::Status status;
  status.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  status.set_message(absl::StrCat("a ", request_name, " of ", bytes,
                                  " bytes is more than the server takes at once, which is ", limit,
                                  " (its setting max-message-mib)"));
  google::rpc::ErrorInfo info;
  info.set_reason("MESSAGE_TOO_LARGE");
  info.set_domain("rivulet");
  status.add_details()->PackFrom(info);
  return FromWireStatus(status);
}

absl::Status EndedByCaller() { return absl::CancelledError("the caller ended the reply"); }

ErrorInfo GetErrorInfo(const absl::Status& status) {
  ErrorInfo info;
  const absl::optional<absl::Cord> payload = status.GetPayload(kStatusUrl);
  google::rpc::Status details;
  if (!payload.has_value() || !details.ParseFromString(std::string(*payload))) return info;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::ErrorInfo error_info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry_info;
    google::rpc::RequestInfo request_info;
    if (any.UnpackTo(&error_info)) {
      info.reason = error_info.reason();
      info.metadata = {error_info.metadata().begin(), error_info.metadata().end()};
    } else if (any.UnpackTo(&bad_request) && bad_request.field_violations_size() > 0) {
      info.field = bad_request.field_violations(0).field();
    } else if (any.UnpackTo(&retry_info)) {
      info.retry_delay = absl::Seconds(retry_info.retry_delay().seconds()) +
                         absl::Nanoseconds(retry_info.retry_delay().nanos());
    } else if (any.UnpackTo(&request_info)) {
      info.request_id = request_info.request_id();
    }
  }
  return info;
}

}  // namespace rivulet
