// SPDX-License-Identifier: Apache-2.0
// What the rules of "Lost replies" in client/README.md leave to the class alone.
// e2e/client/contract/lost_replies_test.py has the rules.
#include "client/cpp/reply_resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cpp/client_error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "rivulet/client.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kFingerprint = 77;

// An error of a server, with a RetryInfo.
absl::Status LostFor(int64_t seconds) {
  google::rpc::Status status;
  status.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(seconds);
  EXPECT_TRUE(status.add_details()->PackFrom(retry));
  return FromWireStatus(status);
}

absl::Status Lost(absl::string_view message = "lost") { return absl::UnavailableError(message); }

v1::GenerateReply Part(std::initializer_list<int32_t> tokens, int32_t sample = 0) {
  v1::GenerateReply part;
  part.set_sample_index(sample);
  part.mutable_tokens()->Add(tokens.begin(), tokens.end());
  return part;
}

v1::GenerateReply First(std::initializer_list<int32_t> tokens, int32_t sample = 0) {
  v1::GenerateReply part = Part(tokens, sample);
  part.set_seed(5);
  part.set_fingerprint(kFingerprint);
  return part;
}

v1::GenerateReply End(std::initializer_list<int32_t> tokens, int32_t sample = 0) {
  v1::GenerateReply part = Part(tokens, sample);
  part.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
  return part;
}

v1::GenerateRequest Request(int32_t samples = 1) {
  v1::GenerateRequest request;
  request.set_text("ROMEO:");
  request.mutable_sampling()->set_seed(5);
  request.set_num_samples(samples);
  return request;
}

ReplyResume Resuming(const v1::GenerateRequest& request = Request(), bool resume = true,
                     int attempts = 4, absl::Time deadline = absl::InfiniteFuture()) {
  return {request, resume, attempts, deadline};
}

// The reply takes `part` as one that the caller sees.
void Take(ReplyResume* reply, v1::GenerateReply part) { EXPECT_TRUE(reply->Take(&part)); }

// The status of the reply, whose call has ended with `status`.
absl::Status EndOf(ReplyResume* reply, absl::Status status) {
  EXPECT_EQ(reply->NextCall(&status), std::nullopt);
  return status;
}

bool GoesOn(ReplyResume* reply, absl::Status status) {
  return reply->NextCall(&status).has_value();
}

std::vector<std::vector<int32_t>> Received(const ReplyResume& reply) {
  std::vector<std::vector<int32_t>> received;
  for (const v1::TokenSequence& sample : reply.request().resume().samples()) {
    received.emplace_back(sample.ids().begin(), sample.ids().end());
  }
  return received;
}

TEST(ReplyResumeTest, OneSampleWithoutATokenHasAnEntry) {
  v1::GenerateRequest request = Request();
  request.clear_num_samples();
  ReplyResume reply = Resuming(request);
  Take(&reply, First({}, -1));
  ASSERT_TRUE(GoesOn(&reply, Lost()));
  EXPECT_THAT(Received(reply), ElementsAre(IsEmpty()));
}

TEST(ReplyResumeTest, DrawsASeedWhereTheServerWould) {
  v1::GenerateRequest request;
  const ReplyResume one = Resuming(request), other = Resuming(request);
  EXPECT_TRUE(one.request().sampling().has_seed());
  EXPECT_NE(one.request().sampling().seed(), other.request().sampling().seed());
  request.mutable_sampling()->set_seed(0);
  EXPECT_EQ(Resuming(request).request().sampling().seed(), 0u);
  v1::GenerateRequest in_session;
  in_session.mutable_session();
  EXPECT_FALSE(Resuming(in_session).request().sampling().has_seed()) << "the session has one";
  v1::GenerateRequest resumed;
  resumed.mutable_resume();
  EXPECT_FALSE(Resuming(resumed).request().sampling().has_seed()) << "it would be another";
}

TEST(ReplyResumeTest, WaitsDoubleUntilSomethingComes) {
  ReplyResume reply = Resuming();
  Take(&reply, First({1}));
  const auto expect_waits = [&reply](std::initializer_list<double> waits) {
    for (const double seconds : waits) {
      absl::Status status = Lost();
      const auto wait = reply.NextCall(&status);
      ASSERT_TRUE(wait.has_value());
      EXPECT_GE(*wait, absl::Seconds(seconds * 0.8));
      EXPECT_LE(*wait, absl::Seconds(seconds * 1.2));
    }
  };
  expect_waits({0.1, 0.2, 0.4});
  Take(&reply, Part({2}));
  expect_waits({0.1, 0.2, 0.4, 0.8, 1.6});
}

TEST(ReplyResumeTest, WaitsDiffer) {
  ReplyResume one = Resuming(), other = Resuming();
  absl::Status status = Lost();
  EXPECT_NE(one.NextCall(&status), other.NextCall(&status));
}

TEST(ReplyResumeTest, WaitsAsLongAsTheServerAsks) {
  ReplyResume reply = Resuming();
  absl::Status status = LostFor(20);
  EXPECT_EQ(reply.NextCall(&status), absl::Seconds(20));
}

