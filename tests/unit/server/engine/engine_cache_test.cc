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
