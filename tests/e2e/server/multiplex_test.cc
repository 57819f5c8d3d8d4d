// SPDX-License-Identifier: Apache-2.0
// Many requests over one stream: each gets what it would get alone, its own errors and its own end.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rivulet/v1/multiplex.grpc.pb.h"
#include "tests/e2e/server/session_fixture.h"
#include "tests/support/wire_error.h"

namespace rivulet::testing {
namespace {

WireError Unpack(const google::rpc::Status& status) {
  return testing::Unpack(grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                                      status.message(), status.SerializeAsString()));
}

v1::GenerateReply AsReply(const v1::MultiplexPart& part) {
  v1::GenerateReply reply;  // the same fields by the same numbers
  EXPECT_TRUE(reply.ParseFromString(part.SerializeAsString()));
  reply.DiscardUnknownFields();
  return reply;
}

// A stream whose messages the test reads when it likes.
class Stream {
 public:
  explicit Stream(TestServer& server, absl::Duration timeout = absl::Minutes(2))
      : Stream(server.channel(), timeout) {}
  Stream(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    stream_ = v1::MultiplexService::NewStub(channel)->Multiplex(&context_);
  }

  void Begin(uint64_t key, const v1::GenerateRequest& request) {
    v1::MultiplexRequest message;
    message.set_key(key);
    *message.mutable_generate() = request;
    Write(message);
  }
  void Cancel(uint64_t key) {
    v1::MultiplexRequest message;
    message.set_key(key);
    message.mutable_cancel();
    Write(message);
  }
  void Write(const v1::MultiplexRequest& message) { EXPECT_TRUE(stream_->Write(message)); }
  void Close() { EXPECT_TRUE(stream_->WritesDone()); }
  void CancelAll() { context_.TryCancel(); }

  // False at the end of the stream.
  bool Read() {
    v1::MultiplexReply reply;
    if (!stream_->Read(&reply)) return false;
    ++messages;
    for (const v1::MultiplexPart& part : reply.parts()) {
      if (part.has_error()) {
        errors[part.key()] = Unpack(part.error());
      } else if (part.has_refused()) {
        refusals.emplace_back(part.key(), Unpack(part.refused()));
      } else {
        Add(AsReply(part), &replies[part.key()]);
        if (part.has_usage()) ++ended;
      }
      if (part.has_session()) progress[part.key()] = part.session();
    }
    parts += reply.parts_size();
    largest = std::max(largest, reply.ByteSizeLong());
    return true;
  }
  // Until request `key` has a part, or an end.
  void ReadUntil(uint64_t key) {
    while (!replies.contains(key) && !errors.contains(key)) ASSERT_TRUE(Read());
  }
  void ReadUntilError(uint64_t key) {
    while (!errors.contains(key)) ASSERT_TRUE(Read());
  }
  grpc::Status ReadAll() {
    while (Read()) {
    }
    return stream_->Finish();
  }

  std::map<uint64_t, Collected> replies;
  std::map<uint64_t, WireError> errors;
  std::vector<std::pair<uint64_t, WireError>> refusals;
  std::map<uint64_t, v1::SessionProgress> progress;
  int messages = 0, parts = 0, ended = 0;
  size_t largest = 0;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MultiplexRequest, v1::MultiplexReply>> stream_;
};

void ExpectSame(const Collected& reply, const Collected& alone, uint64_t key) {
  EXPECT_EQ(reply.tokens, alone.tokens) << key;
  EXPECT_EQ(reply.text, alone.text) << key;
  EXPECT_EQ(reply.seed, alone.seed) << key;
  EXPECT_TRUE(reply.in_order) << key;
  ASSERT_EQ(reply.finish.size(), alone.finish.size()) << key;
  for (const auto& [sample, finish] : alone.finish) {
    EXPECT_EQ(reply.finish.at(sample).SerializeAsString(), finish.SerializeAsString()) << key;
  }
  EXPECT_EQ(reply.usage.prompt_tokens(), alone.usage.prompt_tokens()) << key;
  EXPECT_EQ(reply.usage.completion_tokens(), alone.usage.completion_tokens()) << key;
}

TEST(MultiplexTest, TwoHundredRequestsSideBySideAreThoseOfLoneCalls) {
  TestServer server({kStream, kText});
  Stream stream(server);
  std::map<uint64_t, v1::GenerateRequest> requests;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t key = i * 0x123456789abcdefu;  // any number, 0 as well
    v1::GenerateRequest request = Request(kStream, i % 20, 1 + static_cast<int64_t>(i % 60));
    if (i % 5 == 1) request.set_num_samples(3);
    if (i % 5 == 2) request.mutable_logprobs()->set_enabled(true);
    if (i % 5 == 3) {
      request.set_model(kText);
      request.set_text("abc");
      request.set_max_tokens(30);
      request.mutable_stop()->add_strings("de");
    }
    if (i % 5 == 4) request.set_max_tokens(1);
    requests[key] = request;
    stream.Begin(key, request);
  }
  stream.Close();
  EXPECT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.ended, 200);
  EXPECT_TRUE(stream.errors.empty());
  EXPECT_LT(stream.messages, stream.parts) << "nothing travelled together";
  for (const auto& [key, request] : requests) {
    ExpectSame(stream.replies[key], Generate(server.stub(), request), key);
  }
}

