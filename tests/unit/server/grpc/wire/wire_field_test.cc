// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/wire_field.h"

#include <gtest/gtest.h>

#include <string>

#include "model/base/error.h"

namespace rivulet {
namespace {

template <typename Request>
std::string FieldOf(const std::string& field, const Request& request) {
  const absl::Status status = NameWireField(InvalidField("R", field, field + " is 1"), request);
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(detail.reason, "R");
  EXPECT_EQ(status.message(), detail.field + " is 1");
  return detail.field;
}

TEST(WireFieldTest, FieldsOfASessionAreThoseOfItsMessage) {
  v1::GenerateRequest generate;
  v1::AppendRequest append;
  const v1::ForkSessionRequest fork;
  for (const char* field : {"session_id", "position", "mark"}) {
    const std::string path = std::string("session.") + field;
    EXPECT_EQ(FieldOf(field, generate), path);
    EXPECT_EQ(FieldOf(field, append), path);
    EXPECT_EQ(FieldOf(field, fork), path);
  }
  EXPECT_EQ(FieldOf("count", fork), "count");
  EXPECT_EQ(FieldOf("output_positions", append), "output_positions");
  EXPECT_EQ(FieldOf("output_positions[2]", append), "output_positions[2]");
}

TEST(WireFieldTest, WhatIsRewoundToIsTheOneof) {
  const v1::RewindSessionRequest rewind;
  EXPECT_EQ(FieldOf("position", rewind), "to.position");
  EXPECT_EQ(FieldOf("mark", rewind), "to.mark");
  EXPECT_EQ(FieldOf("session_id", rewind), "session_id");
}

TEST(WireFieldTest, TokensAreWhatTheRequestHolds) {
  v1::AppendRequest append;
  EXPECT_EQ(FieldOf("content.tokens[3]", append), "content.tokens[3]");
  EXPECT_EQ(FieldOf("tokens", append), "content.tokens");
  append.set_text("");
  EXPECT_EQ(FieldOf("content.tokens[3]", append), "content.text[3]");
  EXPECT_EQ(FieldOf("tokens", append), "content.text");
  append.set_image_values("");
  EXPECT_EQ(FieldOf("tokens", append), "content.image_values");
  v1::GenerateRequest generate;
  EXPECT_EQ(FieldOf("tokens", generate), "prompt.tokens");
  generate.set_text("");
  EXPECT_EQ(FieldOf("tokens", generate), "prompt.text");
  EXPECT_EQ(FieldOf("prompt.tokens[1]", generate), "prompt.text[1]");
}

TEST(WireFieldTest, OnlyTheFieldsNameIsReplaced) {
  ErrorDetail detail;
  detail.field = "mark";
  detail.retry_after = absl::Seconds(3);
  const absl::Status status = NameWireField(
      MakeError(absl::StatusCode::kNotFound, "mark names none of the session's marks.", detail),
      v1::RewindSessionRequest());
  EXPECT_EQ(status.message(), "to.mark names none of the session's marks.");
  EXPECT_EQ(GetErrorDetail(status).retry_after, absl::Seconds(3));
  const absl::Status other = absl::InternalError("position");
  EXPECT_EQ(NameWireField(other, v1::AppendRequest()), other);
  EXPECT_EQ(NameWireField(other, v1::OpenSessionRequest()), other);
}

}  // namespace
}  // namespace rivulet
