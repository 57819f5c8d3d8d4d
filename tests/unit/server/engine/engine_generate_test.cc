// SPDX-License-Identifier: Apache-2.0
// One request at a time: what a reply holds and how it ends.
#include <gmock/gmock.h>

#include "model/base/error.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

class GenerateTest : public EngineTest {
 protected:
  // Runs `spec` to its end; the engine is started before if it is not.
  void Generate(const GenerateSpec& spec) {
    if (!engine_) Start();
    collector_ = std::make_unique<ReplyCollector>();
    ASSERT_EQ(collector_->Start(engine_.get(), spec), absl::OkStatus());
    EXPECT_EQ(collector_->Wait(), absl::OkStatus());
    EXPECT_EQ(collector_->violation(), "");
    ExpectAtRest();
  }
  const CollectedSample& sample(size_t i = 0) const { return collector_->sample(i); }
  FinishReason reason(size_t i = 0) const { return sample(i).finish.value().reason; }

  // A model of letters: token 0 is 'a'; the sample draws the letters of `text`, again and again.
  void Spell(const std::string& text, int64_t fed_before) {
    config_ = FakeConfig(28, true);  // 26 letters, eos 26, bos 27
    config_.eos_token_id = 26;
    tokenizer_ = *CreateCharTokenizer("abcdefghijklmnopqrstuvwxyz");
    fake_.script = [text, fed_before](uint32_t, int64_t position) {
      const char c = text[static_cast<size_t>(position - fed_before) % text.size()];
      return c == '.' ? 26 : c - 'a';
    };
  }

  // Token i stands for pieces[i]; the sample draws the tokens `ids`, again and again.
  void Draw(std::vector<std::string> pieces, std::vector<int32_t> ids) {
    config_ = FakeConfig(30, true);
    tokenizer_ = std::make_unique<PieceTokenizer>(std::move(pieces));
    fake_.script = [ids](uint32_t, int64_t position) {
      return ids[static_cast<size_t>(position - 1) % ids.size()];
    };
  }

  std::unique_ptr<ReplyCollector> collector_;
};

TEST_F(GenerateTest, ReturnsWhatTheModelDrawsAlone) {
  const GenerateSpec spec = Prompt({3, 1, 4, 1, 5}, 20);
  Generate(spec);
  EXPECT_EQ(sample().tokens, Solo(spec));
  EXPECT_EQ(reason(), FinishReason::kLength);
  EXPECT_EQ(sample().finish->stop_token, -1);
  EXPECT_TRUE(sample().logprobs.empty());
  EXPECT_EQ(collector_->usage().prompt_tokens, 5);
  EXPECT_EQ(collector_->usage().completion_tokens, 20);
  EXPECT_EQ(engine_->GetLoad().tokens_total, 20);
}

TEST_F(GenerateTest, FeedsTheImpliedBosOfAnEmptyPrompt) {
  const GenerateSpec spec = Prompt({}, 5);
  Generate(spec);
  EXPECT_EQ(sample().tokens, Solo(spec));
  EXPECT_EQ(probe_->runs()[0].rows[0].tokens, 1);
  EXPECT_EQ(probe_->num_runs(), 5) << "a prompt of one sample costs no run of its own";
}

TEST_F(GenerateTest, WorksWithoutABos) {
  config_ = FakeConfig(50, false);
  const GenerateSpec spec = Prompt({7}, 9);
  Generate(spec);
  EXPECT_EQ(sample().tokens, Solo(spec));
}

TEST_F(GenerateTest, CutsALongPromptToTheBudget) {
  options_.prefill_tokens_idle = 7;
  std::vector<int32_t> prompt;
  for (int i = 0; i < 40; ++i) prompt.push_back(i);
  const GenerateSpec spec = Prompt(prompt, 6);
  Generate(spec);
  EXPECT_EQ(sample().tokens, Solo(spec));
  EXPECT_EQ(probe_->runs()[0].rows[0].tokens, 7);
  EXPECT_FALSE(probe_->runs()[0].rows[0].sample);
  EXPECT_EQ(probe_->runs()[5].rows[0].tokens, 6) << "bos and 40 tokens: the last piece";
  EXPECT_TRUE(probe_->runs()[5].rows[0].sample);
}

