// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/convert_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/grpc/wire/convert.h"
#include "tests/support/load_model.h"
#include "tests/unit/server/grpc/wire/expect_field.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::ExpectField;
using ::testing::HasSubstr;
using testing::LoadModel;

constexpr char kSessionId[] = "00000000000000010000000000000abc";

void ExpectNamedField(const absl::Status& status, const char* reason, const char* field) {
  ExpectField(status, reason, field);
  EXPECT_THAT(std::string(status.message()), HasSubstr(field));
}

v1::SessionRef Ref(const std::string& id = kSessionId) {
  v1::SessionRef ref;
  ref.set_session_id(id);
  return ref;
}

TEST(ConvertSessionTest, EveryFieldOfARefArrives) {
  v1::SessionRef wire = Ref();
  auto ref = ToSessionRef(wire);
  ASSERT_TRUE(ref.ok()) << ref.status();
  EXPECT_EQ(ref->id, (SessionId{1, 0xabc}));
  EXPECT_FALSE(ref->position.has_value());
  EXPECT_EQ(ref->mark, "");
  wire.set_position(0);
  wire.set_mark(std::string(64, 'm'));
  ref = ToSessionRef(wire);
  ASSERT_TRUE(ref.ok()) << ref.status();
  EXPECT_EQ(ref->position, 0);
  EXPECT_EQ(ref->mark, wire.mark());
  wire.set_mark(std::string(65, 'm'));
  ExpectNamedField(ToSessionRef(wire).status(), "MARK_LENGTH", "session.mark");
}

TEST(ConvertSessionTest, WhatIsNoIdIsSaid) {
  const std::string id = kSessionId;
  for (const std::string& bad : {std::string(), id + "0", id.substr(1), std::string(32, '0'),
                                 absl::StrCat("A", id.substr(1)), absl::StrCat("g", id.substr(1)),
                                 absl::StrCat(" ", id.substr(1)), std::string(5000, 'x')}) {
    const absl::Status status = ToSessionRef(Ref(bad)).status();
    ExpectNamedField(status, "SESSION_ID_MALFORMED", "session.session_id");
    EXPECT_LT(status.message().size(), 500u);
    ExpectNamedField(ToSessionRef(bad).status(), "SESSION_ID_MALFORMED", "session_id");
  }
  EXPECT_THAT(std::string(ToSessionRef(Ref("nope")).status().message()), HasSubstr("\"nope\""));
}

TEST(ConvertSessionTest, ARewindNeedsATarget) {
  v1::RewindSessionRequest request;
  request.set_session_id(kSessionId);
  ExpectNamedField(ToSessionRef(request).status(), "REWIND_TARGET_MISSING", "to");
  request.set_mark("");
  ExpectNamedField(ToSessionRef(request).status(), "MARK_LENGTH", "to.mark");
  request.set_mark("m");
  EXPECT_EQ(ToSessionRef(request)->mark, "m");
  request.set_position(0);
  EXPECT_EQ(ToSessionRef(request)->position, 0);
  EXPECT_EQ(ToSessionRef(request)->mark, "");
}

TEST(ConvertSessionTest, SeedsAndTimesMayBeAbsent) {
  v1::OpenSessionRequest open;
  auto spec = ToOpenSpec(open);
  ASSERT_TRUE(spec.ok());
  EXPECT_FALSE(spec->seed.has_value());
  EXPECT_FALSE(spec->idle_timeout.has_value());
  open.set_seed(0);
  open.mutable_idle_timeout()->set_seconds(2);
  open.mutable_idle_timeout()->set_nanos(5);
  spec = ToOpenSpec(open);
  EXPECT_EQ(spec->seed, 0u);
  EXPECT_EQ(spec->idle_timeout, absl::Seconds(2) + absl::Nanoseconds(5));
  v1::ForkSessionRequest fork;
  ExpectNamedField(ToForkSpec(fork).status(), "SESSION_MISSING", "session");
  *fork.mutable_session() = Ref();
  EXPECT_EQ(ToForkSpec(fork)->count, 1);
  fork.set_count(0);
  EXPECT_EQ(ToForkSpec(fork)->count, 0);  // the engine's to refuse
}

