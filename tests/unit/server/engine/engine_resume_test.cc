// SPDX-License-Identifier: Apache-2.0
// A reply that was lost is continued: what follows is what would have followed.
#include <gmock/gmock.h>

#include <functional>

#include "model/base/error.h"
#include "model/text/text_decoder.h"
#include "tests/support/fake_constraints.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

class ResumeTest : public EngineSessionTest {
 protected:
  std::unique_ptr<ReplyCollector> Run(const GenerateSpec& spec) {
    if (!engine_) Start();
    auto collector = std::make_unique<ReplyCollector>();
    const absl::Status started = collector->Start(engine_.get(), spec);
    EXPECT_EQ(started, absl::OkStatus());
    if (!started.ok()) return nullptr;  // no end would come
    EXPECT_EQ(collector->Wait(), absl::OkStatus());
    EXPECT_EQ(collector->violation(), "");
    ExpectAtRest();
    return collector;
  }

  // What a client has of the text after these tokens, unless the sample has ended.
  std::string TextBefore(const std::vector<int32_t>& tokens) const {
    std::string text;
    if (tokenizer_ == nullptr) return text;
    TextDecoder decoder(tokenizer_.get(), DecodeOptions());
    for (const int32_t token : tokens) decoder.AddBytes(tokenizer_->TokenBytes(token), &text);
    return text;
  }

  // Continues the reply to `spec` from every cut of sample 0, of the others from cuts beside it.
  void ExpectEveryCutContinues(const GenerateSpec& spec) {
    const auto whole = Run(spec);
    for (size_t cut = 0; cut <= whole->sample(0).tokens.size(); ++cut) {
      GenerateSpec again = spec;
      again.resume.emplace();
      again.resume->fingerprint = whole->fingerprint();
      if (again.session) again.session->repeated = true;
      for (int i = 0; i < spec.num_samples; ++i) {
        const std::vector<int32_t>& all = whole->sample(size_t(i)).tokens;
        const size_t count = std::min(all.size(), cut + 3 * size_t(i));
        again.resume->tokens.emplace_back(all.begin(), all.begin() + int64_t(count));
      }
      const auto rest = Run(again);
      ASSERT_NE(rest, nullptr);
      for (int i = 0; i < spec.num_samples; ++i) {
        ExpectRest(whole->sample(size_t(i)), again.resume->tokens[size_t(i)],
                   rest->sample(size_t(i)), absl::StrCat("cut ", cut, " sample ", i));
      }
      EXPECT_EQ(rest->usage().completion_tokens, whole->usage().completion_tokens);
      EXPECT_EQ(rest->usage().reasoning_tokens, whole->usage().reasoning_tokens);
      EXPECT_EQ(rest->usage().prompt_tokens, whole->usage().prompt_tokens);
      EXPECT_EQ(rest->fingerprint(), whole->fingerprint());
    }
  }

 private:
  void ExpectRest(const CollectedSample& whole, const std::vector<int32_t>& had,
                  const CollectedSample& rest, const std::string& what) {
    EXPECT_EQ(rest.tokens, whole.tokens) << what;
    const std::string before = TextBefore(had);
    EXPECT_EQ(rest.text, whole.text.substr(std::min(before.size(), whole.text.size()))) << what;
    const std::vector<float> logprobs(
        whole.logprobs.begin() + int64_t(std::min(had.size(), whole.logprobs.size())),
        whole.logprobs.end());
    EXPECT_EQ(rest.logprobs, logprobs) << what;
    EXPECT_EQ(rest.finish->reason, whole.finish->reason) << what;
    EXPECT_EQ(rest.finish->stop_string, whole.finish->stop_string) << what;
    EXPECT_EQ(rest.finish->stop_token, whole.finish->stop_token) << what;
    ASSERT_EQ(rest.session.has_value(), whole.session.has_value()) << what;
    if (!whole.session) return;
    EXPECT_EQ(rest.session->position, whole.session->position) << what;
    EXPECT_EQ(rest.session->hash, whole.session->hash) << what;
  }
};

TEST_F(ResumeTest, FromEveryTokenOfALongReply) {
  GenerateSpec spec = Prompt({3, 1, 4, 1, 5}, 20);
  spec.want_logprobs = true;
  ExpectEveryCutContinues(spec);
}

TEST_F(ResumeTest, StopStringsAcrossTheCut) {
  config_ = FakeConfig(30, true);
  const std::vector<std::string> pieces = {"a", ".\n", "\nUs", "er: b", "c", "\xC3", "\xA9"};
  tokenizer_ = std::make_unique<PieceTokenizer>(pieces);
  fake_.script = [](uint32_t, int64_t position) {
    constexpr int32_t kDrawn[] = {0, 5, 6, 1, 0, 1, 2, 3, 4};
    return kDrawn[size_t(position - 1) % std::size(kDrawn)];
  };
  GenerateSpec spec = Prompt({}, 30);
  for (const char* const stop : {"\n\nUser", "s", "c", "a.\n\n", "nowhere", "\u00E9"}) {
    spec.stop_strings = {stop};
    for (const bool include : {false, true}) {
      SCOPED_TRACE(stop);
      spec.include_stop_string = include;
      ExpectEveryCutContinues(spec);
    }
  }
}