TEST(MultiplexTest, ErrorsAreThoseOfGenerateAndEndTheirRequestAlone) {
  TestServer server({kStream, kText});
  Stream stream(server);
  stream.Begin(1, Request(kStream, 1, kEndless));
  std::map<uint64_t, v1::GenerateRequest> bad;
  for (uint64_t key = 2; key < 8; ++key) bad[key] = Request(kStream, 1, 10);
  bad[2].mutable_sampling()->set_top_p(2);
  bad[3].set_model("nobody");
  bad[4].mutable_tokens()->add_ids(99);
  bad[5].clear_prompt();
  bad[6].mutable_session()->set_session_id("5b3bd9ce3b5a46f29c4c0d2d9c1b8e11");  // unknown
  bad[7].set_model(kText);
  bad[7].set_text(std::string(50, 'a'));  // of 40 positions
  for (const auto& [key, request] : bad) stream.Begin(key, request);
  for (const auto& [key, request] : bad) {
    stream.ReadUntilError(key);
    const WireError alone = testing::Unpack(Generate(server.stub(), request).status);
    EXPECT_NE(alone.code, grpc::StatusCode::OK);
    const WireError& error = stream.errors[key];
    EXPECT_EQ(error.code, alone.code) << key;
    EXPECT_EQ(error.reason, alone.reason) << key;
    EXPECT_EQ(error.field, alone.field) << key;
    EXPECT_EQ(error.message, alone.message) << key;
    EXPECT_EQ(error.domain, "rivulet") << key;
  }
  // The key is free again, and the first request goes on.
  stream.Begin(2, Request(kStream, 2, 5));
  while (stream.ended == 0) ASSERT_TRUE(stream.Read());
  EXPECT_EQ(stream.replies[2].tokens, Generate(server.stub(), Request(kStream, 2, 5)).tokens);
  EXPECT_FALSE(stream.errors.contains(1));
  stream.Cancel(1);
  stream.Close();
  EXPECT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.errors[1].code, grpc::StatusCode::CANCELLED);
  server.AwaitIdle(kStream);
}

TEST(MultiplexTest, MessagesWithoutSenseAreRefusedAndTouchNothing) {
  TestServer server({kStream});
  Stream stream(server);
  stream.Begin(7, Request(kStream, 1, kEndless));
  stream.ReadUntil(7);
  stream.Begin(7, Request(kStream, 2, 1));
  stream.Cancel(8);
  v1::MultiplexRequest empty;
  empty.set_key(9);
  stream.Write(empty);
  while (stream.refusals.size() < 3) ASSERT_TRUE(stream.Read());
  const std::vector<std::pair<uint64_t, std::pair<std::string, std::string>>> want = {
      {7, {"KEY_IN_USE", "key"}}, {8, {"KEY_NOT_OPEN", "key"}}, {9, {"ACTION_MISSING", "action"}}};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(stream.refusals[i].first, want[i].first);
    EXPECT_EQ(stream.refusals[i].second.reason, want[i].second.first);
    EXPECT_EQ(stream.refusals[i].second.field, want[i].second.second);
  }
  EXPECT_EQ(stream.refusals[1].second.code, grpc::StatusCode::NOT_FOUND);
  stream.Cancel(7);
  stream.Close();
  EXPECT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.errors[7].code, grpc::StatusCode::CANCELLED);
  EXPECT_EQ(stream.errors.size(), 1u);
  EXPECT_GT(stream.replies[7].tokens[0].size(), 0u);
  server.AwaitIdle(kStream);
}