TEST(ConvertSessionTest, WhatIsNoDurationIsRefused) {
  const struct {
    int64_t seconds;
    int32_t nanos;
    const char* message;
  } kBad[] = {
      {1, -1, "has 1 seconds and -1 nanos, which differ in sign"},
      {-1, 1, "has -1 seconds and 1 nanos, which differ in sign"},
      {0, 1'000'000'000, "has 1000000000 nanos; allowed: -999999999 to 999999999"},
      {0, std::numeric_limits<int32_t>::min(), "has -2147483648 nanos; allowed: -999999999 to"},
      {315'576'000'001, 0, "has 315576000001 seconds; allowed: -315576000000 to 315576000000"},
      {std::numeric_limits<int64_t>::min(), 1, "has -9223372036854775808 seconds; allowed: -3155"}};
  for (const auto& bad : kBad) {
    google::protobuf::Duration duration;
    duration.set_seconds(bad.seconds);
    duration.set_nanos(bad.nanos);
    const absl::Status status = ToIdleTimeout(&duration).status();
    ExpectNamedField(status, "IDLE_TIMEOUT_OUT_OF_RANGE", "idle_timeout");
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
  google::protobuf::Duration negative;
  negative.set_seconds(-1);
  EXPECT_EQ(*ToIdleTimeout(&negative), -absl::Seconds(1));  // the engine's to refuse
}

TEST(ConvertSessionTest, AGenerateOnASessionNeedsNoPromptAndTakesItsSeed) {
  const auto model = LoadModel("tests/conformance/models/tiny-elu-relu");
  v1::GenerateRequest request;
  *request.mutable_session() = Ref();
  auto spec = ToGenerateSpec(request, *model);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->session->id, (SessionId{1, 0xabc}));
  EXPECT_TRUE(spec->session_seed);
  EXPECT_TRUE(spec->prompt.empty());
  request.mutable_sampling()->set_seed(0);
  EXPECT_FALSE(ToGenerateSpec(request, *model)->session_seed);
  request.mutable_session()->set_session_id("x");
  ExpectNamedField(ToGenerateSpec(request, *model).status(), "SESSION_ID_MALFORMED",
                   "session.session_id");
}

TEST(ConvertSessionTest, EveryFieldOfAnAppendArrives) {
  const auto model = LoadModel("tests/conformance/models/tiny-elu-relu");
  v1::AppendRequest request;
  ExpectNamedField(ToAppendSpec(request, *model).status(), "SESSION_MISSING", "session");
  *request.mutable_session() = Ref();
  EXPECT_TRUE(ToAppendSpec(request, *model)->tokens.empty());
  request.mutable_tokens()->add_ids(4);
  request.mutable_tokens()->add_ids(2);
  request.set_logprobs(true);
  ExpectNamedField(ToAppendSpec(request, *model).status(), "NEEDS_SCORE", "logprobs");
  request.set_logprobs(false);
  request.add_output_positions(1);
  ExpectNamedField(ToAppendSpec(request, *model).status(), "NEEDS_SCORE", "output_positions");
  request.set_score(true);
  request.set_logprobs(true);
  const auto spec = ToAppendSpec(request, *model);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->session.id, (SessionId{1, 0xabc}));
  EXPECT_THAT(spec->tokens, ElementsAre(4, 2));
  EXPECT_TRUE(spec->score);
  EXPECT_TRUE(spec->want_logprobs);
  EXPECT_THAT(spec->output_positions, ElementsAre(1));
  request.set_text("a");
  ExpectNamedField(ToAppendSpec(request, *model).status(), "TEXT_NOT_SUPPORTED", "content.text");
  request.set_image_values("a");
  ExpectNamedField(ToAppendSpec(request, *model).status(), "IMAGE_VALUES_NOT_SUPPORTED",
                   "content.image_values");
}

TEST(ConvertSessionTest, EveryFieldOfASessionIsSent) {
  SessionInfo info;
  info.id = {1, 0xabc};
  info.position = 12;
  info.hash = ~uint64_t{0};
  info.seed = 5;
  info.marks = {{"a", 1}, {"b", 2}};
  info.idle_timeout = absl::Minutes(10);
  info.idle = absl::Microseconds(1500000);
  info.state_bytes = 4096;
  info.busy = true;
  v1::Session wire;
  ToWire(info, "m", &wire);
  EXPECT_EQ(wire.session_id(), kSessionId);
  EXPECT_EQ(wire.model(), "m");
  EXPECT_EQ(wire.progress().position(), 12);
  EXPECT_EQ(wire.progress().sequence_hash(), ~uint64_t{0});
  EXPECT_EQ(wire.seed(), 5u);
  EXPECT_EQ(wire.marks().at("b"), 2);
  EXPECT_EQ(wire.idle_timeout().seconds(), 600);
  EXPECT_EQ(wire.idle().nanos(), 500000000);
  EXPECT_EQ(wire.state_bytes(), 4096);
  EXPECT_TRUE(wire.busy());
}

}  // namespace
}  // namespace rivulet