TEST(ReplyResumeTest, FiveCallsThatBringNothingEndAReplyWithWhatCutIt) {
  ReplyResume reply = Resuming(Request(), true, 1);
  Take(&reply, First({1}));
  EXPECT_TRUE(GoesOn(&reply, Lost("an earlier one")));
  Take(&reply, Part({2}));
  EXPECT_TRUE(GoesOn(&reply, Lost("the cut")));
  for (int i = 0; i < 4; ++i) {
    v1::GenerateReply again = First({});  // not even seed and fingerprint are new
    EXPECT_FALSE(reply.Take(&again));
    EXPECT_TRUE(GoesOn(&reply, Lost("refused"))) << i;
  }
  EXPECT_EQ(EndOf(&reply, Lost("refused")), Lost("the cut"));
}

TEST(ReplyResumeTest, NoWaitPassesTheDeadline) {
  ReplyResume reply = Resuming(Request(), true, 4, absl::Now() + absl::Hours(1));
  absl::Status status = LostFor(3599);
  EXPECT_TRUE(GoesOn(&reply, status));
  status = LostFor(3601);
  const absl::Status end = EndOf(&reply, status);
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(end.message()), HasSubstr("no time to try again"));
}

TEST(ReplyResumeTest, NothingIsDeliveredTwice) {
  ReplyResume reply = Resuming(Request(2));
  v1::GenerateReply first = First({1});
  EXPECT_TRUE(reply.Take(&first));
  EXPECT_TRUE(first.has_seed() && first.has_fingerprint());
  Take(&reply, End({2}));
  ASSERT_TRUE(GoesOn(&reply, Lost()));

  v1::GenerateReply end_again = First({});
  end_again.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(reply.Take(&end_again));
  v1::GenerateReply next = First({8}, 1);
  EXPECT_TRUE(reply.Take(&next));
  EXPECT_EQ(next.SerializeAsString(), Part({8}, 1).SerializeAsString());
  Take(&reply, End({}, 1));
  ASSERT_TRUE(GoesOn(&reply, Lost()));

  v1::GenerateReply last = end_again;
  last.set_first_position(2);
  last.set_text("x");
  last.add_logprobs(1);
  last.add_top_logprobs();
  last.mutable_session()->set_position(3);
  last.mutable_usage()->set_completion_tokens(3);
  last.mutable_durability()->set_position(3);
  EXPECT_TRUE(reply.Take(&last));
  v1::GenerateReply end_alone;
  end_alone.mutable_usage()->set_completion_tokens(3);
  end_alone.mutable_durability()->set_position(3);
  EXPECT_EQ(last.SerializeAsString(), end_alone.SerializeAsString());
}

TEST(ReplyResumeTest, WithoutResumeAReplyThatHasBegunEndsWithTheErrorOfItsCall) {
  ReplyResume reply = Resuming(Request(), false);
  EXPECT_TRUE(GoesOn(&reply, Lost("before")));
  Take(&reply, First({1}));
  EXPECT_EQ(EndOf(&reply, Lost("then")), Lost("then"));
  v1::GenerateRequest request = Request();
  request.mutable_resume()->set_fingerprint(kFingerprint);
  ReplyResume of_the_caller = Resuming(request, false);
  Take(&of_the_caller, First({1}));
  EXPECT_EQ(EndOf(&of_the_caller, Lost()), Lost());
}

TEST(ReplyResumeTest, WhatTheCallerResumesGoesOnBehindIt) {
  v1::GenerateRequest request = Request();
  request.mutable_resume()->set_fingerprint(kFingerprint);
  request.mutable_resume()->add_samples()->add_ids(1);
  ReplyResume reply = Resuming(request);
  ASSERT_TRUE(GoesOn(&reply, Lost()));
  EXPECT_EQ(reply.request().SerializeAsString(), request.SerializeAsString());
  v1::GenerateReply first = First({2});
  EXPECT_TRUE(reply.Take(&first));
  EXPECT_TRUE(first.has_seed());
  ASSERT_TRUE(GoesOn(&reply, Lost()));
  EXPECT_THAT(Received(reply), ElementsAre(ElementsAre(1, 2)));
}

TEST(ReplyResumeTest, APartOfAMultiplexIsTheSame) {
  ReplyResume reply = Resuming();
  v1::MultiplexPart part;
  part.set_key(9);
  part.set_fingerprint(kFingerprint);
  part.add_tokens(1);
  part.mutable_finish();
  EXPECT_TRUE(reply.Take(&part));
  ASSERT_TRUE(GoesOn(&reply, Lost()));
  EXPECT_THAT(Received(reply), ElementsAre(ElementsAre(1)));
  part.clear_tokens();
  part.mutable_usage();
  EXPECT_TRUE(reply.Take(&part));
  EXPECT_FALSE(part.has_fingerprint() || part.has_finish());
  EXPECT_EQ(part.key(), 9u);
}

}  // namespace
}  // namespace rivulet
