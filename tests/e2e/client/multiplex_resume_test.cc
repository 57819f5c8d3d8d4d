// SPDX-License-Identifier: Apache-2.0
// Multiplex where its streams and its requests are lost: which stream a request is sent on, and how
// the caller ends it. contract/lost_replies_test.py has the rest of "Lost replies" in
// client/README.md.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "rivulet/multiplex.h"
#include "tests/e2e/client/scripted_server.h"

namespace rivulet::testing {
namespace {

using grpc::Status;
using grpc::StatusCode;

// A reply that comes by itself; stops after `most` parts.
struct Resumed {
  std::vector<std::string> parts;
  size_t most = 1 << 30;
  std::promise<absl::Status> ended;
  std::function<void()> in_done = [] {};

  uint64_t Begin(Multiplex& stream, const v1::GenerateRequest& request,
                 absl::Duration timeout = absl::InfiniteDuration()) {
    return stream.Generate(
        request,
        [this](v1::MultiplexPart part) {
          part.clear_key();
          parts.push_back(part.SerializeAsString());
          return parts.size() < most;
        },
        [this](const absl::Status& status) {
          in_done();
          ended.set_value(status);  // the last: now the reply may go
        },
        timeout);
  }
  absl::Status Wait() { return ended.get_future().get(); }
};

std::vector<std::string> Whole(const v1::GenerateRequest& request) {
  std::vector<std::string> bytes;
  for (const v1::GenerateReply& part : ScriptedReply(request)) {
    bytes.push_back(ToMultiplex(part).SerializeAsString());
  }
  return bytes;
}

TEST(MultiplexResumeTest, ARequestThatIsRefusedForNowIsSentAgain) {
  const Status full = ServerError(StatusCode::RESOURCE_EXHAUSTED, "FULL", kSoon);
  ScriptedServer server({{.parts = 2, .end = Unavailable("DRAINING"), .ends_stream = false},
                         {.parts = 0, .end = full, .ends_stream = false},
                         {},
                         {.parts = 0, .end = full, .ends_stream = false}});
  const Client client = server.Connect();
  const auto stream = client.Multiplex();
  Resumed reply, refused;
  reply.Begin(*stream, ScriptedRequest(1, 4));
  EXPECT_EQ(reply.Wait(), absl::OkStatus());
  EXPECT_EQ(reply.parts, Whole(ScriptedRequest(1, 4)));
  refused.Begin(*stream, ScriptedRequest(1, 4));
  EXPECT_EQ(refused.Wait().code(), absl::StatusCode::kResourceExhausted) << "the first call";
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(server.streams(), 2) << "a draining server refuses the others on its stream, too";
}

TEST(MultiplexResumeTest, WhatRunsOnADrainingServerStaysThere) {
  ScriptedServer server({{.parts = 2, .holds = true},
                         {.parts = 0, .end = Unavailable("DRAINING"), .ends_stream = false}});
  const Client client = server.Connect();
  const auto stream = client.Multiplex();
  Resumed running, moved;
  const uint64_t key = running.Begin(*stream, ScriptedRequest(1, 4));
  moved.Begin(*stream, ScriptedRequest(1, 4));
  EXPECT_EQ(moved.Wait(), absl::OkStatus());
  EXPECT_EQ(server.requests().size(), 3u);
  stream->Cancel(key);
  EXPECT_EQ(running.Wait().code(), absl::StatusCode::kCancelled);
  server.AwaitCancels(1);
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(running.parts.size(), 2u);
}

TEST(MultiplexResumeTest, AnIdleStreamThatIsLostHurtsNobody) {
  ScriptedServer server({{}, {.parts = 0, .end = Unavailable("GONE")}});
  const Client client = server.Connect();
  const auto stream = client.Multiplex();
  for (int i = 0; i < 3; ++i) {
    Resumed reply;
    reply.Begin(*stream, ScriptedRequest(1, 2));
    EXPECT_EQ(reply.Wait(), absl::OkStatus());
  }
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(MultiplexResumeTest, ACallbackOfALostStreamMayBeginARequest) {
  ScriptedServer server({{.parts = 1, .end = Unavailable("GONE")}});
  const Client client = server.Connect();
  const auto stream = client.Multiplex({.resume = false});
  Resumed lost, next;
  lost.in_done = [&] { next.Begin(*stream, ScriptedRequest(1, 2)); };
  lost.Begin(*stream, ScriptedRequest(1, 2));
  EXPECT_EQ(lost.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(next.Wait(), absl::OkStatus());
  EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kUnavailable) << "of the first stream";
}

// Two requests wait, as long as nothing ends them: one whose stream is lost, one that was refused.
class WaitingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    refused_key_ = refused_.Begin(*stream_, ScriptedRequest(1, 4));
    lost_key_ = lost_.Begin(*stream_, ScriptedRequest(1, 4));
    server_.AwaitRequests(2);
    absl::SleepFor(absl::Milliseconds(20));  // a chance to begin the waits
  }

