// SPDX-License-Identifier: Apache-2.0
// What bad calls about sessions are answered: code, reason, the client's own name of the field, and
// nothing changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/e2e/server/session_fixture.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;

class SessionErrorTest : public ::testing::Test {
 protected:
  TestServer server_{{kStream, kBounded, kText}};
  const Client client_ = Connect(server_.server());
  const Sessions sessions_{client_, kStream};

  struct Want {
    absl::StatusCode code;
    std::string reason, field, message;  // `message` is a part of it
  };
  static void Expect(const absl::Status& status, const Want& want) {
    EXPECT_EQ(status.code(), want.code) << status;
    EXPECT_EQ(GetErrorInfo(status).reason, want.reason) << status;
    EXPECT_EQ(GetErrorInfo(status).field, want.field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(want.message));
  }
  // Calls every RPC that names a session with the one of `id`, and expects that it fails.
  void ExpectAllFail(const Sessions& sessions, const std::string& id, absl::StatusCode code,
                     const std::string& reason) {
    v1::Session session;
    session.set_session_id(id);
    const Want in_ref{code, reason, "session.session_id", "session.session_id is \"" + id};
    const Want by_id{code, reason, "session_id", "session_id is \"" + id};
    Expect(sessions.Generate(sessions.GenerateOf(session, 3)).status, in_ref);
    Expect(sessions.Append(session, {1}).status(), in_ref);
    Expect(sessions.Fork(session, 1).status(), in_ref);
    Expect(sessions.Rewind(session, 0).status(), by_id);
    Expect(sessions.Snapshot(session).status(), by_id);
    Expect(sessions.Get(session).status(), by_id);
    Expect(sessions.Close(session), by_id);
  }
};

TEST_F(SessionErrorTest, UnknownAndMalformedIdsAreToldApart) {
  ExpectAllFail(sessions_, "0123456789abcdef0123456789abcdef", absl::StatusCode::kNotFound,
                "SESSION_NOT_FOUND");
  for (const char* id : {"", "nope", "0123456789ABCDEF0123456789ABCDEF"}) {
    ExpectAllFail(sessions_, id, absl::StatusCode::kInvalidArgument, "SESSION_ID_MALFORMED");
  }
  const v1::Session closed = sessions_.Open();
  ASSERT_TRUE(sessions_.Close(closed).ok());
  ExpectAllFail(sessions_, closed.session_id(), absl::StatusCode::kNotFound, "SESSION_NOT_FOUND");
}

TEST_F(SessionErrorTest, ASessionOfAnotherTenantOrModelDoesNotExist) {
  const Sessions mine(Connect(server_.server(), "mine"), kStream);
  const Sessions yours(Connect(server_.server(), "yours"), kStream);
  const v1::Session session = mine.Open();
  ASSERT_TRUE(mine.Append(session, {1, 2}).ok());
  const auto not_found = absl::StatusCode::kNotFound;
  ExpectAllFail(yours, session.session_id(), not_found, "SESSION_NOT_FOUND");
  ExpectAllFail(sessions_, session.session_id(), not_found, "SESSION_NOT_FOUND");
  ExpectAllFail(Sessions(Connect(server_.server(), "mine"), kBounded), session.session_id(),
                not_found, "SESSION_NOT_FOUND");
  // Nor does one of those who name no tenant.
  ExpectAllFail(yours, sessions_.Open().session_id(), not_found, "SESSION_NOT_FOUND");
  EXPECT_TRUE(yours.List().empty());
  EXPECT_EQ(sessions_.List().size(), 1u);
  ASSERT_EQ(mine.List().size(), 1u);
  EXPECT_EQ(mine.List()[0].progress().position(), 2);
  EXPECT_EQ(mine.Tokens(mine.GenerateOf(session, 20)), mine.Alone({1, 2}, 20));
  Expect(Sessions(Connect(server_.server(), "no/slash"), kStream).Append(session, {1}).status(),
         {absl::StatusCode::kInvalidArgument, "TENANT_MALFORMED", "rivulet-tenant", "no/slash"});
}

