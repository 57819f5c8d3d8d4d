// SPDX-License-Identifier: Apache-2.0
// How client sessions come, wait for each other, and end.
#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

TEST_F(EngineSessionTest, SessionsOfOthersAndUnknownOnesAreNotFound) {
  Start();
  SessionRef session = Open("mine");
  session.tenant = "yours";
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(session, 3))), "SESSION_NOT_FOUND");
  EXPECT_EQ(Append(session, {1}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Fork(session, 1, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Get(session).status().code(), absl::StatusCode::kNotFound);
  std::promise<std::string> closed;
  ASSERT_TRUE(CloseSession(engine_.get(), session, [&](const absl::Status& status) {
                closed.set_value(ReasonOf(status));
              }).ok());
  EXPECT_EQ(closed.get_future().get(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(List({"yours"})->sessions.empty());
  ExpectAtRest();
}

TEST_F(EngineSessionTest, RequestsOfOneSessionTakeEffectInTheirOrder) {
  Start();
  const SessionRef session = Open();
  probe_->AllowRuns(1);
  ReplyCollector first, second;
  ASSERT_TRUE(first.Start(engine_.get(), SpecOf(session, 5, {1})).ok());
  first.WaitForTokens(1);
  ASSERT_TRUE(second.Start(engine_.get(), SpecOf(session, 5, {2})).ok());
  probe_->AllowAll();
  ASSERT_TRUE(first.Wait().ok());
  ASSERT_TRUE(second.Wait().ok());
  for (const FakeRun& run : probe_->runs()) {
    EXPECT_EQ(run.rows.size(), 1u) << "the second waits though slots are free";
  }
  EXPECT_EQ(second.sample().tokens, Alone(Join(Join({1}, first.sample().tokens), {2}), 5));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ACancelledReplyLeavesWhatItGenerated) {
  Start();
  const SessionRef session = Open();
  probe_->AllowRuns(5);
  ReplyCollector reply;
  ASSERT_TRUE(reply.Start(engine_.get(), SpecOf(session, 50, {1})).ok());
  reply.WaitForTokens(4);
  engine_->Cancel(reply.id());
  probe_->AllowAll();
  EXPECT_EQ(reply.Wait().code(), absl::StatusCode::kCancelled);
  SessionRef from = session;
  from.position = 1 + 4;
  const std::vector<int32_t> all = Alone({1}, 20);
  EXPECT_EQ(Generate(SpecOf(from, 16)), std::vector<int32_t>(all.begin() + 4, all.end()));
  // One that never ran leaves nothing.
  GenerateSpec late = SpecOf(session, 5, {9});
  late.deadline = absl::FromUnixMillis(clock_ms_.load()) - absl::Seconds(1);
  EXPECT_EQ(GenerateError(late).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Rewind(session, 0)->position, 0);
  ExpectAtRest();
}

// A client that cancels a reply and rewinds cannot know whether its Generate arrives after that.
TEST_F(EngineSessionTest, ARequestThatFollowsACancelledReplyDropsWhatItLeft) {
  Start();
  SessionRef session = Open();
  ASSERT_TRUE(Append(session, {1, 2}).ok());
  const std::vector<int32_t> begun = {1, 2};
  session.position = 2;
  session.hash = HashTokens(kEmptySequenceHash, begun);
  const auto cancel_one = [&] {
    probe_->AllowRuns(5);
    ReplyCollector reply;
    ASSERT_TRUE(reply.Start(engine_.get(), SpecOf(session, 50, {9})).ok());
    reply.WaitForTokens(3);
    engine_->Cancel(reply.id());
    probe_->AllowAll();
    EXPECT_EQ(reply.Wait().code(), absl::StatusCode::kCancelled);
  };
  cancel_one();
  SessionRef other = session;  // it knows tokens that the session never held
  other.hash = *session.hash + 1;
  EXPECT_EQ(ReasonOf(Append(other, {5}).status()), "SESSION_HASH_MISMATCH");
  other = session;  // without the hash, it does not say what it knows
  other.hash.reset();
  EXPECT_EQ(ReasonOf(Append(other, {5}).status()), "GIVEN_TOKENS_BEYOND_POSITION");
  EXPECT_EQ(Fork(session, 1, 1)->at(0).position, 2);
  const auto appended = Append(session, {5});
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_EQ(appended->session->position, 3);

  // From before the cancelled reply on, and where something follows it, nothing is dropped.
  EXPECT_EQ(ReasonOf(Append(session, {6}).status()), "SESSION_HASH_MISMATCH");
  EXPECT_EQ(Rewind(session, 2)->position, 2);
  cancel_one();
  other = session;
  other.position = 1;
  other.hash = HashTokens(kEmptySequenceHash, std::span(begun).first(1));
  EXPECT_EQ(ReasonOf(Append(other, {5}).status()), "SESSION_HASH_MISMATCH");
  EXPECT_EQ(Generate(SpecOf(session, 4)), Alone({1, 2}, 4));
  EXPECT_EQ(ReasonOf(Append(session, {6}).status()), "SESSION_HASH_MISMATCH");
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ARepeatedRequestThatIsCancelledTakesNothingBack) {
  options_.states.max_memory_bytes = 0;  // so that the repeated one has tokens to feed, ...
  options_.prefill_tokens_idle = 1;      // ... each in a run of its own
  Start();
  SessionRef session = Open();
  session.position = 0;
  ASSERT_TRUE(Append(session, {5, 6, 7}).ok());
  ReplyCollector reply;
  probe_->AllowRuns(1);
  ASSERT_TRUE(reply.Start(engine_.get(), SpecOf(session, 5, {5, 6, 7})).ok());
  ASSERT_TRUE(Eventually([&] { return engine_->GetLoad().running == 1; }));
  engine_->Cancel(reply.id());
  probe_->AllowAll();
  EXPECT_EQ(reply.Wait().code(), absl::StatusCode::kCancelled);
  const auto kept = Rewind(session, 3);
  ASSERT_TRUE(kept.ok()) << kept.status();

  AppendSpec again;
  again.session = session;
  again.tokens = {5, 6, 7};
  probe_->AllowRuns(1);
  std::promise<absl::Status> ended;
  const auto id = engine_->Append(
      again, [&](const absl::StatusOr<ScoreResult>& result) { ended.set_value(result.status()); });
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(Eventually([&] { return engine_->GetLoad().running == 1; }));
  engine_->Cancel(*id);
  probe_->AllowAll();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  session.position = std::nullopt;
  EXPECT_EQ(Generate(SpecOf(session, 8)), Alone({5, 6, 7}, 8));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, CloseEndsWhatRunsAndWhatWaits) {
  options_.sessions.max_waiting = 1;
  Start();
  const SessionRef session = Open();
  probe_->AllowRuns(1);
  ReplyCollector running, waiting, refused;
  ASSERT_TRUE(running.Start(engine_.get(), SpecOf(session, 50, {1})).ok());
  running.WaitForTokens(1);
  ASSERT_TRUE(waiting.Start(engine_.get(), SpecOf(session, 5)).ok());
  ASSERT_TRUE(refused.Start(engine_.get(), SpecOf(session, 5)).ok());
  std::promise<absl::Status> closed;
  ASSERT_TRUE(CloseSession(engine_.get(), session, [&](const absl::Status& status) {
                closed.set_value(status);
              }).ok());
  probe_->AllowAll();
  EXPECT_TRUE(closed.get_future().get().ok());
  EXPECT_EQ(ReasonOf(running.Wait()), "SESSION_CLOSED");
  EXPECT_EQ(ReasonOf(waiting.Wait()), "SESSION_CLOSED");
  EXPECT_EQ(ReasonOf(refused.Wait()), "SESSION_BUSY");
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(session, 3))), "SESSION_NOT_FOUND");
  EXPECT_TRUE(Eventually([&] { return engine_->GetLoad().client_sessions == 0; }));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, AnIdleSessionEndsAfterItsTime) {
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {1}).ok());
  Advance(absl::ToInt64Milliseconds(options_.sessions.default_idle) - 1);
  ASSERT_TRUE(Append(session, {1}).ok());
  Advance(absl::ToInt64Milliseconds(options_.sessions.default_idle) + 1);
  EXPECT_TRUE(Eventually([&] { return engine_->GetLoad().client_sessions == 0; }));
  EXPECT_EQ(ReasonOf(Append(session, {1}).status()), "SESSION_NOT_FOUND");
}