TEST_F(ResumeTest, AmongTheFirstTokensThatEndNoSample) {
  config_ = FakeConfig(30, true);
  tokenizer_ = std::make_unique<PieceTokenizer>(std::vector<std::string>{"a", "b", "c", "d"});
  fake_.script = [](uint32_t sample, int64_t position) { return (position - 1 + sample) % 3; };
  GenerateSpec spec = Prompt({}, 30);
  spec.num_samples = 2;
  spec.min_tokens = 4;
  spec.reasoning = {"", "bc"};
  spec.stop_strings = {"aba"};
  for (const bool with_end_token : {false, true}) {
    if (with_end_token) spec.stop_ids = {2};
    ExpectEveryCutContinues(spec);
  }
}

TEST_F(ResumeTest, InTheMiddleOfAConstraintsText) {
  config_ = FakeConfig(8, true);
  tokenizer_ = std::make_unique<PieceTokenizer>(
      std::vector<std::string>{"", "a", "b", "c", "d", "ab", "cd", "<end>"});
  config_.eos_token_id = 7;
  fake_.limits.late_masks = true;
  options_.constraints = std::make_shared<FakeConstraints>(tokenizer_.get(), 8, [] { return 1; });
  GenerateSpec spec = Prompt({1, 2}, 30);
  spec.num_samples = 3;
  spec.sampling.frequency_penalty = 1;
  spec.constraint.emplace();
  spec.constraint->kind = Constraint::Kind::kChoices;
  spec.constraint->choices = {"abcdabcd", "abcdabc", "abdddda", "cccccccccd", "ab"};
  for (const bool logprobs : {false, true}) {
    spec.want_logprobs = logprobs;
    ExpectEveryCutContinues(spec);
  }
}

TEST_F(ResumeTest, ATextEndsInTheMiddleOfACodePoint) {
  config_ = FakeConfig(30, true);
  tokenizer_ = std::make_unique<PieceTokenizer>(std::vector<std::string>{"x", "\xC3"});
  fake_.script = [](uint32_t, int64_t position) { return position == 3 ? 1 : 0; };
  ExpectEveryCutContinues(Prompt({}, 3));
}

TEST_F(ResumeTest, InASessionFromItsPosition) {
  options_.default_max_tokens = 5;
  Start();
  SessionRef session = Open();
  ASSERT_TRUE(Append(session, {3, 1, 4}).ok());
  session.position = 3;
  session.hash = HashTokens(kEmptySequenceHash, std::vector<int32_t>{3, 1, 4});
  GenerateSpec spec = SpecOf(session, 12, {1, 5});
  spec.sampling.repetition_penalty = 1.5f;
  ExpectEveryCutContinues(spec);
  ASSERT_TRUE(Rewind(session, 3).ok());
  spec.max_tokens = 0;
  ExpectEveryCutContinues(spec);
  session = Open();
  session.position = 0;
  ExpectEveryCutContinues(SpecOf(session, 4));
}

TEST_F(ResumeTest, ASessionThatAnotherHasChangedIsRefused) {
  Start();
  const SessionRef end = Open();
  ASSERT_TRUE(Append(end, {3, 1, 4}).ok());
  GenerateSpec spec = SpecOf(end, 3);  // that reply has a fingerprint, too
  const uint64_t fingerprint = Run(spec)->fingerprint();
  spec.session->position = 3;
  spec.resume.emplace();
  spec.resume->fingerprint = fingerprint;
  spec.resume->tokens.resize(1);
  spec.session->repeated = true;
  EXPECT_EQ(GenerateError(spec), absl::OkStatus());
  spec.session->hash = 5;  // the fingerprint counts
  EXPECT_EQ(GenerateError(spec), absl::OkStatus());
  GenerateSpec other = spec;
  other.session->position = 2;
  EXPECT_EQ(ReasonOf(GenerateError(other)), "RESUME_MISMATCH");
  other.session->position = 7;
  EXPECT_EQ(ReasonOf(GenerateError(other)), "POSITION_OUT_OF_RANGE");
  other = spec;
  other.session_seed = false;  // its own is another one
  EXPECT_EQ(ReasonOf(GenerateError(other)), "RESUME_MISMATCH");
  other = spec;
  other.resume->tokens[0] = {1, 2, 3, 4};
  EXPECT_EQ(ReasonOf(GenerateError(other)), "RESUME_TOO_LONG");
  SessionRef another = Open();
  ASSERT_TRUE(Append(another, {3, 1, 4}).ok());
  other = spec;
  other.session->id = another.id;
  EXPECT_EQ(ReasonOf(GenerateError(other)), "RESUME_MISMATCH");
  EXPECT_EQ(GenerateError(spec), absl::OkStatus());  // a refusal changes nothing
  ASSERT_TRUE(Rewind(end, 2).ok());
  ASSERT_TRUE(Append(end, {5}).ok());
  EXPECT_EQ(ReasonOf(GenerateError(spec)), "RESUME_MISMATCH");
}

