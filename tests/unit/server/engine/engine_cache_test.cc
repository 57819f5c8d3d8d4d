// SPDX-License-Identifier: Apache-2.0
// Requests that share what their prompts have in common.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

using Tokens = std::vector<int32_t>;

class EngineCacheTest : public EngineSessionTest {
 protected:
  EngineCacheTest() { options_.prefix_cache.least_gain = 1; }

  static GenerateSpec Cached(Tokens prompt, int64_t max_tokens, const std::string& tenant = "t") {
    GenerateSpec spec = Prompt(std::move(prompt), max_tokens);
    spec.tenant = tenant;
    spec.cache.enabled = true;
    return spec;
  }
  // Its tokens must be those of a lone request without a cache. Returns how many were cached.
  int64_t Run(const GenerateSpec& spec) {
    ReplyCollector collector;
    EXPECT_TRUE(collector.Start(engine_.get(), spec).ok());
    EXPECT_TRUE(collector.Wait().ok());
    EXPECT_EQ(collector.violation(), "");
    for (int i = 0; i < spec.num_samples; ++i) {
      const auto index = static_cast<uint32_t>(i);
      EXPECT_EQ(collector.sample(index).tokens, Solo(spec, index)) << "sample " << i;
    }
    EXPECT_EQ(collector.usage().prompt_tokens, std::ssize(spec.prompt));
    return collector.usage().cached_prompt_tokens;
  }
  static Tokens Counting(int32_t first, int32_t count) {
    Tokens tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back((first + i) % 40);
    return tokens;
  }
};

TEST_F(EngineCacheTest, AHitGivesTheTokensOfAMissAndFeedsTheRestAlone) {
  for (const bool with_bos : {true, false}) {
    config_ = FakeConfig(50, with_bos);
    Start();
    const Tokens prompt = Counting(0, 30);
    EXPECT_EQ(Run(Cached(prompt, 5)), 0);
    const int64_t before = TokensFed();
    EXPECT_EQ(Run(Cached(prompt, 5)), 29);
    EXPECT_EQ(TokensFed() - before, 5) << "the last of the prompt and four that were drawn";
    EXPECT_EQ(Run(Cached(Join(prompt, {1, 2, 3}), 5)), 29);
    EXPECT_EQ(Run(Cached(Join(prompt, {1, 2, 3, 4}), 5)), 32);
    EXPECT_EQ(Run(Cached(Counting(0, 10), 5)), 0) << "no state was kept so early";
    EXPECT_EQ(Run(Prompt(prompt, 5)), 0) << "it did not ask for that";
    const EngineLoad load = engine_->GetLoad();
    EXPECT_EQ(load.cache_hits, 3);
    EXPECT_EQ(load.cache_misses, 2);
    EXPECT_GT(load.cache_bytes, 0);
    ExpectAtRest();
  }
}

TEST_F(EngineCacheTest, NothingIsSharedBetweenTenantsOrSalts) {
  Start();
  const Tokens prompt = Counting(0, 30);
  GenerateSpec spec = Cached(prompt, 3, "a");
  EXPECT_EQ(Run(spec), 0);
  EXPECT_EQ(Run(Cached(prompt, 3, "b")), 0);
  EXPECT_EQ(Run(Cached(prompt, 3, "")), 0);
  spec.cache.salt = "user 1";
  EXPECT_EQ(Run(spec), 0);
  EXPECT_EQ(Run(spec), 29);
  spec.cache.salt = "user 2";
  EXPECT_EQ(Run(spec), 0);
  // Nor by way of a session.
  const SessionRef session = Open("c");
  AppendSpec append;
  append.session = session;
  append.tokens = prompt;
  append.cache.enabled = true;
  const auto appended = Await<ScoreResult>(
      [&](Engine::ScoreDone done) { return engine_->Append(append, std::move(done)); });
  ASSERT_TRUE(appended.ok());
  EXPECT_EQ(appended->cached_tokens, 0);
  EXPECT_EQ(Run(Cached(prompt, 3, "c")), 29);
}

TEST_F(EngineCacheTest, PenaltiesCountWhatWasNotFed) {
  Start();
  GenerateSpec spec = Cached({2, 3, 3, 4, 4, 4, 5}, 12);
  spec.sampling.repetition_penalty = 1.5f;
  spec.sampling.frequency_penalty = 0.5f;
  EXPECT_EQ(Run(spec), 0);
  EXPECT_EQ(Run(spec), 6);
  spec.num_samples = 3;
  EXPECT_EQ(Run(spec), 6);
  spec.prompt = {2, 3, 3, 4, 4, 4, 5, 6, 7};
  EXPECT_EQ(Run(spec), 6);
  ExpectAtRest();
}

