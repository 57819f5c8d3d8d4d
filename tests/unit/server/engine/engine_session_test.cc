// SPDX-License-Identifier: Apache-2.0
// Client sessions through the engine: whatever is appended, generated, rewound, forked or restored,
// a session's tokens are those of one request with the same sequence.
#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

TEST_F(EngineSessionTest, AppendedTokensAreAPrompt) {
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {3, 1, 4}).ok());
  const auto appended = Append(session, {1, 5});
  ASSERT_TRUE(appended.ok());
  EXPECT_EQ(appended->session->position, 5);
  EXPECT_EQ(Generate(SpecOf(session, 20)), Alone({3, 1, 4, 1, 5}, 20));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, TwoGeneratesEqualOneAndFeedEachTokenOnce) {
  Start();
  const SessionRef session = Open();
  const std::vector<int32_t> first = Generate(SpecOf(session, 10, {2, 7}));
  const std::vector<int32_t> second = Generate(SpecOf(session, 10));
  EXPECT_EQ(Join(first, second), Alone({2, 7}, 20));
  int64_t fed = 0;
  for (const FakeRun& run : probe_->runs()) {
    for (const FakeRun::Row& row : run.rows) fed += row.tokens;
  }
  EXPECT_EQ(fed, 1 + 2 + 19);  // the last one is not fed
  ExpectAtRest();
}

TEST_F(EngineSessionTest, TokensOfTheClientBetweenGeneratesAreFedInTheirPlace) {
  Start();
  const SessionRef session = Open();
  const std::vector<int32_t> first = Generate(SpecOf(session, 4, {2}));
  const std::vector<int32_t> second = Generate(SpecOf(session, 6, {9, 9}));
  EXPECT_EQ(first, Alone({2}, 4));
  EXPECT_EQ(second, Alone(Join(Join({2}, first), {9, 9}), 6));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, PenaltiesCountTheWholeSessionAndKnowWhatWasGenerated) {
  Start();
  const SessionRef session = Open();
  GenerateSpec spec = SpecOf(session, 5, {2, 3, 3});
  spec.sampling.frequency_penalty = 1;
  const std::vector<int32_t> first = Generate(spec);
  spec.prompt = {};
  const std::vector<int32_t> second = Generate(spec);
  GenerateSpec alone = Prompt({2, 3, 3}, 10, 7);
  alone.sampling.frequency_penalty = 1;
  EXPECT_EQ(Join(first, second), Solo(alone));

  // From here on prompt and output alternate; a history of one call cannot be had any more, so the
  // counts are compared with a session whose states were forgotten.
  spec.prompt = {4, 4};
  const std::vector<int32_t> third = Generate(spec);
  options_.states.max_memory_bytes = 0;
  Start();
  const SessionRef again = Open();
  GenerateSpec repeat = spec;
  repeat.session = again;
  repeat.prompt = {2, 3, 3};
  EXPECT_EQ(Generate(repeat), first);
  repeat.prompt = {};
  EXPECT_EQ(Generate(repeat), second);
  repeat.prompt = {4, 4};
  EXPECT_EQ(Generate(repeat), third);
  ExpectAtRest();
}

TEST_F(EngineSessionTest, AskingAgainFromAnEarlierPositionGivesTheSameTokens) {
  Start();
  const SessionRef session = Open();
  const std::vector<int32_t> all = Generate(SpecOf(session, 12, {5, 6}));
  for (const int64_t position : {13, 8, 2}) {
    SessionRef from = session;
    from.position = position;
    const std::vector<int32_t> again = Generate(SpecOf(from, 14 - position));
    EXPECT_EQ(again, std::vector<int32_t>(all.begin() + position - 2, all.end())) << position;
  }
  // Also with its prompt, at the position where that was given; and an append is asked again as
  // well.
  SessionRef begin = session;
  begin.position = 0;
  EXPECT_EQ(Generate(SpecOf(begin, 12, {5, 6})), all);
  const SessionRef other = Open();
  SessionRef zero = other;
  zero.position = 0;
  ASSERT_TRUE(Append(zero, {5, 6}).ok());
  const auto repeated = Append(zero, {5, 6});
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  EXPECT_EQ(repeated->session->position, 2);
  EXPECT_EQ(Generate(SpecOf(other, 12)), all);
  ExpectAtRest();
}

TEST_F(EngineSessionTest, GivenTokensAreDroppedByRewindAlone) {
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {5, 6, 7}).ok());
  SessionRef from = session;
  from.position = 1;
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(from, 3))), "GIVEN_TOKENS_BEYOND_POSITION");
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(from, 3, {8}))), "GIVEN_TOKENS_BEYOND_POSITION");
  from.position = 4;
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(from, 3))), "POSITION_OUT_OF_RANGE");
  const auto rewound = Rewind(session, 1);
  ASSERT_TRUE(rewound.ok());
  EXPECT_EQ(rewound->position, 1);
  EXPECT_FALSE(rewound->busy);
  EXPECT_EQ(Generate(SpecOf(session, 8)), Alone({5}, 8));
  EXPECT_EQ(ReasonOf(Rewind(session, 100).status()), "POSITION_OUT_OF_RANGE");
  EXPECT_EQ(ReasonOf(Rewind(session, std::nullopt).status()), "POSITION_OR_MARK");
  EXPECT_EQ(ReasonOf(Rewind(session, std::nullopt, "nowhere").status()), "MARK_NOT_FOUND");
  ExpectAtRest();
}