TEST_F(GenerateTest, APromptIsCutAsTheBackendPrefersWhereNothingElseIsSaid) {
  fake_.limits.preferred_prefill_tokens = 12;
  const GenerateSpec spec = Prompt(std::vector<int32_t>(40, 3), 2);
  Generate(spec);
  EXPECT_EQ(sample().tokens, Solo(spec));
  EXPECT_EQ(probe_->runs()[0].rows[0].tokens, 12);
  EXPECT_EQ(probe_->runs()[3].rows[0].tokens, 5) << "bos and 40 tokens: the last piece";
}

TEST_F(GenerateTest, LongRunsAndSlowPollsChangeNoToken) {
  fake_.limits.max_steps = 8;
  fake_.limits.preferred_steps = 4;
  fake_.polls_per_run = 5;
  const GenerateSpec spec = Prompt({9, 8}, 30);
  Generate(spec);
  EXPECT_EQ(sample().tokens, Solo(spec));
  EXPECT_LE(probe_->num_runs(), 9);
}

TEST_F(GenerateTest, EndsAtAStopTokenThatIsNotAmongTheTokens) {
  GenerateSpec spec = Prompt({2}, 40);
  const std::vector<int32_t> drawn = Solo(spec);
  spec.stop_ids = {drawn[6]};
  const std::vector<int32_t> stopped = Solo(spec);
  for (int steps : {1, 5}) {
    fake_.limits.max_steps = fake_.limits.preferred_steps = steps;
    engine_.reset();
    Generate(spec);
    EXPECT_EQ(sample().tokens, std::vector<int32_t>(stopped.begin(), stopped.end() - 1));
    EXPECT_EQ(reason(), FinishReason::kStopToken);
    EXPECT_EQ(sample().finish->stop_token, drawn[6]);
  }
}

TEST_F(GenerateTest, EosEndsASampleUnlessItIsIgnored) {
  GenerateSpec spec = Prompt({2}, 40);
  const std::vector<int32_t> drawn = Solo(spec);
  config_.eos_token_id = drawn[3];
  Generate(spec);
  EXPECT_EQ(reason(), FinishReason::kStopToken);
  EXPECT_LE(sample().tokens.size(), 3u);
  spec.ignore_eos = true;
  Generate(spec);
  EXPECT_EQ(reason(), FinishReason::kLength);
  EXPECT_EQ(sample().tokens, drawn);
}

TEST_F(GenerateTest, EverySampleDrawsWithItsOwnIndexFromACopiedState) {
  fake_.limits.num_slots = 5;
  for (const std::vector<int32_t>& prompt :
       {std::vector<int32_t>{}, {4}, {4, 5, 6, 7, 8, 9, 10, 11}}) {
    GenerateSpec spec = Prompt(prompt, 12);
    Generate(spec);
    const std::vector<int32_t> alone = sample().tokens;
    spec.num_samples = 5;
    const int64_t copied_before = probe_->copied();
    Generate(spec);
    EXPECT_EQ(sample(0).tokens, alone) << "more samples repeat the first ones";
    for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(sample(i).tokens, Solo(spec, i)) << i;
    EXPECT_NE(sample(0).tokens, sample(1).tokens);
    EXPECT_EQ(probe_->copied() - copied_before, prompt.empty() ? 0 : 4);
    EXPECT_EQ(collector_->usage().completion_tokens, 60);
    EXPECT_EQ(collector_->usage().prompt_tokens, static_cast<int64_t>(prompt.size()));
  }
}