TEST_F(SessionErrorTest, GenerateNamesWhatIsWrong) {
  const v1::Session session = sessions_.Open();
  ASSERT_TRUE(sessions_.Append(session, {1, 2, 3}).ok());
  const auto fails = [&](const std::function<void(v1::GenerateRequest*)>& change,
                         const Want& want) {
    v1::GenerateRequest request = sessions_.GenerateOf(session, 5);
    change(&request);
    Expect(sessions_.Generate(request).status, want);
  };
  fails([](auto* request) { request->mutable_session()->set_position(4); },
        {absl::StatusCode::kOutOfRange, "POSITION_OUT_OF_RANGE", "session.position",
         "session.position is 4; this session's are 0 to 3"});
  fails([](auto* request) { request->mutable_session()->set_position(-1); },
        {absl::StatusCode::kOutOfRange, "POSITION_OUT_OF_RANGE", "session.position", "is -1"});
  fails([](auto* request) { request->mutable_session()->set_position(1); },
        {absl::StatusCode::kFailedPrecondition, "GIVEN_TOKENS_BEYOND_POSITION", "session.position",
         "session.position is 1"});
  fails([](auto* request) { request->mutable_session()->set_mark(std::string(65, 'm')); },
        {absl::StatusCode::kInvalidArgument, "MARK_LENGTH", "session.mark", "65 bytes"});
  fails([](auto* request) { request->set_num_samples(2); },
        {absl::StatusCode::kInvalidArgument, "NUM_SAMPLES_OUT_OF_RANGE", "num_samples",
         "num_samples is 2; allowed: 1 to 1"});
  fails([](auto* request) { request->mutable_tokens()->add_ids(37); },
        {absl::StatusCode::kInvalidArgument, "TOKEN_OUT_OF_RANGE", "prompt.tokens[0]", "is 37"});
  fails([](auto* request) { request->set_text("a"); },
        {absl::StatusCode::kInvalidArgument, "TEXT_NOT_SUPPORTED", "prompt.text", kStream});
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 20)), sessions_.Alone({1, 2, 3}, 20));
}

TEST_F(SessionErrorTest, AppendNamesWhatIsWrong) {
  const v1::Session session = sessions_.Open();
  ASSERT_TRUE(sessions_.Append(session, {1, 2, 3}).ok());
  const auto fails = [&](const std::function<void(v1::AppendRequest*)>& change, const Want& want) {
    v1::AppendRequest request = sessions_.AppendOf(session, {4, 5});
    change(&request);
    Expect(client_.Append(request).status(), want);
  };
  fails([](auto* request) { request->clear_session(); },
        {absl::StatusCode::kInvalidArgument, "SESSION_MISSING", "session", "required"});
  fails([](auto* request) { request->mutable_tokens()->set_ids(1, -1); },
        {absl::StatusCode::kInvalidArgument, "TOKEN_OUT_OF_RANGE", "content.tokens[1]", "is -1"});
  fails([](auto* request) { request->mutable_session()->set_position(9); },
        {absl::StatusCode::kOutOfRange, "POSITION_OUT_OF_RANGE", "session.position", "is 9"});
  fails([](auto* request) { request->set_logprobs(true); },
        {absl::StatusCode::kInvalidArgument, "NEEDS_SCORE", "logprobs", "score"});
  fails(
      [](auto* request) {
        request->set_score(true);
        request->add_output_positions(2);
      },
      {absl::StatusCode::kInvalidArgument, "OUTPUT_POSITION_OUT_OF_RANGE", "output_positions[0]",
       "is 2"});
  fails([](auto* request) { request->set_model("gpt"); },
        {absl::StatusCode::kNotFound, "MODEL_NOT_FOUND", "model", "gpt"});

  const Sessions text(client_, kText);
  v1::AppendRequest request = text.AppendOf(text.Open(), {});
  request.set_text("abz");
  Expect(client_.Append(request).status(),
         {absl::StatusCode::kInvalidArgument, "TEXT_NOT_IN_ALPHABET", "content.text", "U+007A"});
  request.set_text(std::string(41, 'a'));  // of 40 positions
  Expect(client_.Append(request).status(),
         {absl::StatusCode::kOutOfRange, "TOO_MANY_TOKENS", "content.text", "41"});
  EXPECT_EQ(sessions_.Tokens(sessions_.GenerateOf(session, 20)), sessions_.Alone({1, 2, 3}, 20));
}

// Where a sum with the position would overflow, and where it would not.
TEST_F(SessionErrorTest, NoPositionIsTooFarOut) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  for (const Sessions& sessions : {sessions_, Sessions(client_, kBounded)}) {
    const v1::Session session = sessions.Open();
    ASSERT_TRUE(sessions.Append(session, {1, 2, 3}).ok());
    for (const int64_t position : {kMax, kMax - 1, kMax - 3, kMin, kMin + 1, int64_t{1} << 62,
                                   int64_t{1} << 32, int64_t{1} << 31, int64_t{-1}, int64_t{4}}) {
      const auto refused = [position](const std::string& field) {
        return Want{absl::StatusCode::kOutOfRange, "POSITION_OUT_OF_RANGE", field,
                    absl::StrCat(field, " is ", position, "; this session's are 0 to 3")};
      };
      v1::AppendRequest append = sessions.AppendOf(session, {1});
      append.mutable_session()->set_position(position);
      Expect(client_.Append(append).status(), refused("session.position"));
      append.set_score(true);
      append.add_output_positions(0);
      Expect(client_.Append(append).status(), refused("session.position"));
      v1::GenerateRequest generate = sessions.GenerateOf(session, 5);
      generate.mutable_tokens()->add_ids(1);
      generate.mutable_session()->set_position(position);
      Expect(sessions.Generate(generate).status, refused("session.position"));
      v1::ForkSessionRequest fork;
      fork.set_model(session.model());
      fork.mutable_session()->set_session_id(session.session_id());
      fork.mutable_session()->set_position(position);
      Expect(client_.ForkSession(fork).status(), refused("session.position"));
      Expect(sessions.Rewind(session, position).status(), refused("to.position"));
      v1::SnapshotSessionRequest snapshot;
      snapshot.set_model(session.model());
      snapshot.set_session_id(session.session_id());
      snapshot.set_position(position);
      Expect(client_.SnapshotSession(snapshot).status(), refused("position"));
    }
    EXPECT_EQ(sessions.Get(session)->session().progress().position(), 3);
  }
}