TEST_F(EngineSessionTest, RewindsToAMarkWhateverWasForgotten) {
  for (const int64_t max_state_bytes : {int64_t{1} << 20, int64_t{0}}) {
    options_.states.max_memory_bytes = max_state_bytes;
    Start();
    const SessionRef session = Open();
    SessionRef marked = session;
    marked.mark = "here";
    ASSERT_TRUE(Append(marked, {1, 2, 3}).ok());
    const std::vector<int32_t> first = Generate(SpecOf(session, 30));
    Generate(SpecOf(session, 30));
    ASSERT_TRUE(Rewind(session, std::nullopt, "here").ok());
    EXPECT_EQ(Generate(SpecOf(session, 30)), first);
    ExpectAtRest();
  }
}

TEST_F(EngineSessionTest, GoesOnAfterAStopTokenAndAfterADroppedStopString) {
  config_ = FakeConfig(/*vocab_size=*/26, /*with_bos=*/false);
  tokenizer_ = *CreateCharTokenizer("abcdefghijklmnopqrstuvwxyz");
  Start();
  const std::vector<int32_t> all = Alone({1}, 40);
  const auto at = [&all](int32_t token) {
    return std::find(all.begin(), all.end(), token) - all.begin();
  };
  GenerateSpec stop = SpecOf(Open(), 40, {1});
  stop.stop_ids = {all[9]};
  const std::vector<int32_t> before(all.begin(), all.begin() + at(all[9]));
  EXPECT_EQ(Generate(stop), before);
  stop.stop_ids = {};
  stop.prompt = {};
  stop.max_tokens = 40 - at(all[9]);
  EXPECT_EQ(Join(before, Generate(stop)), all);

  GenerateSpec string = SpecOf(Open(), 40, {1});
  const std::vector<std::string> stops = {
      std::string({static_cast<char>('a' + all[20]), static_cast<char>('a' + all[21])})};
  string.stop_strings = stops;
  const std::vector<int32_t> cut = Generate(string);
  ASSERT_LT(cut.size(), 40u);
  string.stop_strings = {};
  string.prompt = {};
  string.max_tokens = 40 - static_cast<int64_t>(cut.size());
  EXPECT_EQ(Join(cut, Generate(string)), all);

  // The state that had seen the dropped tokens is of no use to a sequence that goes on otherwise.
  string.session = Open();
  string.stop_strings = stops;
  string.prompt = {1};
  string.max_tokens = 40;
  ASSERT_EQ(Generate(string), cut);
  const std::vector<int32_t> others(6, all[cut.size()] == 0 ? 1 : 0);
  ASSERT_TRUE(Append(*string.session, others).ok());
  EXPECT_EQ(Generate(SpecOf(*string.session, 5)), Alone(Join(Join({1}, cut), others), 5));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, OnlyAtPositionZeroATextHasItsStartTokens) {
  Start();
  const SessionRef session = Open();
  const auto append = [&](AppendSpec spec) {
    spec.session = session;
    spec.start_tokens = {1, 1};
    return Await<ScoreResult>(
        [&](Engine::ScoreDone done) { return engine_->Append(spec, std::move(done)); });
  };
  AppendSpec first;
  first.tokens = {30, 1, 2, 31};
  const auto begun = append(first);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->session->position, 4);
  AppendSpec second;
  second.tokens = {30, 3, 31};
  second.score = true;
  const auto scored = append(second);
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_EQ(scored->session->position, 5);
  EXPECT_EQ(scored->num_scored, 1);
  GenerateSpec spec = SpecOf(session, 6, {30, 4, 31});
  spec.start_tokens = {1, 1};
  EXPECT_EQ(Generate(spec), Alone({30, 1, 2, 31, 3, 4}, 6));
  ASSERT_TRUE(Rewind(session, 0).ok());
  spec.session->position = 0;
  EXPECT_EQ(Generate(spec), Alone({30, 4, 31}, 6));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ForksGoOnFromTheSameStateWithSeedsOfTheirOwn) {
  Start();
  const SessionRef session = Open();
  const std::vector<int32_t> half = Generate(SpecOf(session, 6, {4}));
  const auto forks = Fork(session, 3, /*seed=*/100);
  ASSERT_TRUE(forks.ok());
  ASSERT_EQ(forks->size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    const SessionRef fork{(*forks)[i].id, "t", std::nullopt, ""};
    EXPECT_EQ((*forks)[i].position, 7);
    // As if the half had been given: without penalties nobody knows the difference.
    EXPECT_EQ(Generate(SpecOf(fork, 5)), Alone(Join({4}, half), 5, 100 + i));
  }
  EXPECT_EQ(Join(half, Generate(SpecOf(session, 6))), Alone({4}, 12));
  SessionRef earlier = session;
  earlier.position = 3;
  const auto young = Fork(earlier, 1, 7);
  ASSERT_TRUE(young.ok());
  const std::vector<int32_t> all = Alone({4}, 12);
  EXPECT_EQ(Generate(SpecOf({young->front().id, "t", std::nullopt, ""}, 10)),
            std::vector<int32_t>(all.begin() + 2, all.end()));
  const auto patient = Await<SessionInfo>([&](SessionDone done) {
    return OpenSession(engine_.get(), {"t", 7, absl::Hours(3)}, std::move(done));
  });
  ASSERT_TRUE(patient.ok());
  EXPECT_EQ(Fork({patient->id, "t", std::nullopt, ""}, 1, 7)->front().idle_timeout, absl::Hours(3));
  EXPECT_EQ(ReasonOf(Fork(session, 0, 1).status()), "FORK_COUNT_OUT_OF_RANGE");
  options_.sessions.max_open_sessions = 2;
  Start();
  EXPECT_EQ(ReasonOf(Fork(Open(), 2, 1).status()), "SESSION_LIMIT");
  EXPECT_EQ(engine_->GetLoad().client_sessions, 1);
  ExpectAtRest();
}