TEST_F(ResumeTest, WhatACancelledReplyLeftIsDropped) {
  Start();
  const SessionRef end = Open();
  ASSERT_TRUE(Append(end, {3, 1, 4}).ok());
  GenerateSpec lost = SpecOf(end, 3, {2});
  const uint64_t fingerprint = Run(lost)->fingerprint();
  ASSERT_TRUE(Rewind(end, 3).ok());
  ReplyCollector cancelled;
  probe_->AllowRuns(3);  // then its run is held, so it cannot end before it is cancelled
  ASSERT_EQ(cancelled.Start(engine_.get(), SpecOf(end, 1000, {7})), absl::OkStatus());
  cancelled.WaitForTokens(1);
  engine_->Cancel(cancelled.id());
  probe_->AllowAll();
  EXPECT_TRUE(absl::IsCancelled(cancelled.Wait()));
  lost.session->position = 3;
  lost.session->repeated = true;
  lost.resume.emplace();
  lost.resume->fingerprint = fingerprint;
  lost.resume->tokens.resize(1);
  EXPECT_EQ(GenerateError(lost), absl::OkStatus());
}

TEST_F(ResumeTest, AnotherReplyIsRefused) {
  GenerateSpec spec = Prompt({1, 2, 3}, 5);
  const uint64_t fingerprint = Run(spec)->fingerprint();
  const std::vector<std::function<void(GenerateSpec*)>> changes = {
      [](GenerateSpec* s) { s->prompt[1] = 7; },
      [](GenerateSpec* s) { s->sampling.seed = 2; },
      [](GenerateSpec* s) { s->max_tokens = 6; },
      [](GenerateSpec* s) {
        s->num_samples = 2;
        s->resume->tokens.resize(2);
      },
  };
  spec.resume.emplace();
  spec.resume->fingerprint = fingerprint;
  spec.resume->tokens.resize(1);
  Run(spec);
  for (size_t i = 0; i < changes.size(); ++i) {
    GenerateSpec other = spec;
    changes[i](&other);
    ReplyCollector collector;
    const absl::Status status = collector.Start(engine_.get(), other);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << i;
    EXPECT_EQ(GetErrorDetail(status).reason, "RESUME_MISMATCH") << i;
    EXPECT_EQ(GetErrorDetail(status).field, "resume.fingerprint") << i;
  }
}

TEST_F(ResumeTest, AServerWithAnotherContextContinuesAReply) {
  fake_.limits.state = {
      .fixed = kFakeStateBytes, .per_block = 8, .block_tokens = 2, .segment_tokens = 4};
  const auto with_context = [this](int64_t context) {
    engine_ = nullptr;
    fake_.limits.context = context;
    fake_.limits.bytes_per_slot = fake_.limits.state.At(context);
  };
  GenerateSpec spec = Prompt({1, 2, 3}, 50);
  with_context(20);
  const auto whole = Run(spec);
  with_context(12);
  const auto shorter = Run(spec);
  EXPECT_LT(shorter->sample(0).tokens.size(), whole->sample(0).tokens.size());
  spec.resume.emplace();
  spec.resume->fingerprint = shorter->fingerprint();
  spec.resume->tokens = {shorter->sample(0).tokens};
  with_context(20);
  const auto rest = Run(spec);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(rest->sample(0).tokens, whole->sample(0).tokens);
}

TEST_F(ResumeTest, WhatCannotBeOfTheReplyIsRefused) {
  GenerateSpec spec = Prompt({1, 2, 3}, 3);
  const uint64_t fingerprint = Run(spec)->fingerprint();
  spec.resume.emplace();
  spec.resume->fingerprint = fingerprint;
  const auto refused = [&](std::vector<std::vector<int32_t>> tokens) {
    spec.resume->tokens = std::move(tokens);
    ReplyCollector collector;
    const absl::Status status = collector.Start(engine_.get(), spec);
    const ErrorDetail detail = GetErrorDetail(status);
    return absl::StrCat(detail.reason, " ", detail.field);
  };
  EXPECT_EQ(refused({}), "RESUME_SAMPLES resume.samples");
  EXPECT_EQ(refused({{1}, {2}}), "RESUME_SAMPLES resume.samples");
  EXPECT_EQ(refused({{1, 2, 3, 4}}), "RESUME_TOO_LONG resume.samples[0]");
  EXPECT_EQ(refused({{1, 50}}), "TOKEN_OUT_OF_RANGE resume.samples[0].ids[1]");
  spec.session.emplace();
  spec.session->repeated = true;
  EXPECT_EQ(refused({{1}}), "POSITION_NEEDED session.position");
}

}  // namespace
}  // namespace rivulet
