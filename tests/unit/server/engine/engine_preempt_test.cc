// SPDX-License-Identifier: Apache-2.0
// Replies that give up their slots to another tenant's requests, in every state that they can be
// in, and go on bit for bit. The test takes each turn of the engine itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "server/engine/engine_parts.h"
#include "server/engine/loop/host_memory.h"
#include "server/engine/session_calls.h"
#include "tests/support/fake_backend.h"
#include "tests/support/reply_collector.h"

namespace rivulet {
namespace {

constexpr int kQuantum = 4;

class PreemptTest : public ::testing::Test {
 protected:
  PreemptTest() {
    fake_.limits.num_slots = 2;
    options_.preempt_after_runs = kQuantum;
    options_.prefill_tokens_idle = options_.prefill_tokens_busy = 4;
    Start();
  }
  void Start() {
    engine_.reset();
    probe_ = std::make_shared<FakeProbe>();
    engine_ =
        CreateSteppedEngine(config_, nullptr, std::make_unique<FakeBackend>(config_, fake_, probe_),
                            options_, [this] { return now_; });
  }
  void Turns(int count) {
    for (int i = 0; i < count; ++i) {
      engine_->Turn();
      engine_->Emit();
    }
  }
  // Returns the runs that it took.
  int64_t Until(const std::function<bool()>& condition) {
    const int64_t before = probe_->num_runs();
    for (int i = 0; i < 3000 && !condition(); ++i) Turns(1);
    EXPECT_TRUE(condition());
    return probe_->num_runs() - before;
  }

  static GenerateSpec Of(const std::string& tenant, std::vector<int32_t> prompt, int64_t max_tokens,
                         int samples = 1) {
    GenerateSpec spec;
    spec.tenant = tenant;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.num_samples = samples;
    spec.sampling.seed = 5;
    return spec;
  }
  static GenerateSpec Penalized(GenerateSpec spec) {
    spec.sampling.repetition_penalty = 1.5f;
    spec.sampling.frequency_penalty = 0.5f;
    return spec;
  }
  void Send(ReplyCollector* reply, const GenerateSpec& spec) {
    ASSERT_EQ(reply->Start(engine_.get(), spec), absl::OkStatus());
  }
  // Sends a request of tenant "b" for one token, which must come within the bound. Returns the runs
  // until its end is told: in the run after its own.
  int64_t OneTokenOfAnother() {
    ReplyCollector other;
    const GenerateSpec spec = Of("b", {9}, 1);
    Send(&other, spec);
    const int64_t runs = Until([&] { return other.reply().end().has_value(); });
    EXPECT_LE(runs, 2 * kQuantum + 1);
    EXPECT_EQ(other.Wait(), absl::OkStatus());
    EXPECT_EQ(other.sample().tokens, Solo(spec));
    return runs;
  }
  void ExpectWell(ReplyCollector* reply, const GenerateSpec& spec) {
    Until([&] { return reply->reply().end().has_value(); });
    EXPECT_EQ(reply->Wait(), absl::OkStatus());
    EXPECT_EQ(reply->violation(), "");
    for (int i = 0; i < spec.num_samples; ++i) {
      EXPECT_EQ(reply->sample(static_cast<size_t>(i)).tokens, Solo(spec, i)) << i;
    }
  }
  std::vector<int32_t> Solo(const GenerateSpec& spec, int sample = 0) const {
    SlotSampler sampler;
    sampler.params = spec.sampling;
    sampler.sample_index = static_cast<uint32_t>(sample);
    std::vector<int32_t> feed{*config_.bos_token_id};
    feed.insert(feed.end(), spec.prompt.begin(), spec.prompt.end());
    return FakeSolo(config_, fake_.script, feed, sampler, spec.max_tokens);
  }
  EngineLoad Load() const { return engine_->GetLoad(); }
  void ExpectAtRest() {
    Turns(3);
    EXPECT_EQ(Load().slots_used, 0);
    EXPECT_EQ(Load().queued, 0);
    EXPECT_EQ(Load().preempted, 0);
    EXPECT_EQ(Load().parked, 0);
    EXPECT_EQ(Load().tenants, 0);
    EXPECT_EQ(probe_->dirty_slots(), 0);
    EXPECT_EQ(probe_->violations(), std::vector<std::string>());
  }

