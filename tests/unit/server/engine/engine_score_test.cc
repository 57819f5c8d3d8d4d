// SPDX-License-Identifier: Apache-2.0
// Score: sums, windows, raw outputs.
#include <gmock/gmock.h>

#include <cmath>
#include <condition_variable>
#include <future>
#include <mutex>

#include "model/base/error.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {
namespace {

class ScoreTest : public EngineTest {
 protected:
  absl::StatusOr<ScoreResult> Score(ScoreSpec spec) {
    if (!engine_) Start();
    std::mutex mutex;
    std::condition_variable done;
    std::optional<absl::StatusOr<ScoreResult>> result;
    const auto id = engine_->Score(std::move(spec), [&](absl::StatusOr<ScoreResult> r) {
      std::lock_guard<std::mutex> lock(mutex);
      EXPECT_FALSE(result.has_value()) << "done is called once";
      result = std::move(r);
      done.notify_all();
    });
    if (!id.ok()) return id.status();
    std::unique_lock<std::mutex> lock(mutex);
    done.wait(lock, [&] { return result.has_value(); });
    lock.unlock();
    ExpectAtRest();
    return *std::move(result);
  }

  // From the definition in the API: each window from an empty state.
  ScoreResult Want(const ScoreSpec& spec) const {
    ScoreResult want;
    want.outputs.resize(spec.output_positions.size());
    const auto& tokens = spec.tokens;
    const bool bos = config_.has_bos();
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t scored = bos ? n : std::max<int64_t>(0, n - 1);
    const int64_t window = spec.window > 0 ? spec.window : std::max<int64_t>(1, scored);
    for (int64_t begin = 0; begin < scored; begin += window) {
      FakeHistory history;
      for (int64_t k = begin; k < std::min(scored, begin + window); ++k) {
        const size_t target = static_cast<size_t>(bos ? k : k + 1);
        const bool first = k == begin;
        history.Feed(bos && first ? *config_.bos_token_id : tokens[target - 1], false);
        const float logprob = history.Logprob(tokens[target]);
        want.nll_nats -= static_cast<double>(logprob);
        if (spec.want_logprobs) want.logprobs.push_back(logprob);
        ++want.num_scored;
        for (size_t j = 0; j < spec.output_positions.size(); ++j) {
          if (spec.output_positions[j] != k) continue;
          for (int i = 0; i < config_.output_size(); ++i) {
            want.outputs[j].push_back(history.Logprob(i));
          }
        }
      }
    }
    return want;
  }

  void ExpectAsDefined(const ScoreSpec& spec) {
    const auto got = Score(spec);
    ASSERT_EQ(got.status(), absl::OkStatus());
    const ScoreResult want = Want(spec);
    EXPECT_EQ(got->nll_nats, want.nll_nats);
    EXPECT_EQ(got->num_scored, want.num_scored);
    EXPECT_EQ(got->logprobs, want.logprobs);
    EXPECT_EQ(got->outputs, want.outputs);
  }

  static ScoreSpec Tokens(int count) {
    ScoreSpec spec;
    for (int i = 0; i < count; ++i) spec.tokens.push_back((i * 7) % 43);
    spec.want_logprobs = true;
    return spec;
  }
};

TEST_F(ScoreTest, EqualsTheDefinitionForEveryWindowAndBudget) {
  for (bool with_bos : {true, false}) {
    for (int budget : {1, 4, 256}) {
      config_ = FakeConfig(50, with_bos);
      options_.prefill_tokens_idle = budget;
      engine_.reset();
      for (int64_t window : {0, 1, 3, 10, 21, 100}) {
        for (int count : {1, 2, 21, 22}) {
          ScoreSpec spec = Tokens(count);
          spec.window = window;
          SCOPED_TRACE(::testing::Message() << "bos " << with_bos << " budget " << budget
                                            << " window " << window << " count " << count);
          ExpectAsDefined(spec);
        }
      }
    }
  }
}

TEST_F(ScoreTest, ReturnsOutputsInTheOrderAskedFor) {
  options_.prefill_tokens_idle = 5;
  fake_.polls_per_run = 3;
  ScoreSpec spec = Tokens(20);
  spec.output_positions = {19, 0, 7, 7, 4, 5, 12};
  ExpectAsDefined(spec);
  spec.window = 6;
  ExpectAsDefined(spec);
}

TEST_F(ScoreTest, NothingToScoreIsZeroWithoutTheBackend) {
  auto empty = Score(ScoreSpec());
  ASSERT_EQ(empty.status(), absl::OkStatus());
  EXPECT_EQ(empty->num_scored, 0);
  EXPECT_EQ(empty->nll_nats, 0);
  EXPECT_EQ(probe_->calls(), 0);
  engine_.reset();
  config_ = FakeConfig(50, false);
  auto one = Score(Tokens(1));
  ASSERT_EQ(one.status(), absl::OkStatus());
  EXPECT_EQ(one->num_scored, 0);
  EXPECT_EQ(probe_->calls(), 0);
}

TEST_F(ScoreTest, ANonFiniteValueIsDataLossThatNamesTheScoredPosition) {
  fake_.nan_score_position = 8;  // with the bos: after feeding 7 tokens, so scored token 7
  auto result = Score(Tokens(20));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("scored token 7"));
  EXPECT_EQ(GetErrorDetail(result.status()).reason, "NON_FINITE_OUTPUT");
  EXPECT_EQ(Score(Tokens(5)).status(), absl::OkStatus()) << "the next request is unharmed";
}