TEST_F(GenerateTest, SamplesThatEndEarlyDoNotEndTheOthers) {
  config_.eos_token_id = 11;
  fake_.limits.num_slots = 4;
  GenerateSpec spec = Prompt({1, 2}, 60);
  spec.num_samples = 4;
  Generate(spec);
  int by_eos = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<int32_t> want = Solo(spec, i);
    if (want.back() == 11) {
      want.pop_back();
      ++by_eos;
      EXPECT_EQ(reason(i), FinishReason::kStopToken);
    }
    EXPECT_EQ(sample(i).tokens, want);
  }
  EXPECT_GT(by_eos, 0);
}

TEST_F(GenerateTest, DropsTheTokensThatSpellAStopString) {
  Spell("thequickbrown", 3);
  GenerateSpec spec = Prompt({0, 1}, 30);
  spec.stop_strings = {"zz", "quick"};
  Generate(spec);
  EXPECT_EQ(sample().text, "the");
  EXPECT_EQ(sample().tokens.size(), 3u);
  EXPECT_EQ(reason(), FinishReason::kStopString);
  EXPECT_EQ(sample().finish->stop_string, "quick");
  EXPECT_EQ(collector_->usage().completion_tokens, 3);
}

TEST_F(GenerateTest, KeepsTheStopStringWhereAsked) {
  Spell("thequickbrown", 3);
  GenerateSpec spec = Prompt({0, 1}, 30);
  spec.stop_strings = {"quick"};
  spec.include_stop_string = true;
  Generate(spec);
  EXPECT_EQ(sample().text, "thequick");
  EXPECT_EQ(sample().tokens.size(), 8u);
  EXPECT_EQ(sample().finish->stop_string, "quick");
}

TEST_F(GenerateTest, AStopStringWithinTokensEndsTheTextNotTheToken) {
  Draw({"a", ".\n", "\nUs", "er: b", "c"}, {0, 1, 2, 3, 4});
  GenerateSpec spec = Prompt({}, 30);
  spec.stop_strings = {"\n\nUser"};
  Generate(spec);
  EXPECT_EQ(sample().text, "a.");
  EXPECT_THAT(sample().tokens, ElementsAre(0, 1));
  EXPECT_EQ(sample().finish->stop_string, "\n\nUser");
  spec.include_stop_string = true;
  Generate(spec);
  EXPECT_EQ(sample().text, "a.\n\nUser");
  EXPECT_THAT(sample().tokens, ElementsAre(0, 1, 2, 3));
  spec.include_stop_string = false;
  spec.stop_strings = {"s", "Us"};  // within one token; of those that begin there the longest
  Generate(spec);
  EXPECT_EQ(sample().text, "a.\n\n");
  EXPECT_THAT(sample().tokens, ElementsAre(0, 1, 2));
  EXPECT_EQ(sample().finish->stop_string, "Us");
}

TEST_F(GenerateTest, TheFirstTokensEndNoSample) {
  Draw({"a", "b", "c", "d"}, {0, 1, 2});
  config_.eos_token_id = 2;
  fake_.limits.max_steps = fake_.limits.preferred_steps = 4;
  GenerateSpec spec = Prompt({}, 30);
  spec.num_samples = 2;
  for (const auto& [min_tokens, text] : {std::pair{2, "ab"}, {3, "abdab"}, {5, "abdab"}}) {
    spec.min_tokens = min_tokens;
    Generate(spec);
    for (const size_t i : {0, 1}) {
      EXPECT_EQ(sample(i).text, text) << "a fake draw goes on to the next token of the mask";
      EXPECT_EQ(reason(i), FinishReason::kStopToken);
    }
  }
  EXPECT_EQ(probe_->runs().back().num_steps, 4) << "steps are single only before";
  spec.stop_ids = {3};
  spec.ignore_eos = true;
  Generate(spec);
  EXPECT_EQ(sample().text.substr(0, 6), "abcabc") << "an ignored eos is no end";
}

