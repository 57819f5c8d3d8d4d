// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/exit_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/client_error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

TEST(ExitCodeTest, TellsBugsFromBadInputFromAbsentServers) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::UnknownError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::OutOfRangeError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::UnimplementedError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 3);
}

TEST(ErrorLineTest, IsOneLineWhateverTheMessage) {
  EXPECT_EQ(ErrorLine(absl::InternalError("two\nlines\r\tand \x1b[31m")),
            "rivulet: two lines  and  [31m");
  EXPECT_EQ(ErrorLine(absl::UnavailableError("")), "rivulet: UNAVAILABLE");
}

absl::Status WithDetails(absl::string_view message) {
  google::rpc::Status details;
  google::rpc::BadRequest bad_request;
  bad_request.add_field_violations()->set_field("sampling.top_p");
  google::rpc::RetryInfo retry_info;
  retry_info.mutable_retry_delay()->set_seconds(2);
  EXPECT_TRUE(details.add_details()->PackFrom(bad_request));
  EXPECT_TRUE(details.add_details()->PackFrom(retry_info));
  return FromGrpcStatus(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(message),
                                     details.SerializeAsString()));
}

TEST(ErrorLineTest, NamesTheFieldOnceAndWhenToTryAgain) {
  EXPECT_EQ(ErrorLine(WithDetails("is 2")), "rivulet: sampling.top_p: is 2 (try again in 2s)");
  EXPECT_EQ(ErrorLine(WithDetails("sampling.top_p is 2")),
            "rivulet: sampling.top_p is 2 (try again in 2s)");
}

TEST(ErrorLineTest, AConnectionThatTheServerClosesMayNeedTls) {
  const auto line = [](const char* error) { return ErrorLine(absl::UnavailableError(error)); };
  EXPECT_THAT(
      line("failed to connect to all addresses; last error: UNAVAILABLE: a:1: Socket closed"),
      HasSubstr("Socket closed (does the server speak TLS? then use --tls"));
  EXPECT_EQ(line("Socket closed"), "rivulet: Socket closed") << "in the middle of a reply";
}

}  // namespace
}  // namespace rivulet
