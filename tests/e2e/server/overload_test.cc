// SPDX-License-Identifier: Apache-2.0
// What happens to the others, and to itself, when a client does not read, a tenant asks for too
// much, or the server must go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/server/session_fixture.h"
#include "tests/support/wire_error.h"

namespace rivulet::testing {
namespace {

// A connection that takes about 1 KiB of a reply that its caller does not read.
std::shared_ptr<grpc::Channel> NarrowChannel(Server& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 10);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server.port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

// A reply whose caller has not read anything yet.
struct Unread {
  std::unique_ptr<v1::InferenceService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader;
  Collected collected;

  Unread(Server& server, const v1::GenerateRequest& request)
      : stub(v1::InferenceService::NewStub(NarrowChannel(server))),
        reader(stub->Generate(&context, request)) {}
  const Collected& Read() {
    Collect(reader.get(), &collected);
    return collected;
  }
};

template <typename Condition>
void Await(TestServer* server, Condition condition) {
  while (!condition(server->Load(kStream))) absl::SleepFor(absl::Milliseconds(1));
}

// Returns once the reply of the only request stands still.
void AwaitPause(TestServer* server) {
  for (int64_t before = -1;;) {
    const v1::ModelLoad load = server->Load(kStream);
    if (load.tokens_total() == before && load.slots_used() > 0) return;
    before = load.tokens_total();
    absl::SleepFor(absl::Milliseconds(50));
  }
}

TEST(OverloadTest, AReaderThatDoesNotReadGivesItsSlotAwayAndLosesNothing) {
  constexpr int64_t kTokens = 30000;
  ServerConfig config;
  config.slots = 1;
  TestServer server({kStream}, config);
  const Collected alone = Generate(server.stub(), Request(kStream, 5, kTokens));
  const Collected other_alone = Generate(server.stub(), Request(kStream, 6, 50));
  ASSERT_TRUE(alone.status.ok());
  Unread slow(server.server(), Request(kStream, 5, kTokens));
  AwaitPause(&server);
  EXPECT_LT(server.Load(kStream).tokens_total(), 2 * kTokens) << "it is paused";
  EXPECT_EQ(server.Load(kStream).slots_used(), 1);
  for (int i = 0; i < 3; ++i) {
    const Collected other = Generate(server.stub(), Request(kStream, 6, 50));
    EXPECT_TRUE(other.status.ok()) << other.status.error_message();
    EXPECT_EQ(other.tokens, other_alone.tokens);
    EXPECT_EQ(server.Load(kStream).parked(), 1);
  }
  const Collected& late = slow.Read();
  EXPECT_TRUE(late.status.ok()) << late.status.error_message();
  EXPECT_TRUE(late.in_order);
  EXPECT_EQ(late.tokens, alone.tokens);
  EXPECT_EQ(server.Load(kStream).cut_total(), 0);
  server.AwaitIdle(kStream);
}

TEST(OverloadTest, OneTenantsLongRepliesGiveUpTheirSlotsForAnothersToken) {
  ServerConfig config;
  config.slots = 2;
  TestServer server({kStream}, config);
  const auto generate = [&](const char* tenant, int64_t tokens, int samples) {
    grpc::ClientContext context;
    context.AddMetadata("rivulet-tenant", tenant);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::GenerateRequest request = Request(kStream, 3, tokens);
    request.set_num_samples(samples);
    Collected collected;
    Collect(server.stub().Generate(&context, request).get(), &collected);
    return collected;
  };
  constexpr int64_t kTokens = 20000;
  const Collected alone = generate("hoard", kTokens, 2), other_alone = generate("other", 1, 1);
  ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
  for (const bool endless : {false, true}) {
    const int64_t drawn = server.Load(kStream).tokens_total();
    grpc::ClientContext context;
    context.AddMetadata("rivulet-tenant", "hoard");
    v1::GenerateRequest request = Request(kStream, 3, endless ? kEndless : kTokens);
    request.set_num_samples(2);
    const auto reader = server.stub().Generate(&context, request);
    Collected hoard;
    std::thread hoarder([&] { Collect(reader.get(), &hoard); });
    Await(&server, [&](const v1::ModelLoad& load) { return load.tokens_total() > drawn + 400; });
    for (int i = 0; i < 3; ++i) {
      const Collected other = generate("other", 1, 1);
      EXPECT_TRUE(other.status.ok()) << other.status.error_message();
      EXPECT_EQ(other.tokens, other_alone.tokens);
    }
    EXPECT_GE(server.Load(kStream).preempted_total(), 2);
    if (endless) context.TryCancel();
    hoarder.join();
    if (endless) continue;
    EXPECT_TRUE(hoard.status.ok()) << hoard.status.error_message();
    EXPECT_EQ(hoard.tokens, alone.tokens);
  }
  server.AwaitIdle(kStream);
  EXPECT_EQ(server.Load(kStream).preempted(), 0);
}

TEST(OverloadTest, AReaderThatNeverReadsIsCutWithAllThatItHeld) {
  ServerConfig config;
  config.reader_timeout_seconds = 1;
  TestServer server({kStream}, config);
  Unread slow(server.server(), Request(kStream, 5, kEndless));
  // Too short to be paused: it ends well, but is not read either.
  Unread complete(server.server(), Request(kStream, 6, 3000));
  Await(&server, [](const v1::ModelLoad& load) { return load.cut_total() == 1; });
  server.AwaitIdle(kStream);
  const absl::Time give_up = absl::Now() + absl::Minutes(2);
  while (server.Refusals("READER_TOO_SLOW") < 2 && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(server.Refusals("READER_TOO_SLOW"), 2);
  // Its last messages wait for it a little longer. Then the call ends although nobody has read.
  EXPECT_TRUE(server.server().Drain(absl::Now() + absl::Minutes(5)));
  const Collected& late = slow.Read();
  EXPECT_TRUE(late.in_order);
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(late.status.error_message(), ::testing::HasSubstr("READER_TOO_SLOW"));
  EXPECT_EQ(complete.Read().status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(OverloadTest, RefusalsAreCountedByTheirReason) {
  ServerConfig config;
  config.slots = 1;
  config.max_queue = 1;
  config.max_open_sessions = 1;
  TestServer server({kStream}, config);
  const Sessions sessions(Connect(server.server()), kStream);
  sessions.Open();
  const auto refused = sessions.client().OpenSession([] {
    v1::OpenSessionRequest request;
    request.set_model(kStream);
    return request;
  }());
  EXPECT_EQ(ReasonOf(refused.status()), "SESSION_LIMIT");
  EXPECT_EQ(server.Refusals("SESSION_LIMIT"), 1);
  std::vector<std::unique_ptr<Unread>> busy;
  for (int i = 0; i < 2; ++i) {  // one has the slot, the other waits
    busy.push_back(std::make_unique<Unread>(server.server(), Request(kStream, 1, kEndless)));
    Await(&server,
          [&](const v1::ModelLoad& load) { return load.slots_used() + load.queued() > i; });
  }
  for (int i = 1; i <= 3; ++i) {
    const WireError error = Unpack(Generate(server.stub(), Request(kStream, 2, 5)).status);
    EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(server.Refusals(error.reason), i) << error.reason;
  }
  EXPECT_EQ(Unpack(Generate(server.stub(), Request("gpt-2", 2, 5)).status).reason,
            "MODEL_NOT_FOUND");
  EXPECT_EQ(server.Refusals("MODEL_NOT_FOUND"), 0);
  for (const auto& reply : busy) reply->context.TryCancel();
}

TEST(OverloadTest, ADrainSaysWhereToGoOnAndASnapshotGoesOnThereElsewhere) {
  TestServer here({kStream}), there({kStream});
  const Sessions from(Connect(here.server()), kStream), to(Connect(there.server()), kStream);
  const v1::Session session = from.Open();
  ASSERT_TRUE(from.Append(session, {1, 2, 3}).ok());
  const absl::StatusOr<std::string> snapshot = from.Snapshot(session);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  SessionReply cut;
  std::thread reply([&] { cut = from.Generate(from.GenerateOf(session, kEndless)); });
  Await(&here, [](const v1::ModelLoad& load) { return load.tokens_total() > 10; });
  EXPECT_FALSE(here.server().Drain(absl::Now() + absl::Milliseconds(50)));
  reply.join();
  const ErrorInfo error = GetErrorInfo(cut.status);
  EXPECT_EQ(cut.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(error.reason, "DRAINING");
  EXPECT_EQ(cut.progress.position(), 3 + static_cast<int64_t>(cut.tokens().size()));
  EXPECT_EQ(error.metadata.at("session_id"), session.session_id());
  EXPECT_EQ(error.metadata.at("session_position"), absl::StrCat(cut.progress.position()));
  const auto restored = to.Restore(*snapshot);
  ASSERT_TRUE(restored.ok()) << restored.status();
  const int64_t sent = static_cast<int64_t>(cut.tokens().size());
  EXPECT_EQ(From(to.Tokens(to.GenerateOf(restored->session(), sent + 5)), 0),
            to.Alone({1, 2, 3}, sent + 5));
  std::vector<int> again = to.Alone({1, 2, 3}, sent + 5);
  again.resize(static_cast<size_t>(sent));
  EXPECT_EQ(cut.tokens(), again);
}

TEST(OverloadTest, ATenantsFirstRequestDoesNotWaitForAnothersQueue) {
  constexpr int kCrowd = 60;
  constexpr int kTaken = 57;  // with the one that has the slot
  ServerConfig config;
  config.slots = 1;
  config.max_queue = 64;  // 56 of it for one tenant
  TestServer server({kStream}, config);
  const auto generate = [&](const char* tenant, uint64_t seed, int64_t tokens,
                            grpc::ClientContext* context) {
    context->AddMetadata("rivulet-tenant", tenant);
    Collected collected;
    Collect(server.stub().Generate(context, Request(kStream, seed, tokens)).get(), &collected);
    return collected;
  };
  grpc::ClientContext first;  // keeps the slot until everybody is here
  std::thread holder([&] { generate("crowd", 0, kEndless, &first); });
  Await(&server, [](const v1::ModelLoad& load) { return load.slots_used() == 1; });
  std::deque<Collected> crowd(kCrowd - 1);
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < crowd.size(); ++i) {
    threads.emplace_back([&, i] {
      grpc::ClientContext context;
      crowd[i] = generate("crowd", i, 3000, &context);
      if (crowd[i].status.ok()) ++ended;
    });
  }
  Await(&server, [](const v1::ModelLoad& load) { return load.refused_total() == kCrowd - kTaken; });
  grpc::ClientContext context;
  EXPECT_TRUE(generate("other", 1, 20, &context).status.ok());
  EXPECT_EQ(ended, 0) << "of the crowd, who came before and wait for a reply without end";
  const v1::ModelLoad load = server.Load(kStream);
  EXPECT_EQ(load.max_tenant_queue(), 56);
  EXPECT_GT(load.oldest_wait().seconds() + load.oldest_wait().nanos(), 0);
  first.TryCancel();
  holder.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, kTaken - 1);
  for (const Collected& reply : crowd) {
    if (reply.status.ok()) continue;
    EXPECT_EQ(Unpack(reply.status).reason, "TENANT_QUEUE_FULL");
    EXPECT_GT(Unpack(reply.status).retry_seconds, 0);
  }
  server.AwaitIdle(kStream);
  EXPECT_EQ(server.Load(kStream).tenants(), 0);
}

}  // namespace
}  // namespace rivulet::testing
