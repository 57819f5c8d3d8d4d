// SPDX-License-Identifier: Apache-2.0
// The C++ client's stream: replies as of lone calls, from any thread, and how it ends.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rivulet/multiplex.h"
#include "tests/e2e/server/test_server.h"

namespace rivulet::testing {
namespace {

// A reply that comes by itself; stops after `most` parts.
struct Coming {
  std::vector<int> tokens;
  int most = 1 << 30;
  int parts = 0;
  std::promise<absl::Status> ended;

  uint64_t Begin(Multiplex& stream, const v1::GenerateRequest& request,
                 absl::Duration timeout = absl::InfiniteDuration()) {
    return stream.Generate(
        request,
        [this](const v1::MultiplexPart& part) {
          tokens.insert(tokens.end(), part.tokens().begin(), part.tokens().end());
          return ++parts < most;
        },
        [this](const absl::Status& status) { ended.set_value(status); }, timeout);
  }
  absl::Status Wait() { return ended.get_future().get(); }
};

class MultiplexClientTest : public ::testing::Test {
 protected:
  TestServer server_{{kStream}};
  const Client client_ =
      *Client::Connect(absl::StrCat("127.0.0.1:", server_.server().port()), ClientOptions());
};

TEST_F(MultiplexClientTest, RepliesFromManyThreadsAreThoseOfLoneCalls) {
  constexpr int kThreads = 4, kEach = 50;
  const auto stream = client_.Multiplex();
  std::vector<std::vector<std::unique_ptr<Coming>>> replies(kThreads);
  std::vector<std::thread> threads;
  for (auto& own : replies) {
    threads.emplace_back([&own, &stream] {
      for (int i = 0; i < kEach; ++i) {
        own.push_back(std::make_unique<Coming>());
        own.back()->Begin(*stream, Request(kStream, static_cast<uint64_t>(i % 10), 20 + i % 10));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(stream->Finish().ok());
  for (auto& own : replies) {
    for (int i = 0; i < kEach; ++i) {
      Coming& reply = *own[static_cast<size_t>(i)];
      EXPECT_TRUE(reply.Wait().ok());
      const auto alone =
          Generate(server_.stub(), Request(kStream, static_cast<uint64_t>(i % 10), 20 + i % 10));
      EXPECT_EQ(reply.tokens, alone.tokens.at(0));
    }
  }
}

TEST_F(MultiplexClientTest, OneEndsByFalseByCancelByTimeoutOrByAnErrorOfItsOwn) {
  const auto stream = client_.Multiplex();
  Coming stopped, cancelled, late, bad, good;
  stopped.most = 3;
  stopped.Begin(*stream, Request(kStream, 1, kEndless));
  const uint64_t key = cancelled.Begin(*stream, Request(kStream, 2, kEndless));
  late.Begin(*stream, Request(kStream, 3, kEndless), absl::Milliseconds(50));
  v1::GenerateRequest wrong = Request(kStream, 4, 1);
  wrong.mutable_sampling()->set_temperature(-1);
  bad.Begin(*stream, wrong);
  good.Begin(*stream, Request(kStream, 5, 10));
  EXPECT_TRUE(good.Wait().ok());
  EXPECT_EQ(stopped.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stopped.parts, 3);
  EXPECT_EQ(late.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  const absl::Status error = bad.Wait();
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorInfo(error).field, "sampling.temperature");
  stream->Cancel(key);
  stream->Cancel(key + 1000);
  EXPECT_EQ(cancelled.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(stream->Finish().ok());
  Coming after;
  after.Begin(*stream, Request(kStream, 1, 1));
  EXPECT_EQ(after.Wait().code(), absl::StatusCode::kFailedPrecondition);
  server_.AwaitIdle(kStream);
}

TEST_F(MultiplexClientTest, WhileFinishWaitsRequestsAreCancelledAndNoneBegins) {
  const auto stream = client_.Multiplex();
  Coming stopped, cancelled;
  stopped.most = 200;
  stopped.Begin(*stream, Request(kStream, 1, kEndless));
  const uint64_t key = cancelled.Begin(*stream, Request(kStream, 2, kEndless));
  std::thread finish([&] { EXPECT_TRUE(stream->Finish().ok()); });
  absl::Status status;
  while (status.ok()) {  // until Finish was called
    Coming late;
    late.Begin(*stream, Request(kStream, 3, 1));
    status = late.Wait();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  stream->Cancel(key);
  EXPECT_EQ(cancelled.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stopped.Wait().code(), absl::StatusCode::kCancelled);
  finish.join();
  server_.AwaitIdle(kStream);
  EXPECT_LT(server_.Load(kStream).tokens_total(), kEndless) << "none ran to its end";
}

TEST_F(MultiplexClientTest, WhatIsOpenEndsWithTheStream) {
  for (const bool by_stop : {false, true}) {
    std::stop_source stop;
    auto stream = client_.Multiplex({.stop = stop.get_token()});
    std::vector<std::unique_ptr<Coming>> replies;
    for (uint64_t i = 0; i < 20; ++i) {
      replies.push_back(std::make_unique<Coming>());
      replies.back()->Begin(*stream, Request(kStream, i, kEndless));
    }
    if (by_stop) {
      stop.request_stop();
      EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kCancelled);
    }
    stream.reset();
    for (const auto& reply : replies) {
      EXPECT_EQ(reply->Wait().code(), absl::StatusCode::kCancelled);
    }
    server_.AwaitIdle(kStream);
  }
}

TEST_F(MultiplexClientTest, AStreamWithoutRequestsEndsWell) {
  EXPECT_TRUE(client_.Multiplex()->Finish().ok());
  client_.Multiplex();  // dropped at once
}

TEST(MultiplexClientTargetTest, NobodyListens) {
  const Client client = *Client::Connect("127.0.0.1:1");
  const auto stream = client.Multiplex();
  Coming reply;
  reply.Begin(*stream, Request(kStream, 1, 1));
  EXPECT_EQ(reply.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kUnavailable);
}

TEST_F(MultiplexClientTest, ADrainedServerEndsTheStreamAndEveryReply) {
  const auto stream = client_.Multiplex();
  Coming open;
  open.Begin(*stream, Request(kStream, 1, kEndless));
  while (server_.Load(kStream).slots_used() == 0) absl::SleepFor(absl::Milliseconds(1));
  server_.server().Drain(absl::Now());
  EXPECT_EQ(open.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kUnavailable);
  Coming late;
  late.Begin(*stream, Request(kStream, 1, 1));
  EXPECT_EQ(late.Wait().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace rivulet::testing
