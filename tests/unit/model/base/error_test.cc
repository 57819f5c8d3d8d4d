// SPDX-License-Identifier: Apache-2.0
#include "model/base/error.h"

#include <gtest/gtest.h>

namespace rivulet {
namespace {

TEST(ErrorTest, CarriesReasonFieldAndRetryUnchanged) {
  const absl::Status status =
      MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                {"QUEUE_FULL", "prompt.tokens[3]", absl::Milliseconds(250)});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "the queue is full");
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "QUEUE_FULL");
  EXPECT_EQ(detail.field, "prompt.tokens[3]");
  EXPECT_EQ(detail.retry_after, absl::Milliseconds(250));
}

TEST(ErrorTest, MetadataIsKeptByEveryCopy) {
  ErrorDetail detail;
  detail.reason = "DRAINING";
  detail.metadata = {{"session_position", "12"}, {"session_id", ""}};
  const absl::Status status = MakeError(absl::StatusCode::kUnavailable, "draining", detail);
  for (const absl::Status& copy : {status, Annotate(status, "x")}) {
    EXPECT_EQ(GetErrorDetail(copy).metadata, detail.metadata);
    EXPECT_EQ(GetErrorDetail(copy).reason, "DRAINING");
  }
}

TEST(ErrorTest, AnnotatePrefixesTheMessageAndKeepsTheRest) {
  const absl::Status status = Annotate(InvalidField("R", "a.b", "a.b is 1"), "config.json");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "config.json: a.b is 1");
  EXPECT_EQ(GetErrorDetail(status).reason, "R");
  EXPECT_EQ(GetErrorDetail(status).field, "a.b");
}

TEST(ErrorTest, AnnotateLeavesOkAlone) { EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok()); }

TEST(ErrorTest, AStatusOfOthersHasNoDetail) {
  const ErrorDetail detail = GetErrorDetail(absl::NotFoundError("x"));
  EXPECT_EQ(detail.reason, "");
  EXPECT_EQ(detail.field, "");
  EXPECT_EQ(detail.retry_after, absl::ZeroDuration());
}

}  // namespace
}  // namespace rivulet