TEST_F(EngineSessionTest, AppendScoresWhatItAppends) {
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {1, 2}).ok());
  const auto scored = Append(session, {3, 4, 5}, /*score=*/true);
  ASSERT_TRUE(scored.ok()) << scored.status();
  ScoreSpec whole;
  whole.tokens = {1, 2, 3, 4, 5};
  whole.want_logprobs = true;
  const auto all = Await<ScoreResult>(
      [&](Engine::ScoreDone done) { return engine_->Score(whole, std::move(done)); });
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(scored->num_scored, 3);
  EXPECT_EQ(scored->logprobs, std::vector<float>(all->logprobs.begin() + 2, all->logprobs.end()));
  EXPECT_EQ(scored->session->position, 5);
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

TEST_F(EngineSessionTest, WithoutBosTheFirstTokenIsNotScored) {
  config_ = FakeConfig(50, /*with_bos=*/false);
  Start();
  const SessionRef session = Open();
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(session, 3))), "PROMPT_EMPTY");
  const auto scored = Append(session, {3, 4, 5}, /*score=*/true);
  ASSERT_TRUE(scored.ok());
  EXPECT_EQ(scored->num_scored, 2);
  EXPECT_EQ(Append(session, {6}, /*score=*/true)->num_scored, 1);
  EXPECT_EQ(Generate(SpecOf(session, 9)), Alone({3, 4, 5, 6}, 9));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ARestoredImageGoesOnAsTheOriginal) {
  Start();
  const SessionRef session = Open();
  const std::vector<int32_t> half = Generate(SpecOf(session, 6, {4}));
  const auto image = Await<SessionImage>([&](ImageDone done) {
    return SnapshotSession(engine_.get(), session, absl::InfiniteFuture(), std::move(done));
  });
  ASSERT_TRUE(image.ok());
  const std::vector<int32_t> rest = Generate(SpecOf(session, 6));
  for (const bool with_state : {true, false}) {
    RestoreSpec restore;
    restore.tenant = image->tenant;
    restore.history = image->history;
    restore.seed = image->seed;
    restore.fed = image->state.fed;
    const auto values = image->state.state->values();
    if (with_state) restore.state.assign(values.begin(), values.end());
    const auto info = Await<SessionInfo>(
        [&](SessionDone done) { return RestoreSession(engine_.get(), restore, std::move(done)); });
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->position, 7);
    EXPECT_EQ(Generate(SpecOf({info->id, "t", std::nullopt, ""}, 6)), rest) << with_state;
  }
  ExpectAtRest();
  options_.sessions.max_tokens = 6;
  Start();
  RestoreSpec longer;
  longer.history = image->history;
  const auto refused = Await<SessionInfo>(
      [&](SessionDone done) { return RestoreSession(engine_.get(), longer, std::move(done)); });
  EXPECT_EQ(ReasonOf(refused.status()), "TOO_MANY_TOKENS");
  EXPECT_NE(refused.status().message().find("holds 7 tokens; this server allows 6 in a sequence"),
            absl::string_view::npos);
  EXPECT_EQ(engine_->GetLoad().client_sessions, 0);
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
  EXPECT_EQ(Generate(SpecOf(session, 100)).size(), 4u);
  EXPECT_EQ(Generate(SpecOf(session, 100)).size(), 0u);
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(session, 1, {1}))), "TOO_MANY_TOKENS");
  ExpectAtRest();
}

}  // namespace
}  // namespace rivulet