TEST(MultiplexTest, ATimeoutEndsItsOwnRequest) {
  TestServer server({kStream});
  Stream stream(server);
  const auto begin = [&stream](uint64_t key, int64_t seconds, int nanos) {
    v1::MultiplexRequest message;
    message.set_key(key);
    *message.mutable_generate() = Request(kStream, key, kEndless);
    message.mutable_timeout()->set_seconds(seconds);
    message.mutable_timeout()->set_nanos(nanos);
    stream.Write(message);
  };
  begin(1, 3600, 0);
  begin(2, 0, 50'000'000);
  begin(3, 0, 0);
  begin(4, 1, -1);
  for (const uint64_t key : {2, 3, 4}) stream.ReadUntilError(key);
  EXPECT_EQ(stream.errors[2].code, grpc::StatusCode::DEADLINE_EXCEEDED);
  for (const uint64_t key : {3, 4}) {
    EXPECT_EQ(stream.errors[key].reason, "TIMEOUT_OUT_OF_RANGE");
    EXPECT_EQ(stream.errors[key].field, "timeout");
  }
  stream.ReadUntil(1);
  EXPECT_FALSE(stream.errors.contains(1));
  stream.CancelAll();
  EXPECT_EQ(stream.ReadAll().error_code(), grpc::StatusCode::CANCELLED);
  server.AwaitIdle(kStream);
}

TEST(MultiplexTest, TheStreamsDeadlineEndsAllOfIt) {
  TestServer server({kStream});
  Stream stream(server, absl::Milliseconds(300));
  for (uint64_t key = 0; key < 5; ++key) stream.Begin(key, Request(kStream, key, kEndless));
  EXPECT_EQ(stream.ReadAll().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.AwaitIdle(kStream);
}

TEST(MultiplexTest, NoMoreRequestsAreOpenThanTheServerAllows) {
  ServerConfig config;
  config.max_multiplexed = 2;
  TestServer server({kStream}, config);
  Stream stream(server);
  for (uint64_t key = 1; key <= 3; ++key) stream.Begin(key, Request(kStream, key, kEndless));
  stream.ReadUntilError(3);
  EXPECT_EQ(stream.errors[3].code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(stream.errors[3].reason, "OPEN_REQUEST_LIMIT");
  EXPECT_GT(stream.errors[3].retry_seconds, 0);
  EXPECT_EQ(server.Refusals("OPEN_REQUEST_LIMIT"), 1);
  stream.Cancel(1);
  stream.ReadUntilError(1);
  stream.Begin(3, Request(kStream, 3, 4));
  stream.Cancel(2);
  stream.Close();
  EXPECT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.replies[3].tokens, Generate(server.stub(), Request(kStream, 3, 4)).tokens);
}

TEST(MultiplexTest, ACancelledStreamFreesItsSlotsWhereverItIs) {
  TestServer server({kStream});
  for (int messages = 0; messages < 20; ++messages) {
    Stream stream(server);
    for (uint64_t key = 0; key < 6; ++key) {
      v1::GenerateRequest request = Request(kStream, key, key % 2 == 0 ? kEndless : 3);
      request.set_num_samples(2);
      stream.Begin(key, request);
    }
    if (messages % 2 == 1) stream.Close();
    for (int i = 0; i < messages; ++i) ASSERT_TRUE(stream.Read());
    stream.CancelAll();
    EXPECT_EQ(stream.ReadAll().error_code(), grpc::StatusCode::CANCELLED) << messages;
    server.AwaitIdle(kStream);
  }
}

TEST(MultiplexTest, CancellingOneChangesNoOther) {
  TestServer server({kStream});
  Stream stream(server);
  for (uint64_t key = 0; key < 20; ++key) {
    stream.Begin(key, Request(kStream, key, key % 2 == 0 ? kEndless : 400));
  }
  for (uint64_t key = 0; key < 20; key += 2) {
    stream.ReadUntil(key);
    stream.Cancel(key);
  }
  stream.Close();
  EXPECT_TRUE(stream.ReadAll().ok());
  for (uint64_t key = 0; key < 20; ++key) {
    const bool endless = key % 2 == 0;
    EXPECT_EQ(stream.errors.contains(key), endless);
    const Collected alone = Generate(server.stub(), Request(kStream, key, 400));
    const std::vector<int>& tokens = stream.replies[key].tokens[0];
    if (endless) {
      EXPECT_EQ(stream.errors[key].code, grpc::StatusCode::CANCELLED);
      for (size_t i = 0; i < std::min<size_t>(tokens.size(), 400); ++i) {
        ASSERT_EQ(tokens[i], alone.tokens.at(0)[i]) << key;
      }
    } else {
      EXPECT_EQ(tokens, alone.tokens.at(0)) << key;
    }
  }
}

TEST(MultiplexTest, AReaderThatDoesNotReadPausesItsRequests) {
  constexpr int64_t kTokens = RIVULET_SANITIZED ? 30'000 : 100'000;
  constexpr uint64_t kRequests = 8;
  TestServer server({kStream});
  grpc::ChannelArguments arguments;  // a connection that holds little for who does not read
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
  Stream stream(grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server.server().port()),
                                          grpc::InsecureChannelCredentials(), arguments),
                absl::Minutes(5));
  for (uint64_t key = 0; key < kRequests; ++key) stream.Begin(key, Request(kStream, key, kTokens));
  stream.Close();
  // Everything there is to pause has paused once no token is made any more.
  int64_t made = -1, before = -2;
  for (int still = 0; still < 20; still = made == before && made > 0 ? still + 1 : 0) {
    before = std::exchange(made, server.Load(kStream).tokens_total());
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LT(made, static_cast<int64_t>(kRequests) * kTokens * 3 / 4);
  EXPECT_EQ(Generate(server.stub(), Request(kStream, 1, 50)).tokens[0].size(), 50u);
  EXPECT_TRUE(stream.ReadAll().ok());
  for (uint64_t key = 0; key < kRequests; ++key) {
    EXPECT_EQ(std::ssize(stream.replies[key].tokens[0]), kTokens) << key;
    EXPECT_TRUE(stream.replies[key].in_order);
  }
  EXPECT_LT(stream.largest, size_t{160} << 10);  // one limit, and what one reply may hold beyond it
}

