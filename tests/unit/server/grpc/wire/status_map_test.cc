// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/status_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "server/grpc/calls/server_calls.h"
#include "server/log.h"
#include "server/process/call_note.h"
#include "tests/support/wire_error.h"

namespace rivulet {
namespace {

using testing::Unpack;
using testing::WireError;

TEST(StatusMapTest, KeepsEveryCodeAndGivesItAReason) {
  // The numbers of absl::StatusCode and grpc::StatusCode are the same, but UNKNOWN never leaves
  // this server.
  for (int code = 1; code <= 16; ++code) {
    const auto from = static_cast<absl::StatusCode>(code);
    const WireError error = Unpack(ToGrpc(absl::Status(from, "what happened"), nullptr));
    const bool unknown = from == absl::StatusCode::kUnknown;
    EXPECT_EQ(error.code,
              unknown ? grpc::StatusCode::INTERNAL : static_cast<grpc::StatusCode>(code));
    EXPECT_EQ(error.message, "what happened");
    EXPECT_EQ(error.domain, "rivulet");
    EXPECT_EQ(error.reason, absl::StatusCodeToString(from));
    EXPECT_EQ(error.field, "");
    EXPECT_EQ(error.retry_seconds, 0);
    EXPECT_TRUE(error.details_agree);
  }
}

TEST(StatusMapTest, ErrorsAreCountedByTheirCodeAndReason) {
  ErrorCounts errors;
  ErrorDetail detail;
  detail.reason = "QUEUE_FULL";
  const absl::Status full = MakeError(absl::StatusCode::kResourceExhausted, "full", detail);
  google::rpc::Status wire;
  for (int i = 0; i < 2; ++i) ToGrpc(full, &errors);
  ToWire(full, &errors, "", &wire);
  ToGrpc(absl::ResourceExhaustedError("without a reason"), &errors);
  ToGrpc(MakeError(absl::StatusCode::kUnavailable, "another code", detail), &errors);
  ToGrpc(absl::OkStatus(), &errors);
  ToGrpc(full, nullptr);
  const ErrorCounts::Counts want{{{absl::StatusCode::kResourceExhausted, "QUEUE_FULL"}, 3},
                                 {{absl::StatusCode::kResourceExhausted, "RESOURCE_EXHAUSTED"}, 1},
                                 {{absl::StatusCode::kUnavailable, "QUEUE_FULL"}, 1}};
  EXPECT_EQ(errors.counts(), want);
}

TEST(StatusMapTest, OkHasNoDetails) {
  const grpc::Status status = ToGrpc(absl::OkStatus(), nullptr);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.error_details(), "");
}

TEST(StatusMapTest, NamesReasonAndField) {
  const WireError error = Unpack(
      ToGrpc(InvalidField("INVALID_SAMPLING", "sampling.top_p", "sampling.top_p is 2"), nullptr));
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error.reason, "INVALID_SAMPLING");
  EXPECT_EQ(error.field, "sampling.top_p");
}

TEST(StatusMapTest, MetadataIsThatOfTheErrorInfo) {
  ErrorDetail detail;
  detail.metadata = {{"sent_tokens", "3,4"}};
  const WireError error =
      Unpack(ToGrpc(MakeError(absl::StatusCode::kUnavailable, "draining", detail), nullptr));
  EXPECT_EQ(error.metadata, detail.metadata);
}

TEST(StatusMapTest, SaysWhenToTryAgain) {
  ErrorDetail detail;
  detail.reason = "QUEUE_FULL";
  detail.retry_after = absl::Milliseconds(1250);
  const WireError error =
      Unpack(ToGrpc(MakeError(absl::StatusCode::kResourceExhausted, "full", detail), nullptr));
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_DOUBLE_EQ(error.retry_seconds, 1.25);
}

TEST(StatusMapTest, AnErrorIsLoggedWithoutItsMessage) {
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  {
    const CallNote note("Score");
    ToGrpc(InvalidField("INVALID_SAMPLING", "sampling.top_p", "sampling.top_p is \"secret\""),
           nullptr, "id-7");
    ToGrpc(absl::CancelledError("The client has gone."), nullptr);
    ToGrpc(absl::OkStatus(), nullptr);
  }
  ToGrpc(absl::InternalError("secret"), nullptr);
  ToGrpc(InvalidField("NOT_IN_THE_TABLE", "sampling.top_p", "secret"), nullptr);
  SetLogLevel(LogLevel::kDebug);
  ToGrpc(absl::CancelledError("The client has gone."), nullptr);
  SetLogLevel(LogLevel::kInfo);
  SetLogMode(LogMode::kOff);
  const std::string output = ::testing::internal::GetCapturedStderr();
  std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 4u) << output;
  EXPECT_THAT(lines[3], ::testing::HasSubstr("\"level\":\"debug\",\"event\":\"request_error\""));
  EXPECT_THAT(
      lines[0],
      ::testing::HasSubstr(
          R"("level":"info","event":"request_error","method":"Score",)"
          R"("code":"INVALID_ARGUMENT","reason":"INVALID_SAMPLING","field":"sampling.top_p",)"
          R"("request_id":"id-7"})"));
  EXPECT_THAT(lines[1], ::testing::HasSubstr(R"("level":"error","event":"request_error")"));
  EXPECT_THAT(lines[2], ::testing::HasSubstr(R"("level":"error","event":"request_error")"));
  EXPECT_EQ(output.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace rivulet
