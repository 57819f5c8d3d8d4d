// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client_error.h"

#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "rivulet/client.h"

namespace rivulet {
namespace {

TEST(ClientErrorTest, KeepsCodeAndMessage) {
  const absl::Status status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue full");
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(ClientErrorTest, ReadsReasonFieldAndRetryDelayFromTheDetails) {
  google::rpc::Status details;
  google::rpc::ErrorInfo error_info;
  error_info.set_reason("TOKEN_OUT_OF_RANGE");
  google::rpc::BadRequest bad_request;
  bad_request.add_field_violations()->set_field("tokens.ids[3]");
  google::rpc::RetryInfo retry_info;
  retry_info.mutable_retry_delay()->set_seconds(2);
  retry_info.mutable_retry_delay()->set_nanos(500'000'000);
  ASSERT_TRUE(details.add_details()->PackFrom(error_info));
  ASSERT_TRUE(details.add_details()->PackFrom(bad_request));
  ASSERT_TRUE(details.add_details()->PackFrom(retry_info));

  const ErrorInfo info = GetErrorInfo(FromGrpcStatus(
      grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bad", details.SerializeAsString())));
  EXPECT_EQ(info.reason, "TOKEN_OUT_OF_RANGE");
  EXPECT_EQ(info.field, "tokens.ids[3]");
  EXPECT_EQ(info.retry_delay, absl::Milliseconds(2500));
}

TEST(ClientErrorTest, AStreamThatEndsWithoutAStatusOfTheServerIsUnavailable) {
  for (const grpc::Status& lost :
       {grpc::Status(grpc::StatusCode::UNKNOWN, "Stream removed"),
        grpc::Status(grpc::StatusCode::INTERNAL, "Received RST_STREAM with error code 2")}) {
    const absl::Status status = FromGrpcStatus(lost);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find(lost.error_message()), absl::string_view::npos) << status;
  }
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, "a bug")).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(
      FromGrpcStatus(grpc::Status(grpc::StatusCode::UNKNOWN, "ours", "details are there")).code(),
      absl::StatusCode::kUnknown);
}

TEST(ClientErrorTest, BearsDetailsThatAreAbsentOrGarbage) {
  EXPECT_EQ(GetErrorInfo(absl::InternalError("x")).reason, "");
  EXPECT_EQ(GetErrorInfo(absl::OkStatus()).reason, "");
  const ErrorInfo info = GetErrorInfo(FromGrpcStatus(
      grpc::Status(grpc::StatusCode::INTERNAL, "x", std::string("\xff\xff\xff", 3))));
  EXPECT_EQ(info.reason, "");
  EXPECT_EQ(info.retry_delay, absl::ZeroDuration());
}

}  // namespace
}  // namespace rivulet