// A session that goes on where a token was generated feeds that token last, apart from the rest.
TEST_F(EngineCacheTest, PenaltiesKnowThatTheLastTokenBeforeAReplyWasGenerated) {
  Start();
  GenerateSpec spec = SpecOf(Open(), 12, Counting(0, 20));
  spec.cache.enabled = true;
  spec.sampling.frequency_penalty = 0.5f;
  const Tokens all = Generate(spec);
  for (const int64_t drawn : {5, 3, 8}) {
    GenerateSpec again = spec;
    again.prompt = {};
    again.session->position = 20 + drawn;
    again.max_tokens = 12 - drawn;
    EXPECT_EQ(Generate(again), Tokens(all.begin() + drawn, all.end())) << drawn;
  }
  ExpectAtRest();
}

TEST_F(EngineCacheTest, SeveralSamplesForkFromTheStateThatIsFound) {
  Start();
  GenerateSpec spec = Cached(Counting(0, 30), 4);
  spec.num_samples = 4;
  EXPECT_EQ(Run(spec), 0);
  const int64_t before = TokensFed(), copied = probe_->copied();
  EXPECT_EQ(Run(spec), 29);
  EXPECT_EQ(TokensFed() - before, 4 * 4);
  EXPECT_EQ(probe_->copied() - copied, 3);
  spec.prompt = Join(spec.prompt, {1, 2, 3});
  EXPECT_EQ(Run(spec), 29);
  ExpectAtRest();
}

TEST_F(EngineCacheTest, WherePromptsPartAStateIsKeptForTheThird) {
  Start();
  const Tokens common = Counting(0, 20);
  EXPECT_EQ(Run(Cached(Join(common, {41, 42, 43}), 3)), 0);
  EXPECT_EQ(Run(Cached(Join(common, {44, 45, 46}), 3)), 0);
  EXPECT_EQ(Run(Cached(Join(common, {47, 48, 49}), 3)), 20);
}

TEST_F(EngineCacheTest, AStateIsKeptWhereTheRequestAsks) {
  Start();
  GenerateSpec spec = Cached(Counting(0, 30), 3);
  spec.cache.positions = {12, 7};
  EXPECT_EQ(Run(spec), 0);
  EXPECT_EQ(Run(Cached(Join(Counting(0, 12), {45, 46}), 3)), 12);
  EXPECT_EQ(Run(Cached(Join(Counting(0, 9), {45, 46}), 3)), 7);
}

// The last token of a prompt is always fed: what is drawn next comes from its output.
TEST_F(EngineCacheTest, AStateThatHasSeenAllOfAPromptIsTooDeepForIt) {
  Start();
  GenerateSpec longer = Cached(Counting(0, 30), 3);
  longer.cache.positions = {20};
  EXPECT_EQ(Run(longer), 0);
  EXPECT_EQ(Run(Cached(Counting(0, 20), 3)), 0);
  EXPECT_EQ(Run(Cached(Counting(0, 21), 3)), 20);
  AppendSpec append;
  append.session = Open();
  append.tokens = Counting(0, 20);
  append.cache.enabled = true;
  const auto appended = Await<ScoreResult>(
      [&](Engine::ScoreDone done) { return engine_->Append(append, std::move(done)); });
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_EQ(appended->cached_tokens, 19);
}

TEST_F(EngineCacheTest, ALongPromptIsKeptInPartsSoThatAnyTokenIsNear) {
  options_.sessions.checkpoint_tokens = 8;
  options_.prefill_tokens_idle = 1000;
  Start();
  EXPECT_EQ(Run(Cached(Counting(0, 80), 3)), 0);
  for (const int32_t parts : {15, 33, 58, 79}) {
    const int64_t cached = Run(Cached(Join(Counting(0, parts), {48, 49}), 1));
    EXPECT_GT(cached, parts - 12) << parts;
    EXPECT_LE(cached, parts);
  }
}

TEST_F(EngineCacheTest, ARequestThatWaitedFindsWhatOthersLeftMeanwhile) {
  fake_.limits.num_slots = 1;
  Start();
  probe_->AllowRuns(0);
  const GenerateSpec spec = Cached(Counting(0, 30), 3);
  std::vector<std::unique_ptr<ReplyCollector>> collectors;
  for (int i = 0; i < 3; ++i) {
    collectors.push_back(std::make_unique<ReplyCollector>());
    ASSERT_TRUE(collectors.back()->Start(engine_.get(), spec).ok());
  }
  probe_->AllowAll();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(collectors[static_cast<size_t>(i)]->Wait().ok());
    EXPECT_EQ(collectors[static_cast<size_t>(i)]->sample().tokens, Solo(spec));
    EXPECT_EQ(collectors[static_cast<size_t>(i)]->usage().cached_prompt_tokens, i == 0 ? 0 : 29);
  }
  ExpectAtRest();
}

