// SPDX-License-Identifier: Apache-2.0
// The contents of our server's grpc::Status. Its reason must be in the table, with its code.
#pragma once

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/base/error_reasons.h"

namespace rivulet::testing {

struct WireError {
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string message;
  std::string domain, reason;
  std::map<std::string, std::string> metadata;  // of the ErrorInfo
  std::string field;                            // of the BadRequest; "": none
  double retry_seconds = 0;                     // of the RetryInfo
  bool details_agree = false;                   // the details have the status's code and message
};

inline WireError Unpack(const grpc::Status& status) {
  WireError error;
  error.code = status.error_code();
  error.message = status.error_message();
  google::rpc::Status wire;
  if (!wire.ParseFromString(status.error_details())) return error;
  error.details_agree = wire.code() == error.code && wire.message() == error.message;
  for (const auto& any : wire.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      error.domain = info.domain();
      error.reason = info.reason();
      EXPECT_TRUE(IsErrorReason(error.reason, static_cast<absl::StatusCode>(error.code)))
          << error.reason << " with code " << error.code;
      error.metadata = {info.metadata().begin(), info.metadata().end()};
    } else if (any.UnpackTo(&bad_request) && bad_request.field_violations_size() == 1) {
      error.field = bad_request.field_violations(0).field();
    } else if (any.UnpackTo(&retry)) {
      error.retry_seconds =
          static_cast<double>(retry.retry_delay().seconds()) + retry.retry_delay().nanos() * 1e-9;
    }
  }
  return error;
}

}  // namespace rivulet::testing
