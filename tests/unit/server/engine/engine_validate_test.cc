// SPDX-License-Identifier: Apache-2.0
// What the engine refuses, and how it says so.
#include <gmock/gmock.h>

#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

class ValidateTest : public EngineTest {
 protected:
  void SetUp() override {
    config_ = FakeConfig(30, true);
    tokenizer_ = *CreateCharTokenizer("abcdefghijklmnopqrstuvwxyz");
  }
  void ExpectRefused(const GenerateSpec& spec, absl::StatusCode code, absl::string_view reason,
                     absl::string_view field, absl::string_view held) {
    if (!engine_) Start();
    ReplyCollector collector;
    const absl::Status status = collector.Start(engine_.get(), spec);
    Check(status, code, reason, field, held);
  }
  void ExpectScoreRefused(const ScoreSpec& spec, absl::StatusCode code, absl::string_view reason,
                          absl::string_view field, absl::string_view held) {
    if (!engine_) Start();
    const auto id = engine_->Score(
        spec, [](absl::StatusOr<ScoreResult>) { ADD_FAILURE() << "called after an error"; });
    Check(id.status(), code, reason, field, held);
  }
  static void Check(const absl::Status& status, absl::StatusCode code, absl::string_view reason,
                    absl::string_view field, absl::string_view held) {
    SCOPED_TRACE(status.ToString());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(GetErrorDetail(status).reason, std::string(reason));
    EXPECT_EQ(GetErrorDetail(status).field, std::string(field));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(field)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(held)));
  }
  static constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  static constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;
};

TEST_F(ValidateTest, TokensOutsideTheVocabulary) {
  ExpectRefused(Prompt({1, 30}, 5), kInvalid, "TOKEN_OUT_OF_RANGE", "prompt.tokens[1]", "30");
  ExpectRefused(Prompt({-1}, 5), kInvalid, "TOKEN_OUT_OF_RANGE", "prompt.tokens[0]", "-1");
}

TEST_F(ValidateTest, AnEmptyPromptWithoutABos) {
  config_ = FakeConfig(30, false);
  ExpectRefused(Prompt({}, 5), kInvalid, "PROMPT_EMPTY", "prompt", "bos");
}

TEST_F(ValidateTest, APromptPastTheModelsPositions) {
  config_.max_positions = 3;
  ExpectRefused(Prompt({1, 2, 3, 4}, 5), kOutOfRange, "TOO_MANY_TOKENS", "prompt.tokens",
                "holds 4 tokens; the model's sequences end at 3");
  config_ = FakeConfig(30, false);
  config_.max_positions = 3;
  engine_.reset();
  ExpectRefused(Prompt({1, 2, 3, 4, 5}, 5), kOutOfRange, "TOO_MANY_TOKENS", "prompt.tokens",
                "end at 4");
}

