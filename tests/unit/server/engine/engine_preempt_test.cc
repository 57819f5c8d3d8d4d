// SPDX-License-Identifier: Apache-2.0
// Replies that give up their slots to another tenant's requests: when, and how many. That they go
// on bit for bit is proved by tests/simulation/. The test takes each turn of the engine itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "server/engine/engine_parts.h"
#include "server/engine/loop/host_memory.h"
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