  using ScoreEnd = std::optional<absl::StatusOr<ScoreResult>>;
  // `end` is filled in a later turn.
  Engine::ScoreDone Into(ScoreEnd* end) {
    return [end](absl::StatusOr<ScoreResult> result) { *end = std::move(result); };
  }
  SessionRef Open(const std::string& tenant) {
    std::optional<absl::StatusOr<SessionInfo>> opened;
    EXPECT_TRUE(OpenSession(engine_.get(), {tenant, 5, std::nullopt}, [&](auto info) {
                  opened = std::move(info);
                }).ok());
    Until([&] { return opened.has_value(); });
    return {(*opened)->id, tenant, std::nullopt, ""};
  }

  ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  FakeBackendOptions fake_;
  EngineOptions options_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::shared_ptr<FakeProbe> probe_;
  std::unique_ptr<SteppedEngine> engine_;
};

TEST_F(PreemptTest, AnothersTokenComesWhileOneTenantHoldsAllSlots) {
  for (const int samples : {1, 2}) {
    for (const bool penalties : {false, true}) {
      GenerateSpec spec = Of("a", {1, 2, 3, 1}, 60, samples);
      if (penalties) spec = Penalized(spec);
      std::deque<ReplyCollector> hoard(samples == 1 ? 2 : 1);
      for (ReplyCollector& reply : hoard) Send(&reply, spec);
      const int64_t before = Load().preempted_total;
      for (int i = 1; i <= 3; ++i) {
        Turns(10);
        EXPECT_EQ(Load().preempted, 0);
        EXPECT_LE(OneTokenOfAnother(), 2) << "they have had their slots for long";
        EXPECT_EQ(Load().preempted_total, before + i * samples);
      }
      for (ReplyCollector& reply : hoard) ExpectWell(&reply, spec);
      ExpectAtRest();
    }
  }
}

TEST_F(PreemptTest, NobodyIsPreemptedBeforeHisQuantumIsOver) {
  ReplyCollector hoard, other;
  const GenerateSpec spec = Of("a", {1}, 60, 2);
  Send(&hoard, spec);
  Turns(1);
  Send(&other, Of("b", {2}, 30));
  EXPECT_EQ(Until([&] { return Load().preempted == 2; }), kQuantum + 1) << "noted in the run after";
  EXPECT_EQ(Until([&] { return Load().preempted == 1; }), kQuantum);
  ExpectWell(&hoard, spec);
  ExpectWell(&other, Of("b", {2}, 30));
  ExpectAtRest();
}

TEST_F(PreemptTest, InTheMiddleOfItsPromptWithUnforkedSamplesToo) {
  std::vector<int32_t> prompt(50);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 7);
  for (const int samples : {1, 2}) {
    const GenerateSpec spec = Penalized(Of("a", prompt, 20, samples));
    std::deque<ReplyCollector> hoard(samples == 1 ? 2 : 1);
    for (ReplyCollector& reply : hoard) Send(&reply, spec);
    Turns(kQuantum + 1);
    OneTokenOfAnother();
    EXPECT_EQ(hoard[0].reply().pending_bytes(), 0) << "its prompt is still being fed";
    for (ReplyCollector& reply : hoard) ExpectWell(&reply, spec);
    EXPECT_GT(Load().preempted_total, 0);
    ExpectAtRest();
  }
}

TEST_F(PreemptTest, AScoreGoesOnWhereItWas) {
  ScoreSpec spec;
  spec.tenant = "a";
  spec.want_logprobs = true;
  spec.output_positions = {3, 40, 90};
  for (int i = 0; i < 100; ++i) spec.tokens.push_back(i % 11);
  for (const int64_t window : {0, 13}) {
    spec.window = window;
    ScoreEnd alone, ends[2];
    ASSERT_TRUE(engine_->Score(spec, Into(&alone)).ok());
    Until([&] { return alone.has_value(); });
    for (ScoreEnd& end : ends) ASSERT_TRUE(engine_->Score(spec, Into(&end)).ok());
    for (int i = 0; i < 3; ++i) {
      Turns(kQuantum + 1);
      EXPECT_LE(OneTokenOfAnother(), 2);
    }
    for (ScoreEnd& end : ends) {
      Until([&] { return end.has_value(); });
      ASSERT_TRUE((*end).ok()) << (*end).status();
      EXPECT_EQ((**end).logprobs, (**alone).logprobs);
      EXPECT_EQ((**end).outputs, (**alone).outputs);
      EXPECT_EQ((**end).nll_nats, (**alone).nll_nats);
    }
    ExpectAtRest();
  }
}

TEST_F(PreemptTest, SessionsGoOnAndKeepTheirStates) {
  options_.sessions.checkpoint_tokens = 16;
  Start();
  const SessionRef appended = Open("a"), generated = Open("a");
  AppendSpec append;
  append.session = appended;
  append.score = append.want_logprobs = true;
  for (int i = 0; i < 60; ++i) append.tokens.push_back(i % 9);
  ScoreEnd end;
  ASSERT_TRUE(engine_->Append(append, Into(&end)).ok());
  GenerateSpec spec = Penalized(Of("a", {4, 5, 6}, 40));
  spec.session = generated;
  ReplyCollector reply;
  Send(&reply, spec);
  for (int i = 0; i < 2; ++i) {
    Turns(kQuantum + 1);
    EXPECT_LE(OneTokenOfAnother(), 2);
  }
  EXPECT_EQ(Load().preempted_total, 2) << "the append, then the reply";
  ExpectWell(&reply, spec);
  Until([&] { return end.has_value(); });
  ASSERT_TRUE((*end).ok()) << (*end).status();
  EXPECT_EQ((**end).num_scored, 60);
  ExpectAtRest();
  // Both go on from the states that they left: nothing is fed twice.
  const size_t runs = probe_->runs().size();
  GenerateSpec more = Of("a", {7}, 3);
  more.session = appended;
  GenerateSpec whole = more;
  whole.prompt = append.tokens;
  whole.prompt.push_back(7);
  ReplyCollector later;
  Send(&later, more);
  Until([&] { return later.reply().end().has_value(); });
  EXPECT_EQ(later.Wait(), absl::OkStatus());
  EXPECT_EQ(later.sample().tokens, Solo(whole));
  EXPECT_EQ(probe_->runs()[runs].rows[0].tokens, 2) << "the last appended one, and the new one";
  ExpectAtRest();
}

TEST_F(PreemptTest, EndsWithoutItsSlotsByCancelDeadlineAndDrain) {
  for (const auto code : {absl::StatusCode::kCancelled, absl::StatusCode::kDeadlineExceeded,
                          absl::StatusCode::kUnavailable}) {
    Start();
    ReplyCollector hoard, other;
    GenerateSpec spec = Of("a", {1}, 500, 2);
    spec.deadline = now_ + absl::Seconds(5);
    Send(&hoard, spec);
    Turns(10);
    Send(&other, Of("b", {2}, 500));
    Until([&] { return Load().preempted == 2; });
    if (code == absl::StatusCode::kCancelled) engine_->Cancel(hoard.id());
    if (code == absl::StatusCode::kDeadlineExceeded) now_ += absl::Seconds(5);
    if (code == absl::StatusCode::kUnavailable) engine_->Drain(now_);
    Turns(2);
    EXPECT_EQ(hoard.Wait().code(), code);
    const std::vector<int32_t> got = hoard.sample().tokens, all = Solo(spec);
    EXPECT_EQ(got, std::vector<int32_t>(all.begin(), all.begin() + std::ssize(got)));
    engine_->Cancel(other.id());
    Turns(2);
    ExpectAtRest();
  }
}

TEST_F(PreemptTest, ADrainLetsThoseThatWerePreemptedComeToTheirEnds) {
  ReplyCollector hoard, other;
  const GenerateSpec spec = Of("a", {1}, 60, 2), short_one = Of("b", {2}, 30);
  Send(&hoard, spec);
  Turns(10);
  Send(&other, short_one);
  Until([&] { return Load().preempted == 2; });
  EXPECT_FALSE(engine_->Drain(absl::InfiniteFuture()));
  ExpectWell(&hoard, spec);
  ExpectWell(&other, short_one);
  EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()));
}

