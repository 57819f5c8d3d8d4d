// SPDX-License-Identifier: Apache-2.0
// How replies end: cancelled, late, abandoned, drained, refused; and what readers of any pace
// receive.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/e2e/server/test_server.h"
#include "tests/support/raw_rpc.h"
#include "tests/support/wire_error.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;

// A reply that has begun: its first message has been read.
struct Begun {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader;
  Collected collected;

  Begun(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request) {
    reader = stub.Generate(&context, request);
    v1::GenerateReply first;
    EXPECT_TRUE(reader->Read(&first));
    Add(first, &collected);
  }
  const Collected& Rest() {
    Collect(reader.get(), &collected);
    return collected;
  }
};

TEST(LifecycleTest, CancellingFreesEverySlot) {
  TestServer server({kStream});
  v1::GenerateRequest request = Request(kStream, 1, kEndless);
  request.set_num_samples(16);
  Begun reply(server.stub(), request);
  EXPECT_GE(server.Load(kStream).slots_used(), 1);
  reply.context.TryCancel();
  EXPECT_EQ(reply.Rest().status.error_code(), grpc::StatusCode::CANCELLED);
  server.AwaitIdle(kStream);
}

TEST(LifecycleTest, TheDeadlineEndsAReplyAndFreesItsSlot) {
  TestServer server({kStream});
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
  Collected collected;
  Collect(server.stub().Generate(&context, Request(kStream, 1, kEndless)).get(), &collected);
  EXPECT_EQ(collected.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.AwaitIdle(kStream);
}

TEST(LifecycleTest, AClientThatVanishesFreesItsSlot) {
  TestServer server({kStream});
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.server().port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const int same_socket = dup(fd);  // gRPC owns fd
  auto stub = v1::InferenceService::NewStub(grpc::CreateInsecureChannelFromFd("vanishing", fd));
  Begun reply(*stub, Request(kStream, 1, kEndless));
  EXPECT_EQ(server.Load(kStream).slots_used(), 1);
  shutdown(same_socket, SHUT_RDWR);
  EXPECT_FALSE(reply.Rest().status.ok());
  server.AwaitIdle(kStream);
  close(same_socket);
}

TEST(LifecycleTest, ADrainLetsRunningRepliesEndAndRefusesNewOnes) {
  constexpr int kReplies = 20;
  constexpr int kTokens = 3000;
  TestServer server({kStream, kBounded});
  const Collected alone = Generate(server.stub(), Request(kStream, 3, kTokens));
  std::vector<std::unique_ptr<Begun>> replies;
  for (int i = 0; i < kReplies; ++i) {
    replies.push_back(std::make_unique<Begun>(server.stub(), Request(kStream, 3, kTokens)));
  }
  // Keeps the drain going until the answers below are in: in process nothing moves on before it is
  // read.
  auto in_process = v1::InferenceService::NewStub(server.server().InProcessChannel());
  Begun held(*in_process, Request(kStream, 4, 100000));
  bool all_ended = false;
  std::thread drain([&] { all_ended = server.server().Drain(absl::Now() + absl::Minutes(5)); });
  while (!server.Load(kStream).draining() || !server.Load(kBounded).draining()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  for (const char* model : {kStream, kBounded}) {
    const WireError error = Unpack(Generate(server.stub(), Request(model, 1, 1)).status);
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(error.reason, "DRAINING");
    EXPECT_EQ(Health(server.channel(), model), "NOT_SERVING");
  }
  EXPECT_EQ(Health(server.channel(), ""), "NOT_SERVING");
  for (auto& reply : replies) {
    const Collected& rest = reply->Rest();
    EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
    EXPECT_EQ(rest.tokens, alone.tokens);
  }
  EXPECT_TRUE(held.Rest().status.ok());
  drain.join();
  EXPECT_TRUE(all_ended);
}

TEST(LifecycleTest, AnAnnouncedDrainIsSeenBeforeAnythingIsRefused) {
  TestServer server({kStream, kBounded});
  const Collected before = Generate(server.stub(), Request(kStream, 3, 100));
  server.server().AnnounceDrain();
  for (const char* service : {"", kStream, kBounded}) {
    EXPECT_EQ(Health(server.channel(), service), "NOT_SERVING") << service;
  }
  EXPECT_FALSE(server.Load(kStream).draining());
  const Collected meanwhile = Generate(server.stub(), Request(kStream, 3, 100));
  EXPECT_TRUE(meanwhile.status.ok()) << meanwhile.status.error_message();
  EXPECT_EQ(meanwhile.tokens, before.tokens);
  EXPECT_TRUE(server.server().Drain(absl::Now() + absl::Minutes(1)));
}

TEST(LifecycleTest, AnOldConnectionIsSentAwayAndItsReplyGoesOn) {
  ServerConfig config;
  config.max_connection_age_seconds = 1;
  TestServer server({kStream}, config);
  Begun reply(server.stub(), Request(kStream, 1, kEndless));
  EXPECT_TRUE(server.channel()->WaitForStateChange(
      GRPC_CHANNEL_READY, absl::ToChronoTime(absl::Now() + absl::Minutes(1))));
  v1::GenerateReply next;
  EXPECT_TRUE(reply.reader->Read(&next));
  EXPECT_TRUE(Generate(server.stub(), Request(kStream, 2, 10)).status.ok());
  EXPECT_TRUE(reply.reader->Read(&next));
  reply.context.TryCancel();
  EXPECT_EQ(reply.Rest().status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST(LifecycleTest, TheLoadCountsConnectionsOfClients) {
  const auto load = [](const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    v1::GetLoadReply reply;
    const auto status =
        v1::InferenceService::NewStub(channel)->GetLoad(&context, v1::GetLoadRequest(), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.server();
  };
  ServerConfig config;
  config.max_connections = 1;
  TestServer server({kStream}, config);
  EXPECT_EQ(load(server.server().InProcessChannel()).connections_total(), 0);
  v1::ServerLoad one = load(server.channel());
  EXPECT_EQ(one.connections(), 1);
  EXPECT_EQ(one.max_connections(), 1);
  EXPECT_EQ(one.connections_total(), 1);
  EXPECT_EQ(one.connections_refused_total(), 0);
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.server().port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(other, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  char byte = 0;
  EXPECT_LE(recv(other, &byte, 1, 0), 0) << "closed at once";
  close(other);
  one = load(server.channel());
  EXPECT_EQ(one.connections(), 1);
  EXPECT_EQ(one.connections_refused_total(), 1);
}

TEST(LifecycleTest, ADrainEndsWhatIsLeftAtItsDeadline) {
  TestServer server({kStream});
  Begun reply(server.stub(), Request(kStream, 1, kEndless));
  Collected rest;
  std::thread client([&] { rest = reply.Rest(); });
  EXPECT_FALSE(server.server().Drain(absl::Now() + absl::Milliseconds(100)));
  client.join();
  const WireError error = Unpack(rest.status);
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DRAINING");
  EXPECT_TRUE(rest.in_order);
}

TEST(LifecycleTest, AServerThatEndsTellsItsClients) {
  auto server = std::make_unique<TestServer>(std::vector<std::string>{kStream});
  Begun reply(server->stub(), Request(kStream, 1, kEndless));
  Collected rest;
  std::thread client([&] { rest = reply.Rest(); });
  server.reset();
  client.join();
  EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(LifecycleTest, AFullQueueSaysWhenToTryAgain) {
  ServerConfig config;
  config.slots = 2;
  config.max_queue = 2;
  TestServer server({kStream}, config);
  Begun first(server.stub(), Request(kStream, 1, kEndless));
  Begun second(server.stub(), Request(kStream, 2, kEndless));
  std::vector<Collected> queued(2);
  std::vector<std::thread> waiting;
  for (uint64_t i = 0; i < 2; ++i) {
    waiting.emplace_back(
        [&, i] { queued[i] = Generate(server.stub(), Request(kStream, 3 + i, 5)); });
  }
  while (server.Load(kStream).queued() < 2) absl::SleepFor(absl::Milliseconds(1));
  const WireError error = Unpack(Generate(server.stub(), Request(kStream, 5, 5)).status);
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_GT(error.retry_seconds, 0);
  first.context.TryCancel();
  second.context.TryCancel();
  for (std::thread& thread : waiting) thread.join();
  for (Collected& reply : queued) {
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_EQ(reply.tokens[0].size(), 5u);
  }
  EXPECT_FALSE(first.Rest().status.ok());
  EXPECT_FALSE(second.Rest().status.ok());
  server.AwaitIdle(kStream);
}

TEST(LifecycleTest, ASlowReaderGetsFewLargeMessagesWithTheSameTokens) {
  constexpr int kTokens = 3000;
  TestServer server({kStream});
  const Collected fast = Generate(server.stub(), Request(kStream, 7, kTokens));
  // In process a write is over when the message is read: nothing is read before the engine is done.
  auto stub = v1::InferenceService::NewStub(server.server().InProcessChannel());
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, Request(kStream, 7, kTokens));
  while (server.Load(kStream).tokens_total() < 2 * kTokens) absl::SleepFor(absl::Milliseconds(1));
  server.AwaitIdle(kStream);
  Collected slow;
  Collect(reader.get(), &slow);
  EXPECT_TRUE(slow.status.ok());
  EXPECT_TRUE(slow.in_order);
  EXPECT_EQ(slow.tokens, fast.tokens);
  EXPECT_LE(slow.messages, 4);
  EXPECT_GE(slow.largest_message, kTokens / 3);
}

TEST(LifecycleTest, AReaderThatDoesNotReadPausesAloneAndLosesNothing) {
  constexpr int kTokens = 30000;
  TestServer server({kStream});
  auto stub = v1::InferenceService::NewStub(server.server().InProcessChannel());
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, Request(kStream, 8, kTokens));
  while (server.Load(kStream).tokens_total() < 4096) absl::SleepFor(absl::Milliseconds(1));
  const Collected beside = Generate(server.stub(), Request(kStream, 9, 2000));
  EXPECT_TRUE(beside.status.ok());
  EXPECT_EQ(server.Load(kStream).slots_used(), 1);
  EXPECT_LT(server.Load(kStream).tokens_total(), 2000 + kTokens);
  Collected late;
  Collect(reader.get(), &late);
  EXPECT_TRUE(late.status.ok());
  EXPECT_TRUE(late.in_order);
  EXPECT_EQ(late.tokens, Generate(server.stub(), Request(kStream, 8, kTokens)).tokens);
}

TEST(LifecycleTest, HealthKnowsTheServerAndEveryModel) {
  TestServer server({kStream, kImage});
  for (const char* service : {"", kStream, kImage}) {
    EXPECT_EQ(Health(server.channel(), service), "SERVING") << service;
  }
  EXPECT_EQ(Health(server.channel(), "gpt-2"), "NOT_FOUND");
}

TEST(LifecycleTest, ReflectionListsTheServicesUnlessItIsOff) {
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  for (const bool on : {true, false}) {
    ServerConfig config;
    config.reflection = on;
    TestServer server({kStream}, config);
    std::string response;
    const grpc::Status status = RawCall(server.channel(), method, StringField(7, "*"), &response);
    if (on) {
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_THAT(response, HasSubstr("rivulet.v1.InferenceService"));
      EXPECT_THAT(response, HasSubstr("rivulet.v1.SessionService"));
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    }
  }
}

}  // namespace
}  // namespace rivulet::testing
