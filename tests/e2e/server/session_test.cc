// SPDX-License-Identifier: Apache-2.0
// Sessions over the socket: whatever is appended, generated, rewound or forked, a session's tokens
// are those of one request with the same sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/e2e/server/session_fixture.h"

namespace rivulet::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class SessionTest : public ::testing::Test {
 protected:
  TestServer server_{{kStream, kNoBos, kImage, kText}};
  const Client client_ = Connect(server_.server());
  const Sessions sessions_{client_, kStream};
};

TEST_F(SessionTest, AppendAndGenerateEqualOneGenerate) {
  for (const char* model : {kStream, kNoBos}) {
    const Sessions sessions(client_, model);
    const v1::Session session = sessions.Open();
    EXPECT_EQ(session.model(), model);
    ASSERT_TRUE(sessions.Append(session, {3, 1}).ok());
    const auto appended = sessions.Append(session, {4, 1, 5});
    ASSERT_TRUE(appended.ok()) << appended.status();
    EXPECT_EQ(appended->progress().position(), 5);
    EXPECT_EQ(appended->progress().sequence_hash(), Fnv1a({3, 1, 4, 1, 5}));
    EXPECT_EQ(sessions.Tokens(sessions.GenerateOf(session, 30)),
              sessions.Alone({3, 1, 4, 1, 5}, 30))
        << model;
  }
}

TEST_F(SessionTest, TextAndImageValuesAreAppendedToo) {
  const Sessions text(client_, kText);
  v1::AppendRequest append = text.AppendOf(text.Open(), {});
  append.set_text("abc");
  ASSERT_TRUE(client_.Append(append).ok());
  v1::GenerateRequest more;
  more.set_model(kText);
  *more.mutable_session() = append.session();
  more.set_text("de");
  EXPECT_EQ(text.Tokens(more), text.Alone({0, 1, 2, 3, 4}, 100));

  const Sessions image(client_, kImage);
  append = image.AppendOf(image.Open(), {});
  append.set_image_values(std::string("\x80\xff\x00", 3));
  ASSERT_TRUE(client_.Append(append).ok());
  more.Clear();
  more.set_model(kImage);
  *more.mutable_session() = append.session();  // no length: what is left of the image
  const std::vector<int> rest = image.Tokens(more);
  EXPECT_EQ(rest.size(), 4u * 11 - 3);
  EXPECT_EQ(rest, image.Alone({0x80, 0xff, 0}, 41));
}

TEST_F(SessionTest, TwoGeneratesEqualOneAndEveryPartSaysWhereItIs) {
  const v1::Session session = sessions_.Open();
  v1::GenerateRequest first = sessions_.GenerateOf(session, 40);
  first.mutable_tokens()->add_ids(2);
  const std::vector<int> all = sessions_.Alone({2}, 80);
  std::vector<int> seen = {2};
  const auto check = [&](const v1::GenerateReply& part) {
    // The usage may come in a message of its own, which is no part of the sample.
    if (part.has_usage() && part.tokens_size() == 0 && !part.has_session()) return true;
    seen.insert(seen.end(), part.tokens().begin(), part.tokens().end());
    EXPECT_EQ(part.session().position(), static_cast<int64_t>(seen.size()));
    EXPECT_EQ(part.session().sequence_hash(), Fnv1a(seen));
    return true;
  };
  ASSERT_TRUE(client_.Generate(first, check).ok());
  ASSERT_TRUE(client_.Generate(sessions_.GenerateOf(session, 40), check).ok());
  EXPECT_EQ(seen, Join({2}, all));
}

TEST_F(SessionTest, TheSeedInForceIsReturned) {
  const v1::Session session = sessions_.Open(99);
  EXPECT_EQ(session.seed(), 99u);
  v1::GenerateRequest request = sessions_.GenerateOf(session, 5);
  EXPECT_EQ(sessions_.Generate(request).reply.seed, 99u);
  request.mutable_sampling()->set_seed(3);
  EXPECT_EQ(sessions_.Generate(request).reply.seed, 3u);
  v1::OpenSessionRequest open;
  open.set_model(kStream);
  const auto drawn = client_.OpenSession(open);
  ASSERT_TRUE(drawn.ok());
  EXPECT_NE(drawn->session().seed(), 0u);  // one in 2^64
  EXPECT_EQ(sessions_.Generate(sessions_.GenerateOf(drawn->session(), 5)).reply.seed,
            drawn->session().seed());
}

