// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/status_map.h"

#include <string>

#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "model/base/error.h"
#include "server/base/error_reasons.h"
#include "server/grpc/wire/error_counts.h"
#include "server/log.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

struct Mapped {
  grpc::StatusCode code;
  const char* reason;  // used if the Status has no reason
};

// Exhaustive: a missing code is a compiler warning here, and so an error.
Mapped MapCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return {grpc::StatusCode::OK, ""};
    case absl::StatusCode::kCancelled:
      return {grpc::StatusCode::CANCELLED, "CANCELLED"};
    case absl::StatusCode::kUnknown:
      return {grpc::StatusCode::INTERNAL,
              "UNKNOWN"};  // the wire never carries an untyped failure of ours
    case absl::StatusCode::kInvalidArgument:
      return {grpc::StatusCode::INVALID_ARGUMENT, "INVALID_ARGUMENT"};
    case absl::StatusCode::kDeadlineExceeded:
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"};
    case absl::StatusCode::kNotFound:
      return {grpc::StatusCode::NOT_FOUND, "NOT_FOUND"};
    case absl::StatusCode::kAlreadyExists:
      return {grpc::StatusCode::ALREADY_EXISTS, "ALREADY_EXISTS"};
    case absl::StatusCode::kPermissionDenied:
      return {grpc::StatusCode::PERMISSION_DENIED, "PERMISSION_DENIED"};
    case absl::StatusCode::kResourceExhausted:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED"};
    case absl::StatusCode::kFailedPrecondition:
      return {grpc::StatusCode::FAILED_PRECONDITION, "FAILED_PRECONDITION"};
    case absl::StatusCode::kAborted:
      return {grpc::StatusCode::ABORTED, "ABORTED"};
    case absl::StatusCode::kOutOfRange:
      return {grpc::StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE"};
    case absl::StatusCode::kUnimplemented:
      return {grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED"};
    case absl::StatusCode::kInternal:
      return {grpc::StatusCode::INTERNAL, "INTERNAL"};
    case absl::StatusCode::kUnavailable:
      return {grpc::StatusCode::UNAVAILABLE, "UNAVAILABLE"};
    case absl::StatusCode::kDataLoss:
      return {grpc::StatusCode::DATA_LOSS, "DATA_LOSS"};
    case absl::StatusCode::kUnauthenticated:
      return {grpc::StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"};
    case absl::StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return {grpc::StatusCode::INTERNAL, "INTERNAL"};
}

// Logs one event for each error that a client receives. The client causes cancellations itself, so
// they have level debug. The event has neither the message nor a value, because these may quote the
// client. A reason that the table lacks is a bug of the server.
void LogError(absl::StatusCode code, const std::string& reason, const std::string& field,
              absl::string_view request_id) {
  const bool ours = code == absl::StatusCode::kInternal || code == absl::StatusCode::kDataLoss ||
                    !IsErrorReason(reason, code);
  const LogLevel level = code == absl::StatusCode::kCancelled ? LogLevel::kDebug : LogLevel::kInfo;
  LogLimited(ours ? LogLevel::kError : level, "request_error",
             {{"method", CallNote::Current()},
              {"code", absl::StatusCodeToString(code)},
              {"reason", reason},
              {"field", field},
              {"request_id", std::string(request_id)}});
}

void AddDetail(const google::protobuf::Message& detail, google::rpc::Status* wire) {
  (void)wire->add_details()->PackFrom(detail);  // fails only beyond 2 GiB
}

}  // namespace

absl::StatusCode WireCode(const absl::Status& status) {
  return static_cast<absl::StatusCode>(MapCode(status.code()).code);
}

std::string WireReason(const absl::Status& status) {
  std::string reason = GetErrorDetail(status).reason;
  return reason.empty() ? MapCode(status.code()).reason : reason;
}

void ToWire(const absl::Status& status, ErrorCounts* errors, absl::string_view request_id,
            google::rpc::Status* wire) {
  const Mapped mapped = MapCode(status.code());
  const ErrorDetail detail = GetErrorDetail(status);
  const std::string message(status.message());

  wire->set_code(static_cast<int>(mapped.code));
  wire->set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(detail.reason.empty() ? std::string(mapped.reason) : detail.reason);
  info.set_domain(std::string(kErrorDomain));
  LogError(static_cast<absl::StatusCode>(wire->code()), info.reason(), detail.field, request_id);
  info.mutable_metadata()->insert(detail.metadata.begin(), detail.metadata.end());
  AddDetail(info, wire);
  if (errors != nullptr) errors->Add(static_cast<absl::StatusCode>(wire->code()), info.reason());
  if (!detail.field.empty()) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(detail.field);
    violation->set_description(message);
    AddDetail(bad_request, wire);
  }
  if (detail.retry_after > absl::ZeroDuration()) {
    const int64_t microseconds = absl::ToInt64Microseconds(detail.retry_after);
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(microseconds / 1000000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(microseconds % 1000000 * 1000));
    AddDetail(retry, wire);
  }
  if (!request_id.empty()) {
    google::rpc::RequestInfo request;
    request.set_request_id(std::string(request_id));
    AddDetail(request, wire);
  }
}

grpc::Status ToGrpc(const absl::Status& status, ErrorCounts* errors, absl::string_view request_id) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status wire;
  ToWire(status, errors, request_id, &wire);
  return grpc::Status(static_cast<grpc::StatusCode>(wire.code()), wire.message(),
                      wire.SerializeAsString());
}

}  // namespace rivulet