TEST_F(ValidateTest, MaxTokens) {
  for (int64_t bad : {int64_t{-1}, options_.max_tokens_limit + 1,
                      std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    ExpectRefused(Prompt({1}, bad), kInvalid, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens",
                  std::to_string(bad));
  }
}

TEST_F(ValidateTest, TokensOverAllSamples) {
  options_.max_request_tokens = 100;
  GenerateSpec spec = Prompt({1}, 33);
  for (const auto& [samples, most] : {std::pair{1, 100}, {3, 33}, {4, 25}}) {
    spec.num_samples = samples;
    spec.max_tokens = most + 1;
    ExpectRefused(spec, kInvalid, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens",
                  absl::StrCat("max_tokens is ", most + 1, " for each of ", samples,
                               " samples; allowed: at most ", most, ", "));
    spec.max_tokens = most;
    ReplyCollector taken;
    EXPECT_EQ(taken.Start(engine_.get(), spec), absl::OkStatus());
    EXPECT_EQ(taken.Wait(), absl::OkStatus());
    EXPECT_EQ(taken.usage().completion_tokens, samples * most);
    // A natural length is cut to what is allowed.
    spec.max_tokens = 0;
    ReplyCollector natural;
    EXPECT_EQ(natural.Start(engine_.get(), spec), absl::OkStatus());
    EXPECT_EQ(natural.Wait(), absl::OkStatus());
    EXPECT_EQ(natural.usage().completion_tokens, samples * most);
  }
  engine_.reset();
  options_.max_request_tokens = 2;
  spec.num_samples = 3;
  ExpectRefused(spec, kInvalid, "NUM_SAMPLES_OUT_OF_RANGE", "num_samples", "1 to 2");
}

TEST_F(ValidateTest, NumSamples) {
  GenerateSpec spec = Prompt({1}, 5);
  for (int bad : {0, -1, 5, std::numeric_limits<int>::max()}) {  // 4 slots
    spec.num_samples = bad;
    ExpectRefused(spec, kInvalid, "NUM_SAMPLES_OUT_OF_RANGE", "num_samples", "1 to 4");
  }
  engine_.reset();
  options_.max_num_samples = 2;
  spec.num_samples = 3;
  ExpectRefused(spec, kInvalid, "NUM_SAMPLES_OUT_OF_RANGE", "num_samples", "1 to 2");
}

TEST_F(ValidateTest, StopTokens) {
  GenerateSpec spec = Prompt({1}, 5);
  spec.stop_ids = {0, 29, 30};
  ExpectRefused(spec, kInvalid, "TOKEN_OUT_OF_RANGE", "stop.token_ids[2]", "30");
  spec.stop_ids.assign(65, 1);
  ExpectRefused(spec, kInvalid, "TOO_MANY_STOP_TOKENS", "stop.token_ids", "65");
}

TEST_F(ValidateTest, StopStrings) {
  GenerateSpec spec = Prompt({1}, 5);
  spec.stop_strings = {"a", ""};
  ExpectRefused(spec, kInvalid, "STOP_STRING_LENGTH", "stop.strings[1]", "0 bytes");
  spec.stop_strings = {std::string(257, 'x')};
  ExpectRefused(spec, kInvalid, "STOP_STRING_LENGTH", "stop.strings[0]", "257");
  spec.stop_strings.assign(17, "x");
  ExpectRefused(spec, kInvalid, "TOO_MANY_STOP_STRINGS", "stop.strings", "17");
  engine_.reset();
  tokenizer_.reset();
  spec.stop_strings = {"x"};
  ExpectRefused(spec, kInvalid, "NO_TOKENIZER", "stop.strings", "no tokenizer");
}

TEST_F(ValidateTest, MinTokens) {
  GenerateSpec spec = Prompt({1}, 5);
  const auto refused = [&](int64_t bad, absl::string_view held) {
    spec.min_tokens = bad;
    ExpectRefused(spec, kInvalid, "MIN_TOKENS_OUT_OF_RANGE", "stop.min_tokens", held);
  };
  refused(-1, "-1; allowed: 0 to 5");
  refused(6, "6; allowed: 0 to 5");
  spec.max_tokens = 0;
  refused(257, "257; allowed: 0 to 256");  // the natural length
  for (int32_t token = 0; token < 30; ++token) spec.stop_ids.push_back(token);
  refused(1, "each token of this model is a stop token");
  engine_.reset();
  config_.output.type = OutputType::kMixtureOfLogistics;
  config_.output.num_mixtures = 2;
  config_.output.num_levels = 20;
  refused(1, "draws from mixtures");
}

TEST_F(ValidateTest, Speculation) {
  GenerateSpec spec = Prompt({1}, 5);
  for (const int bad : {-1, 17}) {
    spec.speculation.drafts = bad;
    ExpectRefused(spec, kInvalid, "DRAFTS_OUT_OF_RANGE", "speculation.drafts",
                  absl::StrCat(bad, "; allowed: 0 to 16"));
  }
  spec.speculation = {16, {1, config_.vocab_size}};
  ExpectRefused(spec, kInvalid, "TOKEN_OUT_OF_RANGE", "speculation.tokens[1]", "is 30");
  spec.speculation.prediction.assign(131'073, 1);
  ExpectRefused(spec, kInvalid, "PREDICTION_TOO_LONG", "speculation.prediction",
                "holds 131073 tokens; allowed: at most 131072");
}

TEST_F(ValidateTest, OptionsOfTheTextNeedATokenizer) {
  tokenizer_.reset();
  GenerateSpec spec = Prompt({1}, 5);
  spec.skip_special_tokens = true;
  ExpectRefused(spec, kInvalid, "NO_TOKENIZER", "skip_special_tokens", "no tokenizer");
  spec.reasoning = {"", "b"};
  ExpectRefused(spec, kInvalid, "NO_TOKENIZER", "reasoning", "no tokenizer");
}

TEST_F(ValidateTest, TheTextsAroundTheReasoning) {
  GenerateSpec spec = Prompt({1}, 5);
  spec.reasoning = {std::string(65, 'x'), std::string(64, 'y')};
  ExpectRefused(spec, kInvalid, "REASONING_INVALID", "reasoning.begin", "65 bytes");
  spec.reasoning = {"", ""};
  ExpectRefused(spec, kInvalid, "REASONING_INVALID", "reasoning.end", "0 bytes");
}

TEST_F(ValidateTest, Logprobs) {
  GenerateSpec spec = Prompt({1}, 5);
  spec.want_logprobs = true;
  for (int bad : {-1, 21}) {
    spec.num_top_logprobs = bad;
    ExpectRefused(spec, kInvalid, "TOP_LOGPROBS_OUT_OF_RANGE", "logprobs.top_n",
                  std::to_string(bad));
  }
  spec.want_logprobs = false;
  spec.num_top_logprobs = 2;
  ExpectRefused(spec, kInvalid, "TOP_LOGPROBS_WITHOUT_LOGPROBS", "logprobs.top_n", "enabled");
}

TEST_F(ValidateTest, SamplingIsCheckedUnderItsOwnName) {
  Start();
  GenerateSpec spec = Prompt({1}, 5);
  spec.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  ReplyCollector collector;
  const absl::Status status = collector.Start(engine_.get(), spec);
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_EQ(GetErrorDetail(status).field, "sampling.temperature");
}

TEST_F(ValidateTest, ScoredTokensMustBeOutputs) {
  config_.output.type = OutputType::kMixtureOfLogistics;
  config_.output.num_mixtures = 2;
  config_.output.num_levels = 20;
  ScoreSpec spec;
  spec.tokens = {1, 20};
  ExpectScoreRefused(spec, kInvalid, "TOKEN_OUT_OF_RANGE", "content.tokens[1]", "0 to 19");
  config_.bos_token_id.reset();
  engine_.reset();
  ExpectScoreRefused(spec, kInvalid, "TOKEN_OUT_OF_RANGE", "content.tokens[1]", "0 to 19");
  spec.tokens = {30, 1};
  ExpectScoreRefused(spec, kInvalid, "TOKEN_OUT_OF_RANGE", "content.tokens[0]", "0 to 29");
  spec.tokens = {-5};
  ExpectScoreRefused(spec, kInvalid, "TOKEN_OUT_OF_RANGE", "content.tokens[0]", "-5");
}

TEST_F(ValidateTest, ScoreLengthAndWindow) {
  for (bool with_bos : {true, false}) {
    config_ = FakeConfig(30, with_bos);
    config_.max_positions = 5;
    engine_.reset();
    const int limit = with_bos ? 5 : 6;
    ScoreSpec spec;
    spec.tokens.assign(static_cast<size_t>(limit) + 1, 1);
    ExpectScoreRefused(spec, kOutOfRange, "TOO_MANY_TOKENS", "content.tokens",
                       "end at " + std::to_string(limit));
    spec.tokens.assign(40, 1);
    spec.window = 6;
    ExpectScoreRefused(spec, kOutOfRange, "TOO_MANY_TOKENS", "window",
                       "end at " + std::to_string(limit));
    spec.window = -1;
    ExpectScoreRefused(spec, kInvalid, "WINDOW_OUT_OF_RANGE", "window", "-1");
    spec.window = 5;
    std::atomic<int> ok{0};
    const auto done = [&](absl::StatusOr<ScoreResult> result) { ok += result.ok() ? 1 : -100; };
    EXPECT_EQ(engine_->Score(spec, done).status(), absl::OkStatus());
    spec.tokens.assign(static_cast<size_t>(limit), 1);
    spec.window = 100;
    EXPECT_EQ(engine_->Score(spec, done).status(), absl::OkStatus());
    EXPECT_TRUE(Eventually([&] { return ok == 2; }));
    ExpectAtRest();
  }
}

TEST_F(ValidateTest, OutputPositions) {
  ScoreSpec spec;
  spec.tokens = {1, 2, 3};
  spec.output_positions = {0, 3};
  ExpectScoreRefused(spec, kInvalid, "OUTPUT_POSITION_OUT_OF_RANGE", "output_positions[1]", "3");
  spec.output_positions = {-1};
  ExpectScoreRefused(spec, kInvalid, "OUTPUT_POSITION_OUT_OF_RANGE", "output_positions[0]", "-1");
  spec.tokens.clear();
  spec.output_positions = {0};
  ExpectScoreRefused(spec, kInvalid, "OUTPUT_POSITION_OUT_OF_RANGE", "output_positions[0]", "0");
  engine_.reset();
  options_.max_score_outputs = 2;
  spec.tokens = {1, 2, 3};
  spec.output_positions = {0, 1, 2};
  ExpectScoreRefused(spec, kInvalid, "TOO_MANY_OUTPUT_POSITIONS", "output_positions", "3");
}

}  // namespace
}  // namespace rivulet