TEST_F(SessionTest, AfterALostReplyTheSameTokensComeAgain) {
  const v1::Session session = sessions_.Open();
  ASSERT_TRUE(sessions_.Append(session, {6, 5}).ok());
  const std::vector<int> all = sessions_.Alone({6, 5}, 10000);
  SessionReply lost = sessions_.Generate(sessions_.GenerateOf(session, 10000), /*parts=*/2);
  EXPECT_EQ(lost.status.code(), absl::StatusCode::kCancelled);
  // What this client saw is less than what the server drew.
  const auto position = static_cast<int64_t>(2 + lost.tokens().size());
  ASSERT_LT(position, 10002);
  SessionReply again =
      sessions_.Generate(sessions_.GenerateOf(session, 10002 - position, position));
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(Join(lost.tokens(), again.tokens()), all);
  EXPECT_EQ(again.progress.position(), 10002);
  EXPECT_EQ(again.progress.sequence_hash(), Fnv1a(Join({6, 5}, all)));
  // From the middle, and from before everything.
  for (const int64_t from : {5000, 2}) {
    const std::vector<int> rest = From(all, static_cast<size_t>(from - 2));
    EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 50, from)),
              std::vector<int>(rest.begin(), rest.begin() + 50));
  }
}

TEST_F(SessionTest, AnAppendThatIsRepeatedAtItsPositionIsFedOnce) {
  const v1::Session session = sessions_.Open();
  v1::AppendRequest append = sessions_.AppendOf(session, {3, 1, 4});
  append.mutable_session()->set_position(0);
  for (int i = 0; i < 2; ++i) {
    const auto reply = client_.Append(append);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->progress().position(), 3);
  }
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 20)), sessions_.Alone({3, 1, 4}, 20));
}

TEST_F(SessionTest, RewindsToPositionsAndMarks) {
  const v1::Session session = sessions_.Open();
  v1::AppendRequest append = sessions_.AppendOf(session, {9, 8, 7});
  append.mutable_session()->set_mark("prompt \xC3\xA9");
  ASSERT_TRUE(client_.Append(append).ok());
  v1::GenerateRequest generate = sessions_.GenerateOf(session, 10);
  generate.mutable_session()->set_mark("ten");
  const std::vector<int> ten = sessions_.Tokens(generate);
  const std::vector<int> more = sessions_.Tokens(sessions_.GenerateOf(session, 10));
  auto rewound = sessions_.Rewind(session, std::nullopt, "ten");
  ASSERT_TRUE(rewound.ok()) << rewound.status();
  EXPECT_EQ(rewound->session().progress().position(), 13);
  EXPECT_EQ(rewound->session().progress().sequence_hash(), Fnv1a(Join({9, 8, 7}, ten)));
  EXPECT_FALSE(rewound->session().busy());
  EXPECT_EQ(rewound->session().marks().size(), 2u);
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 10)), more);
  rewound = sessions_.Rewind(session, std::nullopt, "prompt \xC3\xA9");
  ASSERT_TRUE(rewound.ok()) << rewound.status();
  EXPECT_THAT(rewound->session().marks(), ElementsAre(Pair("prompt \xC3\xA9", 3)));
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 10)), ten);
  ASSERT_TRUE(sessions_.Rewind(session, 1).ok());
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 20)), sessions_.Alone({9}, 20));
}

TEST_F(SessionTest, ForksGoOnWithSeedsOfTheirOwn) {
  const v1::Session session = sessions_.Open();
  ASSERT_TRUE(sessions_.Append(session, {1, 2}).ok());
  const auto forks = sessions_.Fork(session, 3, /*seed=*/50);
  ASSERT_TRUE(forks.ok()) << forks.status();
  ASSERT_EQ(forks->sessions_size(), 3);
  for (int i = 0; i < 3; ++i) {
    const uint64_t seed = 50 + static_cast<uint64_t>(i);
    EXPECT_EQ(forks->sessions(i).seed(), seed);
    EXPECT_EQ(forks->sessions(i).progress().position(), 2);
    EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(forks->sessions(i), 20)),
              sessions_.Alone({1, 2}, 20, seed));
  }
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 20)), sessions_.Alone({1, 2}, 20));
  // One, with a seed drawn by the server, from an earlier position.
  v1::ForkSessionRequest one;
  one.set_model(kStream);
  one.mutable_session()->set_session_id(session.session_id());
  one.mutable_session()->set_position(1);
  const auto fork = client_.ForkSession(one);
  ASSERT_TRUE(fork.ok()) << fork.status();
  ASSERT_EQ(fork->sessions_size(), 1);
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(fork->sessions(0), 20)),
            sessions_.Alone({1}, 20, fork->sessions(0).seed()));
}

