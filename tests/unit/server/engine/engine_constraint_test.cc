// SPDX-License-Identifier: Apache-2.0
// Constraints in the engine: masks, forced tokens, ends, and rows whose mask comes late.
#include <gmock/gmock.h>

#include <memory>

#include "model/base/error.h"
#include "tests/support/fake_constraints.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Tokens 1 to 26 are letters, 27 a space, 28 "the ", 29 the end token.
class ConstraintTest : public EngineSessionTest {
 protected:
  ConstraintTest() {
    std::vector<std::string> pieces = {""};
    for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c);
    pieces.insert(pieces.end(), {" ", "the ", "<end>"});
    config_ = FakeConfig(int(pieces.size()), true);
    config_.eos_token_id = int32_t(pieces.size()) - 1;
    tokenizer_ = std::make_unique<PieceTokenizer>(std::move(pieces));
    fake_.limits.late_masks = true;
  }
  // `looks`: FakeConstraints.
  void StartWith(int looks) {
    constraints_ = std::make_shared<FakeConstraints>(tokenizer_.get(), config_.vocab_size,
                                                     [looks] { return looks; });
    options_.constraints = constraints_;
    engine_.reset();  // it holds slots of the backend before
    probe_ = std::make_shared<FakeProbe>();
    Start();
  }
  GenerateSpec Choices(std::vector<std::string> choices, uint64_t seed = 1) {
    GenerateSpec spec = Prompt({3, 1, 4}, 40, seed);
    spec.constraint.emplace();
    spec.constraint->kind = Constraint::Kind::kChoices;
    spec.constraint->choices = std::move(choices);
    return spec;
  }
  CollectedSample Run(const GenerateSpec& spec, size_t sample = 0) {
    ReplyCollector collector;
    EXPECT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
    EXPECT_EQ(collector.Wait(), absl::OkStatus());
    EXPECT_EQ(collector.violation(), "");
    ExpectAtRest();
    return collector.sample(sample);
  }

  std::shared_ptr<FakeConstraints> constraints_;
};

TEST_F(ConstraintTest, TheTextIsOneOfTheChoicesWheneverAMaskComes) {
  const std::vector<std::string> choices = {"abc", "abd", "the cat", "the cow", "thx"};
  std::vector<CollectedSample> at_once;
  for (const int looks : {0, 1, 2, 7}) {
    StartWith(looks);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      for (const bool logprobs : {false, true}) {  // with them there are no forced tokens
        GenerateSpec spec = Choices(choices, seed);
        spec.want_logprobs = logprobs;
        spec.sampling.presence_penalty = 1;
        CollectedSample reply = Run(spec);
        EXPECT_THAT(choices, ::testing::Contains(reply.text));
        EXPECT_EQ(reply.finish->reason, FinishReason::kConstraint);
        EXPECT_EQ(reply.logprobs.size(), logprobs ? reply.tokens.size() : 0);
        if (at_once.size() <= seed) at_once.push_back(reply);
        EXPECT_EQ(reply.tokens, at_once[seed].tokens);
      }
    }
  }
}

TEST_F(ConstraintTest, SamplesInOneBatchEqualThoseAlone) {
  StartWith(1);
  GenerateSpec spec = Choices({"aaaaab", "aaaaac", "the end of the day", "the end of the ox"});
  spec.num_samples = 4;
  ReplyCollector all;
  ASSERT_EQ(all.Start(engine_.get(), spec), absl::OkStatus());
  ASSERT_EQ(all.Wait(), absl::OkStatus());
  StartWith(0);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(Run(spec, i).text, all.sample(i).text);
}

TEST_F(ConstraintTest, ForcedTokensAreFedInOneRun) {
  StartWith(1);  // known before the next run is planned
  const CollectedSample reply = Run(Choices({"zabcdefghijklmnop"}));
  EXPECT_EQ(reply.text, "zabcdefghijklmnop");
  EXPECT_LE(probe_->num_runs(), 3);
  EXPECT_EQ(engine_->GetLoad().tokens_total, 17);
  EXPECT_EQ(engine_->GetLoad().forced_total, 17);
}

TEST_F(ConstraintTest, TheEndTokenIsDrawnOnlyWhereTheTextMayEnd) {
  StartWith(0);
  fake_.script = [](uint32_t, int64_t) { return 29; };  // always the end token
  StartWith(0);
  const CollectedSample reply = Run(Choices({"ab", "abc"}));
  EXPECT_EQ(reply.text, "ab");
  EXPECT_EQ(reply.finish->reason, FinishReason::kStopToken);
  EXPECT_EQ(Run(Choices({"abq", "xyz"})).text, "abq");
}

TEST_F(ConstraintTest, MaxTokensAndStopStringsCutTheText) {
  StartWith(1);
  GenerateSpec spec = Choices({"abcdefgh"});
  spec.max_tokens = 3;
  CollectedSample reply = Run(spec);
  EXPECT_EQ(reply.text, "abc");
  EXPECT_EQ(reply.finish->reason, FinishReason::kLength);
  spec.max_tokens = 40;
  spec.stop_strings = {"de"};
  reply = Run(spec);
  EXPECT_EQ(reply.text, "abc");
  EXPECT_EQ(reply.finish->reason, FinishReason::kStopString);
}