TEST_F(PreemptTest, ClosingTheSessionOfOneThatWasPreemptedEndsIt) {
  const SessionRef session = Open("a");
  GenerateSpec spec = Of("a", {1}, 500);
  spec.session = session;
  ReplyCollector reply, second, other;
  Send(&reply, spec);
  Turns(1);
  Send(&second, Of("a", {3}, 500));
  Turns(10);
  Send(&other, Of("b", {2}, 500));
  Until([&] { return Load().preempted == 1; });
  std::optional<absl::Status> closed;
  ASSERT_TRUE(CloseSession(engine_.get(), session, [&](const absl::Status& status) {
                closed = status;
              }).ok());
  Turns(2);
  EXPECT_EQ(closed, absl::OkStatus());
  EXPECT_EQ(GetErrorDetail(reply.Wait()).reason, "SESSION_CLOSED");
  EXPECT_EQ(Load().preempted, 0);
  EXPECT_EQ(Load().client_sessions, 0);
  engine_->Cancel(second.id());
  engine_->Cancel(other.id());
  ExpectAtRest();
}

TEST_F(PreemptTest, AReaderThatDoesNotReadIsPreemptedAtOnceWhereItsOwnRoomIsFull) {
  options_.max_pending_bytes = 40;
  options_.max_host_bytes = LeastHostBytes(fake_.limits);  // none for readers
  Start();
  ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked);
  const GenerateSpec spec = Of("a", {1, 2}, 60, 2);
  Send(&slow, spec);
  Turns(40);
  EXPECT_GT(slow.reply().pending_bytes(), 40);
  EXPECT_LE(OneTokenOfAnother(), 2);
  EXPECT_EQ(Load().parked, 0);
  for (int i = 0; i < 3000 && !slow.reply().end(); ++i) {
    if (i % 20 == 0) OneTokenOfAnother();
    if (i % 3 == 0) slow.TakeNow();
    Turns(1);
  }
  ExpectWell(&slow, spec);
  EXPECT_GT(Load().preempted_total, 4);
  ExpectAtRest();
}