TEST_F(GenerateTest, AStopStringLiesBehindTheFirstTokens) {
  Draw({"a", "b", "c"}, {0, 1, 2});
  GenerateSpec spec = Prompt({}, 30);
  spec.stop_strings = {"ca"};
  for (const auto& [min_tokens, text] : {std::pair{2, "ab"}, {3, "abcab"}, {5, "abcab"}}) {
    spec.min_tokens = min_tokens;
    spec.include_stop_string = false;
    Generate(spec);
    EXPECT_EQ(sample().text, text) << min_tokens;
    spec.include_stop_string = true;
    Generate(spec);
    EXPECT_EQ(sample().text, absl::StrCat(text, "ca")) << min_tokens;
  }
}

TEST_F(GenerateTest, SpecialTokensHaveNoTextWhereTheyAreSkipped) {
  Draw({"a", "b", "<end>"}, {0, 2, 1});  // the last piece is a control token
  GenerateSpec spec = Prompt({}, 6);
  Generate(spec);
  EXPECT_EQ(sample().text, "a<end>ba<end>b");
  spec.skip_special_tokens = true;
  Generate(spec);
  EXPECT_EQ(sample().text, "abab");
  EXPECT_THAT(sample().tokens, ElementsAre(0, 2, 1, 0, 2, 1));
  spec.stop_strings = {"<end>", "ba"};
  Generate(spec);
  EXPECT_EQ(sample().text, "a");
  EXPECT_EQ(sample().finish->stop_string, "ba");
}

TEST_F(GenerateTest, UsageCountsTheReasoningOfAllSamples) {
  Draw({"</", "a", "think>", "b", "<think>"}, {});
  fake_.script = [](uint32_t sample, int64_t position) {
    constexpr int32_t kDrawn[] = {4, 1, 0, 2, 3, 3};  // the begin is a control token
    return sample == 1 ? 3 : kDrawn[position - 1];
  };
  GenerateSpec spec = Prompt({}, 6);
  spec.num_samples = 3;
  spec.reasoning = {"<think>", "</think>"};
  for (const bool skip : {false, true}) {
    spec.skip_special_tokens = skip;
    Generate(spec);
    EXPECT_EQ(collector_->usage().reasoning_tokens, 4 + 0 + 4);
  }
  spec.reasoning->begin = "";
  Generate(spec);
  EXPECT_EQ(collector_->usage().reasoning_tokens, 4 + 6 + 4);
  spec.stop_strings = {"a</th"};  // the tokens of a stop string are not in the reply
  Generate(spec);
  EXPECT_EQ(collector_->usage().reasoning_tokens, 1 + 6 + 1);
}

TEST_F(GenerateTest, TextWaitsForItsCodePointButNoTokenDoes) {
  Draw({"x", "\xC3", "\xA9"}, {0, 1, 2, 20, 1});
  Start();
  probe_->AllowRuns(2);
  collector_ = std::make_unique<ReplyCollector>();
  ASSERT_EQ(collector_->Start(engine_.get(), Prompt({}, 5)), absl::OkStatus());
  collector_->WaitForTokens(2);
  EXPECT_EQ(collector_->sample().text, "x");
  probe_->AllowAll();
  EXPECT_EQ(collector_->Wait(), absl::OkStatus());
  EXPECT_THAT(sample().tokens, ElementsAre(0, 1, 2, 20, 1));
  EXPECT_EQ(sample().text, "x\u00E9\uFFFD") << "20 is beyond the tokenizer";
}

TEST_F(GenerateTest, AStopStringIsFoundAcrossBytesOfACodePoint) {
  Draw({"x", "\xC3", "\xA9", "y"}, {0, 1, 2, 3});
  GenerateSpec spec = Prompt({}, 9);
  spec.stop_strings = {"\u00E9y"};
  Generate(spec);
  EXPECT_EQ(sample().text, "x");
  EXPECT_THAT(sample().tokens, ElementsAre(0));
}