TEST_F(ConstraintTest, ForcedTokensReachTheModelsLastPosition) {
  config_.max_positions = 10;
  StartWith(1);
  const CollectedSample reply = Run(Choices({"zabcdefghijklmnop"}));
  EXPECT_EQ(reply.text, "zabcdef");
  EXPECT_EQ(reply.finish->reason, FinishReason::kLength);
  EXPECT_EQ(engine_->GetLoad().ended_at_limit, 1);
}

TEST_F(ConstraintTest, ADeadEndIsAnErrorThatSaysHowFarTheReplyCame) {
  StartWith(1);
  const absl::Status status = GenerateError(Choices({"ab\xC3\xA9"}));  // no token has its bytes
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "CONSTRAINT_DEAD_END");
  EXPECT_EQ(GetErrorDetail(status).metadata.at("sent_tokens"), "2");
  ExpectAtRest();
}

TEST_F(ConstraintTest, AGrammarThatFailsEndsItsRequestAlone) {
  StartWith(5);
  ReplyCollector other;
  ASSERT_EQ(other.Start(engine_.get(), Choices({"abc"})), absl::OkStatus());
  EXPECT_EQ(ReasonOf(GenerateError(Choices({"fail"}))), "CONSTRAINT_TOO_HARD");
  EXPECT_EQ(other.Wait(), absl::OkStatus());
  ExpectAtRest();
}

TEST_F(ConstraintTest, WhatIsWrongIsRefusedByName) {
  StartWith(0);
  GenerateSpec spec = Choices({});
  EXPECT_EQ(GetErrorDetail(GenerateError(spec)).field, "constraint.choices");
  spec = Choices({"a"});
  spec.ignore_eos = true;
  EXPECT_EQ(GetErrorDetail(GenerateError(spec)).field, "stop.ignore_eos");
  spec.ignore_eos = false;
  spec.min_tokens = 1;
  EXPECT_EQ(ReasonOf(GenerateError(spec)), "CONSTRAINT_INVALID");
  EXPECT_EQ(GetErrorDetail(GenerateError(spec)).field, "stop.min_tokens");
  spec = Choices({"a"});
  spec.constraint->begin_position = 4;
  EXPECT_EQ(GetErrorDetail(GenerateError(spec)).field, "constraint.begin_position");
  spec.constraint->begin_position = 2;
  EXPECT_EQ(ReasonOf(GenerateError(spec)), "CONSTRAINT_MISMATCH");  // "d" is no "a"
  options_.constraints = nullptr;
  Start();
  EXPECT_EQ(ReasonOf(GenerateError(Choices({"a"}))), "NO_TOKENIZER");
}

TEST_F(ConstraintTest, ASessionContinuesInTheMiddleOfTheText) {
  for (const int looks : {0, 3}) {
    StartWith(looks);
    SessionRef session = Open();
    ASSERT_TRUE(Append(session, {3, 1, 4}).ok());
    GenerateSpec spec = SpecOf(session, 40);
    spec.constraint =
        Choices({"abcdeuvwxyz", "abcdfuvwxyz", "the cat sat", "the cow ran"}).constraint;
    spec.constraint->begin_position = 3;
    const std::vector<int32_t> whole = Generate(spec);
    for (int64_t cut = 0; cut < std::ssize(whole); ++cut) {
      spec.session->position = 3 + cut;
      const std::vector<int32_t> rest = Generate(spec);
      EXPECT_EQ(rest, std::vector<int32_t>(whole.begin() + cut, whole.end())) << cut;
    }
    ExpectAtRest();
  }
}

TEST_F(ConstraintTest, AReplyThatWaitsForItsMaskKeepsItsSlot) {
  fake_.limits.num_slots = fake_.limits.max_rows = 1;
  options_.preempt_after_runs = 1;
  StartWith(3);
  ReplyCollector first, second;
  GenerateSpec spec = Choices({"abcdefg", "abcdefx", "abcxyz", "bca"});
  spec.tenant = "a";
  spec.want_logprobs = true;  // draws each token
  ASSERT_EQ(first.Start(engine_.get(), spec), absl::OkStatus());
  spec.tenant = "b";
  ASSERT_EQ(second.Start(engine_.get(), spec), absl::OkStatus());
  EXPECT_EQ(first.Wait(), absl::OkStatus());
  EXPECT_EQ(second.Wait(), absl::OkStatus());
  EXPECT_EQ(first.sample().text, second.sample().text);
  EXPECT_GT(engine_->GetLoad().preempted_total, 0);
  ExpectAtRest();
}

TEST_F(ConstraintTest, ABackendWithoutLateMasksGetsThemInTime) {
  fake_.limits.late_masks = false;
  for (const int looks : {0, 4}) {
    StartWith(looks);
    EXPECT_EQ(Run(Choices({"abcdefg"})).text, "abcdefg");
  }
}

}  // namespace
}  // namespace rivulet
