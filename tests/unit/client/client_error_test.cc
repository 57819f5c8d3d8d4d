// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client_error.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
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
  details.add_details()->PackFrom(error_info);
  details.add_details()->PackFrom(bad_request);
  details.add_details()->PackFrom(retry_info);

  const ErrorInfo info = GetErrorInfo(FromGrpcStatus(
      grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bad", details.SerializeAsString())));
  EXPECT_EQ(info.reason, "TOKEN_OUT_OF_RANGE");
  EXPECT_EQ(info.field, "tokens.ids[3]");
  EXPECT_EQ(info.retry_delay, absl::Milliseconds(2500));
}

TEST(ClientErrorTest, BearsDetailsThatAreAbsentOrGarbage) {
  EXPECT_EQ(GetErrorInfo(absl::InternalError("x")).reason, "");
  EXPECT_EQ(GetErrorInfo(absl::OkStatus()).reason, "");
  const ErrorInfo info = GetErrorInfo(FromGrpcStatus(
      grpc::Status(grpc::StatusCode::INTERNAL, "x", std::string("\xff\xff\xff", 3))));
  EXPECT_EQ(info.reason, "");
  EXPECT_EQ(info.retry_delay, absl::ZeroDuration());
}

TEST(ClientTest, RefusesOptionsThatCannotBe) {
  const auto code = [](absl::string_view target, const ClientOptions& options) {
    return Client::Connect(target, options).status().code();
  };
  EXPECT_EQ(code("", {}), absl::StatusCode::kInvalidArgument);
  ClientOptions attempts;
  attempts.max_attempts = 0;
  EXPECT_EQ(code("localhost:1", attempts), absl::StatusCode::kInvalidArgument);
  ClientOptions timeout;
  timeout.connect_timeout = absl::ZeroDuration();
  EXPECT_EQ(code("localhost:1", timeout), absl::StatusCode::kInvalidArgument);
  ClientOptions roots;
  roots.tls = TlsOptions();
  roots.tls->root_certs_file = "/nonexistent/roots.pem";
  EXPECT_EQ(code("localhost:1", roots), absl::StatusCode::kNotFound);
  ClientOptions half;
  half.tls = TlsOptions();
  half.tls->client_cert_file = "cert.pem";
  EXPECT_EQ(code("localhost:1", half), absl::StatusCode::kInvalidArgument);
}

TEST(ClientTest, AnswersUnavailableWhereNobodyListens) {
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1");
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->ListModels().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->Health("").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->Generate({}, [](const v1::GenerateReply&) { return true; }).code(),
            absl::StatusCode::kUnavailable);
}

TEST(ClientTest, EndsWithCancelledOnceStopIsRequested) {
  ClientOptions options;
  options.wait_for_ready = true;  // so that the call would wait for ever
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1", options);
  ASSERT_TRUE(client.ok());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(client->Score({}, {.stop = stop.get_token()}).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(ClientTest, EndsAtTheDeadline) {
  ClientOptions options;
  options.wait_for_ready = true;
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1", options);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->GetModel("m", {.deadline = absl::Now()}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace rivulet
