// SPDX-License-Identifier: Apache-2.0
// Replies with drafts: they take fewer runs, and nothing else about them changes. The simulation
// mixes drafts with all else that may happen to a request.
#include <gmock/gmock.h>

#include "tests/support/fake_constraints.h"
#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

class DraftsTest : public EngineSessionTest {
 protected:
  DraftsTest() {
    fake_.limits.drafts.most = 4;
    fake_.limits.drafts.rows = 2;
  }
  void Generate(const GenerateSpec& spec) {
    if (!engine_) Start();
    const int64_t before = probe_->num_runs();
    ReplyCollector collector;
    ASSERT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
    EXPECT_EQ(collector.Wait(), absl::OkStatus());
    EXPECT_EQ(collector.violation(), "");
    ExpectAtRest();
    tokens_ = collector.sample(0).tokens;
    text_ = collector.sample(0).text;
    usage_ = collector.usage();
    runs_ = probe_->num_runs() - before;
  }
  // A request whose reply is predicted, with `drafts` a run.
  GenerateSpec Predicted(int64_t max_tokens, std::optional<int> drafts) const {
    GenerateSpec spec = Prompt({3, 1, 4}, max_tokens);
    spec.speculation.prediction = Solo(spec);
    spec.speculation.drafts = drafts;
    return spec;
  }

  std::vector<int32_t> tokens_;
  std::string text_;
  Usage usage_;
  int64_t runs_ = 0;
};

TEST_F(DraftsTest, RightDraftsSaveRuns) {
  const GenerateSpec spec = Predicted(21, 4);
  Generate(spec);
  EXPECT_EQ(tokens_, Solo(spec));
  EXPECT_EQ(runs_, 6) << "the prompt; a run that is measured; 19 tokens, 5 a run";
  EXPECT_EQ(usage_.drafted_tokens, 15);
  EXPECT_EQ(usage_.accepted_tokens, 15);
  const EngineLoad load = engine_->GetLoad();
  EXPECT_EQ(load.tokens_total, 21);
  EXPECT_EQ(load.drafted_total, 15);
  EXPECT_EQ(load.accepted_total, 15);
}

TEST_F(DraftsTest, AWrongDraftCostsNothingButItsRow) {
  GenerateSpec spec = Predicted(21, 4);
  for (const size_t i : {2, 7, 13}) spec.speculation.prediction[i] ^= 1;
  Generate(spec);
  EXPECT_EQ(tokens_, Solo(spec));
  EXPECT_LT(usage_.accepted_tokens, usage_.drafted_tokens);
  EXPECT_EQ(runs_, 21 - usage_.accepted_tokens);
  EXPECT_EQ(engine_->GetLoad().drafted_total, usage_.drafted_tokens);
  EXPECT_EQ(engine_->GetLoad().accepted_total, usage_.accepted_tokens);
}

TEST_F(DraftsTest, ComeFromThePromptToo) {
  GenerateSpec spec = Prompt({5, 6, 7}, 20);
  const std::vector<int32_t> drawn = Solo(spec);
  fake_.script = [drawn](uint32_t, int64_t position) {  // repeats what the prompt holds
    return drawn[static_cast<size_t>(position) % 10];
  };
  for (int i = 0; i < 20; ++i) spec.prompt.push_back(drawn[static_cast<size_t>(4 + i) % 10]);
  Generate(spec);
  EXPECT_EQ(tokens_, Solo(spec));
  EXPECT_GT(usage_.accepted_tokens, 5) << "as many as pay, where nothing is specified";
}

TEST_F(DraftsTest, TheBackendGuessesWhereTheTokensAreNew) {
  fake_.limits.drafts.guesses = 3;
  GenerateSpec spec = Prompt({3, 1, 4}, 60);
  spec.speculation.drafts = 4;
  Generate(spec);
  EXPECT_EQ(tokens_, Solo(spec));
  EXPECT_GT(usage_.accepted_tokens, 20) << "two of three guesses are right";
  EXPECT_EQ(runs_, 60 - usage_.accepted_tokens);
  spec.speculation.drafts.reset();
  Generate(spec);
  EXPECT_EQ(tokens_, Solo(spec));
  EXPECT_GT(usage_.accepted_tokens, 0);
}

TEST_F(DraftsTest, ThereAreNoneWhereTheyAreOff) {
  Generate(Predicted(10, 0));
  EXPECT_EQ(usage_.drafted_tokens, 0);
  EXPECT_EQ(runs_, 10);
  engine_.reset();
  probe_ = std::make_shared<FakeProbe>();
  fake_.limits.drafts.most = 0;
  Start();
  Generate(Predicted(10, 4));
  EXPECT_EQ(usage_.drafted_tokens, 0);
}

TEST_F(DraftsTest, EndBeforeAStateThatASessionKeeps) {
  options_.sessions.checkpoint_tokens = 7;
  Start();
  GenerateSpec spec = Predicted(30, 4);
  spec.session = Open();
  Generate(spec);
  EXPECT_EQ(tokens_, Solo(spec));
  EXPECT_GT(usage_.accepted_tokens, 15);
  for (const FakeRun& run : probe_->runs()) {
    EXPECT_LE(run.rows[0].position % 7 + run.rows[0].tokens, 7) << run.rows[0].position;
  }
}

TEST_F(DraftsTest, ConstraintsTellTheMaskOfEachDraft) {
  for (const int looks : {0, 1, 5}) {
    std::string letters = "abcdefghijklmnopqrstuvwxyz";
    config_ = FakeConfig(28, true);
    config_.eos_token_id = 26;
    tokenizer_ = *CreateCharTokenizer(letters);
    options_.constraints = std::make_shared<FakeConstraints>(tokenizer_.get(), config_.vocab_size,
                                                             [looks] { return looks; });
    fake_.limits.late_masks = true;
    probe_ = std::make_shared<FakeProbe>();
    engine_.reset();
    GenerateSpec spec = Prompt({3, 1, 4}, 40);
    spec.want_logprobs = true;  // else one text would be written without draws
    spec.constraint.emplace();
    spec.constraint->kind = Constraint::Kind::kChoices;
    spec.constraint->choices = {"thequickbrownfox", "thequickbluewhale"};
    spec.speculation.drafts = 0;
    Generate(spec);
    const std::string alone = text_;
    spec.speculation.drafts = 4;
    spec.speculation.prediction = tokens_;
    Generate(spec);
    EXPECT_EQ(text_, alone);
    if (looks == 0) {
      EXPECT_GT(usage_.accepted_tokens, 8);
    }
    for (int32_t& token : spec.speculation.prediction) token = 25 - token;
    Generate(spec);
    EXPECT_EQ(text_, alone);
    EXPECT_EQ(usage_.accepted_tokens, 0);
  }
}

}  // namespace
}  // namespace rivulet