TEST_F(ScoreTest, ANonFiniteRawOutputIsDataLoss) {
  fake_.nan_output_position = 3;
  ScoreSpec spec = Tokens(10);
  EXPECT_EQ(Score(spec).status(), absl::OkStatus()) << "not asked for";
  spec.output_positions = {9, 2};
  auto result = Score(spec);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("scored token 2"));
}

TEST_F(ScoreTest, UsesPromptBudgetsAndZeroesBetweenWindows) {
  options_.prefill_tokens_idle = 8;
  ScoreSpec spec = Tokens(24);
  spec.window = 12;
  ExpectAsDefined(spec);
  std::vector<int> tokens;
  for (const FakeRun& run : probe_->runs()) tokens.push_back(run.rows[0].tokens);
  EXPECT_THAT(tokens, ::testing::ElementsAre(8, 4, 8, 4));
  EXPECT_EQ(probe_->zeroed(), 3) << "given out, between, taken back";
}

TEST_F(ScoreTest, AStateThatGrowsHasTheBytesOfItsWindow) {
  fake_.limits.state = {
      .fixed = kFakeStateBytes, .per_block = 8, .block_tokens = 2, .segment_tokens = 4};
  fake_.limits.bytes_per_slot = fake_.limits.state.At(100);
  options_.prefill_tokens_idle = 8;
  ScoreSpec spec = Tokens(24);
  spec.window = 12;
  Start();
  probe_->AllowRuns(3);  // of 8, 4, 8 and 4 tokens
  auto result = std::async(std::launch::async, [&] { return Score(spec); });
  ASSERT_TRUE(Eventually([&] { return probe_->num_runs() == 4; }));
  EXPECT_EQ(engine_->GetLoad().slot_bytes_used, int64_t{kFakeStateBytes} + 8 * 4)
      << "between the third run and the fourth: 8 tokens of the second window";
  probe_->AllowAll();
  EXPECT_TRUE(result.get().ok());
}

TEST_F(ScoreTest, ScoresAndRepliesShareTheEngine) {
  Start();
  ReplyCollector collector;
  const GenerateSpec generate = Prompt({1, 2, 3}, 300);
  ASSERT_EQ(collector.Start(engine_.get(), generate), absl::OkStatus());
  collector.WaitForTokens(1);
  const auto score = Score(Tokens(400));
  ASSERT_EQ(score.status(), absl::OkStatus());
  EXPECT_EQ(score->nll_nats, Want(Tokens(400)).nll_nats);
  EXPECT_EQ(collector.Wait(), absl::OkStatus());
  EXPECT_EQ(collector.sample().tokens, Solo(generate));
}

TEST_F(ScoreTest, CancelEndsAScore) {
  Start();
  probe_->AllowRuns(0);
  std::optional<absl::Status> ended;
  std::mutex mutex;
  const auto id = engine_->Score(Tokens(1000), [&](absl::StatusOr<ScoreResult> result) {
    std::lock_guard<std::mutex> lock(mutex);
    ended = result.status();
  });
  ASSERT_EQ(id.status(), absl::OkStatus());
  engine_->Cancel(*id);
  probe_->AllowRuns(1);
  EXPECT_TRUE(Eventually([&] {
    std::lock_guard<std::mutex> lock(mutex);
    return ended.has_value();
  }));
  EXPECT_EQ(ended->code(), absl::StatusCode::kCancelled);
  ExpectAtRest();
}

}  // namespace
}  // namespace rivulet