TEST_F(EngineCacheTest, ASessionBeginsWhereACachedPromptEnds) {
  Start();
  const Tokens prompt = Counting(0, 30);
  EXPECT_EQ(Run(Cached(prompt, 3)), 0);
  const int64_t before = TokensFed();
  const SessionRef session = Open();
  AppendSpec append;
  append.session = session;
  append.tokens = prompt;
  append.cache.enabled = true;
  const auto appended = Await<ScoreResult>(
      [&](Engine::ScoreDone done) { return engine_->Append(append, std::move(done)); });
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_EQ(appended->cached_tokens, 29);
  EXPECT_EQ(appended->session->hash, HashTokens(kEmptySequenceHash, prompt));
  EXPECT_EQ(TokensFed(), before);
  EXPECT_EQ(Generate(SpecOf(session, 5)), Alone(prompt, 5));
  EXPECT_EQ(TokensFed() - before, 5) << "the session has the state of its own now";
  // A Generate that brings the prompt itself, and one that scores it: that feeds it.
  GenerateSpec spec = SpecOf(Open(), 5, prompt);
  spec.tenant = "t";
  spec.cache.enabled = true;
  EXPECT_EQ(Generate(spec), Alone(prompt, 5));
  append.session = Open();
  append.score = append.want_logprobs = true;
  const auto scored = Await<ScoreResult>(
      [&](Engine::ScoreDone done) { return engine_->Append(append, std::move(done)); });
  const auto plain = Append(Open(), prompt, /*score=*/true);
  ASSERT_TRUE(scored.ok() && plain.ok());
  EXPECT_EQ(scored->cached_tokens, 0);
  EXPECT_EQ(scored->logprobs, plain->logprobs);
  ExpectAtRest();
}

TEST_F(EngineCacheTest, WithoutMemoryForStatesEverythingIsFedAndRight) {
  options_.states.max_memory_bytes = 0;
  Start();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Run(Cached(Counting(0, 30), 3)), 0);
}

TEST_F(EngineCacheTest, KeptStatesStayWithinTheLimitAndTheOldestLeaveFirst) {
  options_.prefix_cache.max_bytes = 3000;
  Start();
  for (int32_t first = 0; first < 30; ++first) {
    Run(Cached(Counting(first, 30), 2));
    EXPECT_LE(engine_->GetLoad().cache_bytes, 3000);
  }
  EXPECT_GT(Run(Cached(Counting(29, 30), 2)), 0);
  EXPECT_EQ(Run(Cached(Counting(0, 30), 2)), 0);
}

TEST_F(EngineCacheTest, StatesOfPromptsGoToFilesAndBack) {
  options_.states.max_memory_bytes = 2 * 64;
  disk_ = std::make_shared<FakeDisk>();
  Start();
  for (int round = 0; round < 3; ++round) {
    for (int32_t first = 0; first < 10; ++first) {
      const int64_t cached = Run(Cached(Counting(first, 30), 2));
      EXPECT_EQ(cached, round == 0 ? 0 : 29) << round << " " << first;
      ASSERT_TRUE(Eventually([&] {
        Advance(0);
        return engine_->GetLoad().states.memory_bytes <= options_.states.max_memory_bytes;
      }));
    }
  }
  EXPECT_GT(disk_->With([](FakeDisk& disk) { return disk.reads; }), 0);
  EXPECT_EQ(engine_->GetLoad().states.forgotten, 0);
  ExpectAtRest();
}

TEST_F(EngineCacheTest, BadFieldsAreRefusedByName) {
  Start();
  const auto field_of = [this](const GenerateSpec& spec) {
    const absl::Status status = GenerateError(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return GetErrorDetail(status).reason + " " + GetErrorDetail(status).field;
  };
  GenerateSpec spec = Cached({1, 2, 3}, 3);
  spec.cache.salt = std::string(65, 's');
  EXPECT_EQ(field_of(spec), "CACHE_SALT_LENGTH cache.salt");
  spec.cache.salt = std::string(64, 's');
  spec.cache.positions.assign(17, 1);
  EXPECT_EQ(field_of(spec), "TOO_MANY_CACHE_POSITIONS cache.positions");
  spec.cache.positions = {1, 4};
  EXPECT_EQ(field_of(spec), "CACHE_POSITION_OUT_OF_RANGE cache.positions[1]");
  spec.cache.positions = {0};
  EXPECT_EQ(field_of(spec), "CACHE_POSITION_OUT_OF_RANGE cache.positions[0]");
  spec.cache.positions = {3};
  EXPECT_EQ(Run(spec), 0);
}

}  // namespace
}  // namespace rivulet