TEST(MultiplexTest, ErrorsThatNobodyReadsHoldUpReading) {
  TestServer server({kStream});
  Stream stream(server, absl::Minutes(1));
  v1::MultiplexRequest message;
  *message.mutable_generate() = Request(kStream, 1, 1);
  message.mutable_generate()->mutable_sampling()->set_top_p(2);
  constexpr int kRequests = 20'000;
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) stream.Write(message);
    stream.Close();
  });
  int errors = 0;
  while (stream.Read()) errors = stream.parts;
  writer.join();
  EXPECT_EQ(errors, kRequests);
  EXPECT_EQ(stream.errors[0].field, "sampling.top_p");
}

TEST(MultiplexTest, ADrainEndsAStreamWithoutRequests) {
  TestServer server({kStream});
  Stream stream(server);
  stream.Begin(1, Request(kStream, 1, 5));
  while (stream.ended == 0) ASSERT_TRUE(stream.Read());
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(server.server().Drain(absl::Now() + absl::Minutes(5)));
  EXPECT_LT(absl::Now() - begin, absl::Minutes(4)) << "it waited for the stream";
  const WireError error = testing::Unpack(stream.ReadAll());
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DRAINING");
}

TEST(MultiplexTest, SessionsGoOnInAStream) {
  TestServer server({kStream});
  const Sessions sessions(Connect(server.server()), kStream);
  const v1::Session session = sessions.Open();
  Stream stream(server);
  v1::GenerateRequest request = sessions.GenerateOf(session, 10);
  request.mutable_tokens()->add_ids(3);
  stream.Begin(1, request);
  while (stream.ended < 1) ASSERT_TRUE(stream.Read());
  EXPECT_EQ(stream.replies[1].tokens[0], sessions.Alone({3}, 10));
  EXPECT_EQ(stream.replies[1].seed, 7u);
  EXPECT_EQ(stream.progress[1].position(), 11);
  // Its end as the client knows it, then as it is no more.
  request = sessions.GenerateOf(session, 5, 11);
  request.mutable_session()->set_sequence_hash(stream.progress[1].sequence_hash());
  stream.Begin(2, request);
  while (stream.ended < 2) ASSERT_TRUE(stream.Read());
  EXPECT_EQ(Join(stream.replies[1].tokens[0], stream.replies[2].tokens[0]),
            sessions.Alone({3}, 15));
  stream.Begin(3, request);
  stream.ReadUntilError(3);
  EXPECT_EQ(stream.errors[3].code, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(stream.errors[3].reason, "SESSION_HASH_MISMATCH");
  EXPECT_EQ(stream.errors[3].field, "session.sequence_hash");
}

}  // namespace
}  // namespace rivulet::testing