TEST_F(SessionTest, AppendScoresAsScoreDoes) {
  const v1::Session session = sessions_.Open();
  ASSERT_TRUE(sessions_.Append(session, {1, 2}).ok());
  v1::AppendRequest append = sessions_.AppendOf(session, {3, 4, 5});
  append.set_score(true);
  append.set_logprobs(true);
  append.add_output_positions(2);
  const auto appended = client_.Append(append);
  ASSERT_TRUE(appended.ok()) << appended.status();
  v1::ScoreRequest score;
  score.set_model(kStream);
  for (const int id : {1, 2, 3, 4, 5}) score.mutable_tokens()->add_ids(id);
  score.set_logprobs(true);
  score.add_output_positions(4);
  const auto whole = client_.Score(score);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(appended->num_scored(), 3);
  ASSERT_EQ(whole->logprobs_size(), 5);
  EXPECT_THAT(appended->logprobs(),
              ElementsAre(whole->logprobs(2), whole->logprobs(3), whole->logprobs(4)));
  ASSERT_EQ(appended->outputs_size(), 1);
  EXPECT_EQ(appended->outputs(0).SerializeAsString(), whole->outputs(0).SerializeAsString());
  EXPECT_GT(appended->nll_nats(), 0);
}

TEST_F(SessionTest, CloseEndsARunningReply) {
  const v1::Session session = sessions_.Open();
  const absl::Status ended =
      client_.Generate(sessions_.GenerateOf(session, 1 << 20), [&](const v1::GenerateReply& part) {
        if (part.has_seed()) {
          EXPECT_TRUE(sessions_.Close(session).ok());
        }
        return true;
      });
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ReasonOf(ended), "SESSION_CLOSED");
  EXPECT_EQ(ReasonOf(sessions_.Close(session)), "SESSION_NOT_FOUND");
  server_.AwaitIdle(kStream);
  EXPECT_EQ(server_.Load(kStream).sessions(), 0);
}

TEST_F(SessionTest, MoreRequestsThanMayWaitAreRefused) {
  const v1::Session session = sessions_.Open();
  absl::Notification started, go_on;
  absl::Status running;
  std::thread reader([&] {
    // Nobody reads on, so the reply is paused and its session busy.
    running = client_.Generate(sessions_.GenerateOf(session, 1 << 20),
                               [&](const v1::GenerateReply& part) {
                                 if (!part.has_seed()) return true;
                                 started.Notify();
                                 go_on.WaitForNotification();
                                 return true;
                               });
  });
  started.WaitForNotification();
  EXPECT_TRUE(sessions_.List().at(0).busy());
  std::vector<absl::Status> ends(16);
  std::vector<std::thread> waiting;
  for (absl::Status& end : ends) {
    waiting.emplace_back([&] { end = sessions_.Append(session, {1}).status(); });
  }
  while (server_.Load(kStream).queued() < 16) absl::SleepFor(absl::Milliseconds(1));
  const absl::Status refused = sessions_.Append(session, {1}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "SESSION_BUSY");
  EXPECT_EQ(GetErrorInfo(refused).field, "session.session_id");
  EXPECT_GT(GetErrorInfo(refused).retry_delay, absl::ZeroDuration());
  EXPECT_TRUE(sessions_.Close(session).ok());
  go_on.Notify();
  reader.join();
  for (std::thread& thread : waiting) thread.join();
  for (const absl::Status& end : ends) EXPECT_EQ(ReasonOf(end), "SESSION_CLOSED") << end;
  EXPECT_EQ(ReasonOf(running), "SESSION_CLOSED") << running;
}

TEST_F(SessionTest, SessionsAreListedAndCounted) {
  const v1::Session first = sessions_.Open(), second = sessions_.Open();
  ASSERT_TRUE(sessions_.Append(first, {1, 2, 3}).ok());
  const std::vector<v1::Session> listed = sessions_.List();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].session_id(), second.session_id());  // used longest ago
  EXPECT_EQ(listed[1].session_id(), first.session_id());
  EXPECT_EQ(listed[1].model(), kStream);
  EXPECT_EQ(listed[1].progress().position(), 3);
  EXPECT_EQ(listed[1].idle_timeout().seconds(), 600);
  EXPECT_GT(listed[1].state_bytes(), 0);
  EXPECT_FALSE(listed[1].busy());
  EXPECT_TRUE(Sessions(client_, kText).List().empty());
  const v1::ModelLoad load = server_.Load(kStream);
  EXPECT_EQ(load.sessions(), 2);
  EXPECT_EQ(load.session_state_bytes(), listed[1].state_bytes());
  EXPECT_EQ(server_.Load(kText).sessions(), 0);
  ASSERT_TRUE(sessions_.Close(first).ok());
  ASSERT_TRUE(sessions_.Close(second).ok());
  EXPECT_TRUE(sessions_.List().empty());
  EXPECT_EQ(server_.Load(kStream).session_state_bytes(), 0);
}

TEST_F(SessionTest, AnIdleSessionIsClosed) {
  v1::OpenSessionRequest open;
  open.set_model(kStream);
  open.mutable_idle_timeout()->set_seconds(1);
  const auto session = client_.OpenSession(open);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->session().idle_timeout().seconds(), 1);
  while (server_.Load(kStream).sessions() > 0) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(ReasonOf(sessions_.Append(session->session(), {1}).status()), "SESSION_NOT_FOUND");
}

}  // namespace
}  // namespace rivulet::testing