TEST_F(EngineSessionTest, ManyMoreSessionsThanSlotsGoOnInTurn) {
  Start();  // four slots
  std::vector<SessionRef> sessions;
  for (int i = 0; i < 40; ++i) sessions.push_back(Open("t", static_cast<uint64_t>(i)));
  std::vector<std::vector<int32_t>> tokens(sessions.size());
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<ReplyCollector>> replies;
    for (const SessionRef& session : sessions) {
      replies.push_back(std::make_unique<ReplyCollector>());
      ASSERT_TRUE(replies.back()->Start(engine_.get(), SpecOf(session, 7)).ok());
    }
    for (size_t i = 0; i < sessions.size(); ++i) {
      ASSERT_TRUE(replies[i]->Wait().ok());
      tokens[i] = Join(std::move(tokens[i]), replies[i]->sample().tokens);
    }
  }
  for (size_t i = 0; i < sessions.size(); ++i) EXPECT_EQ(tokens[i], Alone({}, 21, i)) << i;
  EXPECT_EQ(engine_->GetLoad().client_sessions, 40);
  ExpectAtRest();
}

TEST_F(EngineSessionTest, AFailingBackendEndsSessionsRequestsAndNothingHangs) {
  for (int64_t call = 0; call < 40; ++call) {
    fake_.fail_at_call = call;
    probe_ = std::make_shared<FakeProbe>();
    Start();
    const SessionRef session = Open();
    for (int i = 0; i < 3; ++i) GenerateError(SpecOf(session, 3, {i})).IgnoreError();
    Append(session, {1, 2, 3}).IgnoreError();
  }
}

}  // namespace
}  // namespace rivulet