TEST_F(SessionErrorTest, MarksAreLimited) {
  const v1::Session session = sessions_.Open();
  v1::AppendRequest request = sessions_.AppendOf(session, {});
  for (int i = 0; i < 64; ++i) {
    request.mutable_session()->set_mark(absl::StrCat("mark ", i));
    ASSERT_TRUE(client_.Append(request).ok());
  }
  EXPECT_TRUE(client_.Append(request).ok());  // one that is there already
  request.mutable_session()->set_mark("one more");
  Expect(client_.Append(request).status(),
         {absl::StatusCode::kFailedPrecondition, "MARK_LIMIT", "session.mark", "64"});
}

TEST_F(SessionErrorTest, OpenForkAndRewindNameWhatIsWrong) {
  v1::OpenSessionRequest open;
  Expect(client_.OpenSession(open).status(),
         {absl::StatusCode::kInvalidArgument, "MODEL_NAME_MISSING", "model", kStream});
  open.set_model(kStream);
  for (const int64_t seconds : {int64_t{0}, int64_t{-1}, int64_t{86401}}) {
    open.mutable_idle_timeout()->set_seconds(seconds);
    Expect(client_.OpenSession(open).status(),
           {absl::StatusCode::kInvalidArgument, "IDLE_TIMEOUT_OUT_OF_RANGE", "idle_timeout", ""});
  }
  open.mutable_idle_timeout()->set_seconds(86400);
  EXPECT_TRUE(client_.OpenSession(open).ok());

  const v1::Session session = sessions_.Open();
  for (const int count : {0, -1, 257}) {
    Expect(sessions_.Fork(session, count).status(),
           {absl::StatusCode::kInvalidArgument, "FORK_COUNT_OUT_OF_RANGE", "count",
            absl::StrCat("count is ", count)});
  }
  Expect(sessions_.Rewind(session, std::nullopt).status(),
         {absl::StatusCode::kInvalidArgument, "REWIND_TARGET_MISSING", "to", "required"});
  Expect(
      sessions_.Rewind(session, 1).status(),
      {absl::StatusCode::kOutOfRange, "POSITION_OUT_OF_RANGE", "to.position", "to.position is 1"});
  Expect(sessions_.Rewind(session, std::nullopt, "no\nwhere").status(),
         {absl::StatusCode::kNotFound, "MARK_NOT_FOUND", "to.mark", "to.mark is \"no\\nwhere\""});
  EXPECT_EQ(sessions_.List().size(), 2u);
}

TEST(SessionLimitTest, TheServersLimitsHold) {
  ServerConfig config;
  config.max_open_sessions = 2;
  config.session_state_mib = 0;
  TestServer server({kStream}, config);
  const Sessions sessions(Connect(server.server()), kStream);
  const v1::Session session = sessions.Open();
  EXPECT_EQ(ReasonOf(sessions.Fork(session, 2).status()), "SESSION_LIMIT");
  sessions.Open();
  v1::OpenSessionRequest open;
  const absl::Status refused = sessions.client().OpenSession(open).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "SESSION_LIMIT");
  EXPECT_GT(GetErrorInfo(refused).retry_delay, absl::ZeroDuration());
  // No state is kept, and nobody notices.
  const std::vector<int> first = sessions.Tokens(sessions.GenerateOf(session, 20));
  EXPECT_EQ(server.Load(kStream).session_state_bytes(), 0);
  EXPECT_EQ(Join(first, sessions.Tokens(sessions.GenerateOf(session, 20))), sessions.Alone({}, 40));
}

TEST_F(SessionErrorTest, AnAppendAtTheModelsEndIsRefusedWhole) {
  const Sessions bounded(client_, kBounded);  // 48 positions
  const v1::Session session = bounded.Open();
  ASSERT_TRUE(bounded.Append(session, std::vector<int>(40, 3)).ok());
  Expect(bounded.Append(session, std::vector<int>(9, 4)).status(),
         {absl::StatusCode::kOutOfRange, "TOO_MANY_TOKENS", "content.tokens", "49"});
  EXPECT_EQ(bounded.List().at(0).progress().position(), 40);
  EXPECT_EQ(bounded.Tokens(bounded.GenerateOf(session, 100)),
            bounded.Alone(std::vector<int>(40, 3), 100));
}

}  // namespace
}  // namespace rivulet::testing
