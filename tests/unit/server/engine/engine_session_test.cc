// SPDX-License-Identifier: Apache-2.0
// Client sessions through the engine: how they are looked at and listed, and what errors say. What
// their tokens are is proved by tests/simulation/.
#include <gmock/gmock.h>

#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

TEST_F(EngineSessionTest, OnlyAtPositionZeroATextHasItsStartTokens) {
  Start();
  const SessionRef session = Open();
  const auto append = [&](AppendSpec spec) {
    spec.session = session;
    spec.start_tokens = 1;
    return Await<ScoreResult>(
        [&](Engine::ScoreDone done) { return engine_->Append(spec, std::move(done)); });
  };
  AppendSpec first;
  first.tokens = {30, 1, 2};
  const auto begun = append(first);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->session->position, 3);
  AppendSpec second;
  second.tokens = {30, 3};
  second.score = true;
  const auto scored = append(second);
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_EQ(scored->session->position, 4);
  EXPECT_EQ(scored->num_scored, 1);
  GenerateSpec spec = SpecOf(session, 6, {30, 4});
  spec.start_tokens = 1;
  EXPECT_EQ(Generate(spec), Alone({30, 1, 2, 3, 4}, 6));
  ASSERT_TRUE(Rewind(session, 0).ok());
  spec.session->position = 0;
  EXPECT_EQ(Generate(spec), Alone({30, 4}, 6));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ScoringBeginsAtTheLastStateBeforeTheFirstScoredToken) {
  options_.sessions.checkpoint_tokens = 1;
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {1, 2, 3, 4, 5}).ok());
  ASSERT_TRUE(Rewind(session, 3).ok());  // a state after all three stays, too late for scoring
  const int64_t before = TokensFed();
  const auto scored = Append(session, {6, 7}, /*score=*/true);
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_EQ(TokensFed() - before, 2) << "3 and 6";
  const auto all = Append(Open(), {1, 2, 3, 6, 7}, /*score=*/true);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(scored->logprobs, std::vector<float>(all->logprobs.begin() + 3, all->logprobs.end()));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, TheSequenceEndsWithTheModelsPositions) {
  config_.max_positions = 10;
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {1, 2, 3, 4, 5, 6}).ok());
  const absl::Status refused = Append(session, {1, 2, 3, 4, 5}).status();
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_TOKENS");
  EXPECT_EQ(refused.message(),
            "with 5 tokens at position 6 the session would hold 11 tokens; the model's sequences "
            "end at 10. Send fewer or go back to an earlier position.");
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ASessionIsLookedAtWhileARequestHasIt) {
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {3, 1}).ok());
  probe_->AllowRuns(1);
  ReplyCollector collector;
  ASSERT_TRUE(collector.Start(engine_.get(), SpecOf(session, 500)).ok());
  collector.WaitForTokens(1);
  std::promise<absl::StatusOr<SessionInfo>> seen;
  ASSERT_TRUE(GetSession(engine_.get(), session, absl::InfiniteFuture(), [&seen](auto info) {
                seen.set_value(std::move(info));
              }).ok());
  probe_->AllowAll();  // sessions are looked at between runs
  const absl::StatusOr<SessionInfo> busy = seen.get_future().get();
  ASSERT_TRUE(busy.ok()) << busy.status();
  EXPECT_TRUE(busy->busy);
  EXPECT_EQ(busy->idle, absl::ZeroDuration());
  EXPECT_LT(busy->position, 502);
  ASSERT_TRUE(collector.Wait().ok());
  const auto idle = Get(session);
  EXPECT_FALSE(idle->busy);
  EXPECT_EQ(idle->position, 502);
  EXPECT_EQ(idle->seed, 7u);
  Advance(5000);
  EXPECT_EQ(Get(session)->idle, absl::Seconds(5));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, PagesHoldEverySessionOnceAndTheLastUsedLast) {
  Start();
  std::vector<SessionRef> sessions;
  for (int i = 0; i < 7; ++i) sessions.push_back(Open());
  Open("other");
  ASSERT_TRUE(Append(sessions[2], {1}).ok());
  std::vector<SessionId> expected;
  for (const int i : {0, 1, 3, 4, 5, 6, 2}) expected.push_back(sessions[static_cast<size_t>(i)].id);
  for (const int page_size : {1, 3, 7, 8, 0}) {
    std::vector<SessionId> listed;
    ListSpec spec{"t", page_size};
    int pages = 0;
    do {
      const auto page = List(spec);
      ASSERT_TRUE(page.ok()) << page.status();
      for (const SessionInfo& info : page->sessions) listed.push_back(info.id);
      if (page->next != 0) {
        EXPECT_EQ(std::ssize(page->sessions), page_size);
      }
      spec.after = page->next;
      ++pages;
    } while (spec.after != 0);
    EXPECT_EQ(listed, expected) << page_size;
    EXPECT_EQ(pages, page_size == 0 ? 1 : (7 + page_size - 1) / page_size) << page_size;
  }
  EXPECT_EQ(ReasonOf(List({"t", -1}).status()), "PAGE_SIZE_OUT_OF_RANGE");
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ASessionThatIsUsedBetweenPagesIsNotMissed) {
  Start();
  std::vector<SessionRef> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(Open());
  const auto first = List({"t", 2});
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(Append(sessions[0], {1}).ok());  // was listed: comes again
  ASSERT_TRUE(Append(sessions[2], {1}).ok());  // would have been next: comes later
  const auto rest = List({"t", 0, first->next});
  ASSERT_TRUE(rest.ok());
  std::vector<SessionId> listed;
  for (const SessionInfo& info : rest->sessions) listed.push_back(info.id);
  EXPECT_EQ(listed, (std::vector<SessionId>{sessions[3].id, sessions[0].id, sessions[2].id}));
}

