// SPDX-License-Identifier: Apache-2.0
// Client::GenerateAsync over a socket: the same replies as Generate, many at once, and how they
// end.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rivulet/client.h"
#include "tests/e2e/server/test_server.h"

namespace rivulet::testing {
namespace {

Client Connect(TestServer& server, const ClientOptions& options = {}) {
  return *Client::Connect(absl::StrCat("127.0.0.1:", server.server().port()), options);
}

// A reply that comes by itself.
struct Coming {
  Collected collected;
  std::promise<absl::Status> ended;

  void Begin(const Client& client, const v1::GenerateRequest& request,
             const CallOptions& options = {}) {
    client.GenerateAsync(
        request,
        [this](const v1::GenerateReply& part) {
          Add(part, &collected);
          return true;
        },
        [this](absl::Status status) { ended.set_value(std::move(status)); }, options);
  }
};

TEST(GenerateAsyncTest, ThousandRepliesAtOnceAreThoseOfCallsThatWait) {
  constexpr int kReplies = 1000, kSeeds = 10;
  ServerConfig config;
  config.slots = 8;                 // most of them wait
  config.max_queue = 2 * kReplies;  // one tenant may fill 7/8 of it
  TestServer server({kStream}, config);
  const Client client = Connect(server);
  std::vector<Collected> alone;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    alone.push_back(Generate(server.stub(), Request(kStream, seed, 20)));
  }
  std::vector<std::unique_ptr<Coming>> replies;
  for (int i = 0; i < kReplies; ++i) {
    replies.push_back(std::make_unique<Coming>());
    replies.back()->Begin(client, Request(kStream, static_cast<uint64_t>(i % kSeeds), 20));
  }
  for (int i = 0; i < kReplies; ++i) {
    Coming& reply = *replies[static_cast<size_t>(i)];
    EXPECT_EQ(reply.ended.get_future().get(), absl::OkStatus());
    EXPECT_TRUE(reply.collected.in_order);
    EXPECT_EQ(reply.collected.tokens, alone[static_cast<size_t>(i % kSeeds)].tokens);
    EXPECT_EQ(reply.collected.usage.completion_tokens(), 20);
  }
}

TEST(GenerateAsyncTest, TheMetadataOfACallReachesTheServer) {
  TestServer server({kStream});
  const Client client = Connect(server);
  CallOptions options;
  ASSERT_TRUE(options.metadata.Add("x-request-id", "order-66").ok());
  v1::GenerateRequest refused = Request(kStream, 1, 5);
  refused.mutable_sampling()->set_temperature(-1);
  Coming reply;
  reply.Begin(client, refused, options);
  EXPECT_EQ(GetErrorInfo(reply.ended.get_future().get()).request_id, "order-66");
  const absl::Status unary = client.GetModel("no-such-model", options).status();
  EXPECT_EQ(GetErrorInfo(unary).request_id, "order-66");
}

TEST(GenerateAsyncTest, FalseEndsTheReplyAndIsNotAskedAgain) {
  TestServer server({kStream});
  const Client client = Connect(server);
  std::atomic<int> parts = 0;
  std::promise<absl::Status> ended;
  client.GenerateAsync(
      Request(kStream, 1, kEndless), [&](const v1::GenerateReply&) { return ++parts < 3; },
      [&](absl::Status status) { ended.set_value(std::move(status)); });
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(parts, 3);
  server.AwaitIdle(kStream);
}

TEST(GenerateAsyncTest, StopAndDeadlineEndTheReplyAndFreeItsSlot) {
  TestServer server({kStream});
  const Client client = Connect(server);
  Coming stopped, late;
  std::stop_source stop;
  stopped.Begin(client, Request(kStream, 1, kEndless), {.stop = stop.get_token()});
  late.Begin(client, Request(kStream, 2, kEndless),
             {.deadline = absl::Now() + absl::Milliseconds(200)});
  EXPECT_EQ(late.ended.get_future().get().code(), absl::StatusCode::kDeadlineExceeded);
  stop.request_stop();
  EXPECT_EQ(stopped.ended.get_future().get().code(), absl::StatusCode::kCancelled);
  server.AwaitIdle(kStream);
}

TEST(GenerateAsyncTest, ErrorsBringTheReasonOfTheServer) {
  TestServer server({kStream});
  const Client client = Connect(server);
  Coming reply;
  reply.Begin(client, Request("nobody", 1, 1));
  const absl::Status status = reply.ended.get_future().get();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorInfo(status).reason, "MODEL_NOT_FOUND");
  EXPECT_EQ(reply.collected.messages, 0);
}

}  // namespace
}  // namespace rivulet::testing