TEST_F(GenerateTest, AStopStringAtTheLastAllowedTokenCounts) {
  Spell("abc", 1);
  GenerateSpec spec = Prompt({}, 3);
  spec.stop_strings = {"bc"};
  Generate(spec);
  EXPECT_EQ(sample().text, "a");
  EXPECT_EQ(reason(), FinishReason::kStopString);
}

TEST_F(GenerateTest, ReleasesHeldTokensAtTheEnd) {
  Spell("hello", 1);
  GenerateSpec spec = Prompt({}, 4);
  spec.stop_strings = {"ello!"};
  Generate(spec);
  EXPECT_EQ(sample().text, "hell");
  EXPECT_EQ(reason(), FinishReason::kLength);
}

TEST_F(GenerateTest, ReleasesHeldTokensAtAStopToken) {
  Spell("hell.", 1);
  GenerateSpec spec = Prompt({}, 40);
  spec.stop_strings = {"ello"};
  Generate(spec);
  EXPECT_EQ(sample().text, "hell");
  EXPECT_EQ(reason(), FinishReason::kStopToken);
  EXPECT_EQ(sample().finish->stop_token, 26);
  EXPECT_EQ(sample().finish->stop_string, "");
}

TEST_F(GenerateTest, HoldsBackTokensWhileTheyMayBeginAStopString) {
  Spell("xabcabd", 1);
  Start();
  probe_->AllowRuns(4);  // x a b c
  GenerateSpec spec = Prompt({}, 7);
  spec.stop_strings = {"abca!"};
  collector_ = std::make_unique<ReplyCollector>();
  ASSERT_EQ(collector_->Start(engine_.get(), spec), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return probe_->num_runs() == 5; }));
  collector_->WaitForTokens(1);
  EXPECT_EQ(collector_->sample().tokens.size(), 1u);
  probe_->AllowAll();
  EXPECT_EQ(collector_->Wait(), absl::OkStatus());
  EXPECT_EQ(sample().text, "xabcabd");
}

TEST_F(GenerateTest, PassesLogprobsThrough) {
  GenerateSpec spec = Prompt({5, 6}, 8);
  spec.want_logprobs = true;
  spec.num_top_logprobs = 3;
  Generate(spec);
  ASSERT_EQ(sample().logprobs.size(), 8u);
  ASSERT_EQ(sample().top_logprobs.size(), 8u);
  FakeHistory history;
  for (int32_t token : FeedOf(spec)) history.Feed(token, false);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(sample().logprobs[i], history.Logprob(sample().tokens[i])) << i;
    ASSERT_EQ(sample().top_logprobs[i].size(), 3u);
    EXPECT_EQ(sample().top_logprobs[i][2].logprob, history.Logprob(2));
    history.Feed(sample().tokens[i], true);
  }
}

TEST_F(GenerateTest, HeldTokensKeepTheirLogprobs) {
  Spell("aab", 1);
  GenerateSpec spec = Prompt({}, 9);
  spec.stop_strings = {"aac"};
  spec.want_logprobs = true;
  Generate(spec);
  EXPECT_EQ(sample().text, "aabaabaab");
  EXPECT_EQ(sample().logprobs.size(), 9u);
}

TEST_F(GenerateTest, NaturalLengthOfAnImageIsWhatIsLeftOfIt) {
  config_.content.type = ContentType::kImage;
  config_.content.height = 3;
  config_.content.width = 4;
  config_.content.channels = 2;
  Generate(Prompt({1, 2, 3}, 0));
  EXPECT_EQ(sample().tokens.size(), 21u);
  Generate(Prompt(std::vector<int32_t>(24, 1), 0));
  EXPECT_EQ(sample().tokens.size(), 0u);
  EXPECT_EQ(reason(), FinishReason::kLength);
}