TEST_F(EngineSessionTest, WhoSawAnotherHistoryIsToldBothHashes) {
  Start();
  SessionRef session = Open();
  session.hash = Get(session)->hash + 1;
  const absl::Status refused = Append(session, {9}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), "SESSION_HASH_MISMATCH");
  EXPECT_EQ(GetErrorDetail(refused).field, "sequence_hash");
  for (const uint64_t hash : {*session.hash, *session.hash - 1}) {
    EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat(absl::Hex(hash, absl::kZeroPad16))));
  }
}

TEST_F(EngineSessionTest, ARewindNeedsAPositionOrAMark) {
  Start();
  const SessionRef session = Open();
  EXPECT_EQ(ReasonOf(Rewind(session, std::nullopt).status()), "POSITION_OR_MARK");
  EXPECT_FALSE(Rewind(session, 0)->busy) << "with the call that has just ended";
}

TEST_F(EngineSessionTest, ARestoreThatHoldsTooManyTokensSaysHowMany) {
  options_.sessions.max_tokens = 6;
  Start();
  RestoreSpec longer;
  for (int32_t token = 0; token < 7; ++token) longer.history.Append(token, /*generated=*/false);
  const auto refused = Await<SessionInfo>(
      [&](SessionDone done) { return RestoreSession(engine_.get(), longer, std::move(done)); });
  EXPECT_EQ(ReasonOf(refused.status()), "TOO_MANY_TOKENS");
  EXPECT_THAT(refused.status().message(),
              HasSubstr("holds 7 tokens; this server allows 6 in a sequence"));
  EXPECT_EQ(engine_->GetLoad().client_sessions, 0);
}

TEST_F(EngineSessionTest, ARepeatedGenerateThatIsCancelledTakesNothingBack) {
  options_.states.max_memory_bytes = 0;  // so that it has tokens to feed, ...
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
  EXPECT_EQ(Get(session)->position, 3);
  ExpectAtRest();
}

}  // namespace
}  // namespace rivulet
