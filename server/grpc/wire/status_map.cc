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
  // The wire never carries an untyped failure of ours.
  return absl::IsUnknown(status) ? absl::StatusCode::kInternal : status.code();
}

std::string WireReason(const absl::Status& status) {
  std::string reason = GetErrorDetail(status).reason;
  if (!reason.empty()) return reason;
  // Named, because tests/lint/error_reasons_test.py looks for each reason of the table.
  return absl::IsUnknown(status) ? "UNKNOWN" : absl::StatusCodeToString(status.code());
}

void ToWire(const absl::Status& status, ErrorCounts* errors, absl::string_view request_id,
            google::rpc::Status* wire) {
  const absl::StatusCode code = WireCode(status);
  const std::string reason = WireReason(status);
  const ErrorDetail detail = GetErrorDetail(status);
  const std::string message(status.message());

  wire->set_code(static_cast<int>(code));
  wire->set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(std::string(kErrorDomain));
  LogError(code, reason, detail.field, request_id);
  info.mutable_metadata()->insert(detail.metadata.begin(), detail.metadata.end());
  AddDetail(info, wire);
  if (errors != nullptr) errors->Add(code, reason);
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