TEST_F(GenerateTest, NaturalLengthIsElseWhatIsLeftOfThePositionsElseTheDefault) {
  options_.default_max_tokens = 17;
  Generate(Prompt({1, 2, 3}, 0));
  EXPECT_EQ(sample().tokens.size(), 17u);
  engine_.reset();
  config_.max_positions = 9;
  Generate(Prompt({1, 2, 3}, 0));
  EXPECT_EQ(sample().tokens.size(), 6u);
  engine_.reset();
  options_.max_tokens_limit = 4;
  Generate(Prompt({1, 2, 3}, 0));
  EXPECT_EQ(sample().tokens.size(), 4u);
}

TEST_F(GenerateTest, EndsAtTheModelsLastPosition) {
  for (bool with_bos : {true, false}) {
    config_ = FakeConfig(50, with_bos);
    config_.max_positions = 10;
    fake_.limits.max_steps = fake_.limits.preferred_steps = 4;
    engine_.reset();
    Generate(Prompt({1, 2, 3, 4}, 1000));
    EXPECT_EQ(sample().tokens.size(), with_bos ? 6u : 7u);
    EXPECT_EQ(reason(), FinishReason::kLength);
    Generate(Prompt({1, 2, 3, 4}, 5));
    EXPECT_EQ(engine_->GetLoad().ended_at_limit, 1) << "not what ends at max_tokens";
  }
}

TEST_F(GenerateTest, APromptOfTheLargestLengthGivesAnEmptyReplyWithoutASlot) {
  config_.max_positions = 4;
  GenerateSpec spec = Prompt({1, 2, 3, 4}, 5);
  spec.num_samples = 3;
  Generate(spec);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(sample(i).tokens.empty());
    EXPECT_EQ(reason(i), FinishReason::kLength);
  }
  EXPECT_EQ(collector_->usage().prompt_tokens, 4);
  EXPECT_EQ(probe_->calls(), 0);
  EXPECT_GT(collector_->id(), 0u);
  EXPECT_GT(collector_->usage().arrival, absl::UnixEpoch());
  EXPECT_EQ(collector_->usage().total_time, absl::ZeroDuration());
  EXPECT_EQ(engine_->meters().duration().Read().total(), 1);
}

TEST_F(GenerateTest, UsageHoldsTheTimesByTheEnginesClock) {
  Start();
  fake_.limits.num_slots = 1;
  engine_.reset();
  Start();
  probe_->AllowRuns(1);
  ReplyCollector first, second;
  ASSERT_EQ(first.Start(engine_.get(), Prompt({}, 2)), absl::OkStatus());
  ASSERT_EQ(second.Start(engine_.get(), Prompt({}, 3)), absl::OkStatus());
  first.WaitForTokens(1);
  clock_ms_ += 500;
  probe_->AllowRuns(2);  // the first's last token, the second's first
  EXPECT_EQ(first.Wait(), absl::OkStatus());
  second.WaitForTokens(1);
  clock_ms_ += 70;
  probe_->AllowAll();
  EXPECT_EQ(second.Wait(), absl::OkStatus());
  EXPECT_EQ(first.usage().queue_time, absl::ZeroDuration());
  EXPECT_EQ(first.usage().first_token_time, absl::ZeroDuration());
  EXPECT_EQ(first.usage().total_time, absl::Milliseconds(500));
  EXPECT_EQ(second.usage().queue_time, absl::Milliseconds(500));
  EXPECT_EQ(second.usage().first_token_time, absl::Milliseconds(500));
  EXPECT_EQ(second.usage().total_time, absl::Milliseconds(570));
}

TEST_F(GenerateTest, ATokenOutsideTheVocabularyEndsTheReplyNotTheEngine) {
  fake_.script = [](uint32_t, int64_t position) { return position == 3 ? -1 : 5; };
  Start();
  ReplyCollector bad;
  ASSERT_EQ(bad.Start(engine_.get(), Prompt({}, 9)), absl::OkStatus());
  const absl::Status status = bad.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(GetErrorDetail(status).reason, "NON_FINITE_OUTPUT");
  EXPECT_THAT(bad.sample().tokens, ElementsAre(5, 5));
  Generate(Prompt({}, 2));
}

}  // namespace
}  // namespace rivulet