TEST_F(PreemptTest, AReaderThatComesBackIsPreemptedAsOthersAre) {
  options_.max_pending_bytes = 40;
  Start();
  ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked);
  const GenerateSpec spec = Of("a", {1, 2}, 60, 2);
  Send(&slow, spec);
  Turns(40);
  OneTokenOfAnother();
  EXPECT_EQ(Load().parked, 2);
  EXPECT_EQ(Load().preempted_total, 0);
  slow.TakeNow();
  Turns(kQuantum + 1);
  EXPECT_EQ(Load().parked, 0);
  EXPECT_LE(OneTokenOfAnother(), 2);
  EXPECT_EQ(Load().preempted_total, 2);
  for (int i = 0; i < 3000 && !slow.reply().end(); ++i) {
    slow.TakeNow();
    Turns(1);
  }
  ExpectWell(&slow, spec);
  ExpectAtRest();
}

TEST_F(PreemptTest, WithoutMemoryForStatesItWaitsForAnEnd) {
  options_.max_host_bytes = 64;  // one state
  Start();
  ReplyCollector hoard, other;
  const GenerateSpec spec = Of("a", {1}, 60, 2);
  Send(&hoard, spec);
  Turns(10);
  Send(&other, Of("b", {2}, 1));
  EXPECT_EQ(Until([&] { return other.reply().end().has_value(); }), 50 + 2);
  EXPECT_EQ(Load().preempted_total, 0);
  ExpectWell(&hoard, spec);
  ExpectAtRest();
}

TEST_F(PreemptTest, ATenantHoldsNoMoreThanItsLimit) {
  options_.max_tenant_slots = 1;
  options_.max_pending_bytes = 40;
  Start();
  ReplyCollector refused, first(ReplyCollector::Reading::kOnlyWhenAsked), second;
  const absl::Status status = refused.Start(engine_.get(), Of("a", {1}, 5, 2));
  EXPECT_EQ(GetErrorDetail(status).reason, "NUM_SAMPLES_OUT_OF_RANGE");
  EXPECT_EQ(std::string(status.message()), "num_samples is 2; allowed: 1 to 1.");
  Send(&first, Of("a", {1}, 30));
  Send(&second, Of("a", {2}, 5));
  Turns(5);
  EXPECT_EQ(Load().slots_used, 1);
  EXPECT_LE(OneTokenOfAnother(), 2) << "there is a free slot";
  Turns(20);
  ExpectWell(&second, Of("a", {2}, 5));  // the first is not read: it gives up its slot
  for (int i = 0; i < 100 && !first.reply().end(); ++i) {
    first.TakeNow();
    Turns(1);
  }
  ExpectWell(&first, Of("a", {1}, 30));
  ExpectAtRest();
}

}  // namespace
}  // namespace rivulet