  ScriptedServer server_{
      {{.parts = 1,
        .end = ServerError(StatusCode::UNAVAILABLE, "DRAINING", kNever),
        .ends_stream = false},
       {.parts = 1, .end = ServerError(StatusCode::UNAVAILABLE, "GONE", kNever)}}};
  const Client client_ = server_.Connect();
  std::stop_source stop_;
  std::unique_ptr<Multiplex> stream_ = client_.Multiplex({.stop = stop_.get_token()});
  Resumed refused_, lost_;
  uint64_t refused_key_ = 0, lost_key_ = 0;
};

TEST_F(WaitingTest, CancelEndsThem) {
  stream_->Cancel(lost_key_);
  EXPECT_EQ(lost_.Wait().code(), absl::StatusCode::kCancelled);
  Resumed other;
  other.Begin(*stream_, ScriptedRequest(1, 4));
  EXPECT_EQ(other.Wait(), absl::OkStatus());
  stream_->Cancel(refused_key_);
  EXPECT_EQ(refused_.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(server_.requests().size(), 3u);
}

TEST_F(WaitingTest, StopEndsThem) {
  stop_.request_stop();
  EXPECT_EQ(refused_.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(lost_.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stream_->Finish().code(), absl::StatusCode::kCancelled);
}

TEST_F(WaitingTest, TheDestructorEndsThem) {
  stream_.reset();
  EXPECT_EQ(refused_.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(lost_.Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(WaitingTest, FinishWaitsForThem) {
  std::thread finish([&] { EXPECT_TRUE(stream_->Finish().ok()); });
  absl::Status status;
  while (status.ok()) {  // until Finish was called
    Resumed late;
    late.Begin(*stream_, ScriptedRequest(1, 1));
    status = late.Wait();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  stream_->Cancel(refused_key_);
  stream_->Cancel(lost_key_);
  finish.join();
}

TEST(MultiplexResumeTest, FinishWaitsForWhatIsSentAgain) {
  ScriptedServer server({{.parts = 2, .end = Unavailable("GONE", absl::Milliseconds(50))}});
  const Client client = server.Connect();
  const auto stream = client.Multiplex();
  Resumed reply;
  reply.Begin(*stream, ScriptedRequest(1, 4));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(reply.Wait(), absl::OkStatus());
}

TEST(MultiplexResumeTest, FinishClosesNoStreamOnWhichARequestIsSentAgain) {
  const Status full = ServerError(StatusCode::RESOURCE_EXHAUSTED, "FULL", absl::Nanoseconds(1));
  ScriptedServer server({{.parts = 0, .end = Unavailable("GONE", absl::Milliseconds(50))},
                         {.parts = 0, .end = full, .ends_stream = false}});
  server.KeepStreamsUntil(3);
  ClientOptions options;
  options.max_attempts = 3;
  const Client client = server.Connect(options);
  const auto stream = client.Multiplex();
  Resumed reply;
  reply.Begin(*stream, ScriptedRequest(1, 4));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(reply.Wait(), absl::OkStatus());
  EXPECT_EQ(server.requests().size(), 3u);
}

TEST(MultiplexResumeTest, FalseEndsAReplyThatWasResumed) {
  ScriptedServer server({{.parts = 2, .end = Unavailable("GONE")}, {.parts = 1, .holds = true}});
  const Client client = server.Connect();
  const auto stream = client.Multiplex();
  Resumed reply;
  reply.most = 3;
  reply.Begin(*stream, ScriptedRequest(1, 4));
  EXPECT_EQ(reply.Wait().code(), absl::StatusCode::kCancelled);
  server.AwaitCancels(1);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(MultiplexResumeTest, TimeoutAndCancelNeedNoServer) {
  ClientOptions options;
  options.wait_for_ready = true;
  const Client client = *Client::Connect("127.0.0.1:1", options);
  auto stream = client.Multiplex();
  Resumed late, cancelled, open;
  late.Begin(*stream, ScriptedRequest(1, 1), absl::Milliseconds(50));
  const uint64_t key = cancelled.Begin(*stream, ScriptedRequest(1, 1), kNever);
  open.Begin(*stream, ScriptedRequest(1, 1), kNever);
  EXPECT_EQ(late.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  stream->Cancel(key);
  EXPECT_EQ(cancelled.Wait().code(), absl::StatusCode::kCancelled);
  stream.reset();
  EXPECT_EQ(open.Wait().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace rivulet::testing
