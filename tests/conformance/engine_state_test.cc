// SPDX-License-Identifier: Apache-2.0
// Whose state is it? The bugs that servers of recurrent models have had, each as a test on every
// backend. tests/stress/README.md has the list, and what each test was seen to catch.
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "absl/synchronization/notification.h"
#include "tests/conformance/engine_state_fixture.h"
#include "tests/support/golden.h"

namespace rivulet::testing {
namespace {

using EngineSlotTest = EngineStateTest;

// Request `i` of many kinds.
GenerateSpec SpecOf(int i) {
  GenerateSpec spec;
  for (int t = 0; t < i % 9; ++t) spec.prompt.push_back(1 + (3 * i + 7 * t) % 10);
  spec.max_tokens = 1 + i % 7;
  spec.sampling.seed = static_cast<uint64_t>(i) + 1000;
  spec.want_logprobs = true;
  if (i % 3 == 0) spec.sampling.frequency_penalty = 1.5f;
  if (i % 3 == 1) spec.sampling.repetition_penalty = 4;
  if (i % 5 == 0) spec.sampling.logit_bias = {{3, 2.5f}};
  if (i % 4 == 1) spec.stop_ids = {5, 1 + i % 10};
  if (i % 4 == 2) spec.sampling.temperature = 0.5f;
  if (i % 4 == 3) spec.num_samples = 2;
  return spec;
}

// Admission at every length around the budget, in slots that somebody has used: what the one before
// left, of any kind, would change tokens (or make them NaN).
TEST_P(EngineSlotTest, ARecycledSlotIsAsGoodAsNewForWhoeverGetsItNext) {
  slots_ = 2;
  options_.prefill_tokens_busy = options_.prefill_tokens_idle = 4;
  Start();
  auto scorer = NewBackend(1);
  std::vector<int32_t> scored;
  const int requests = BundledModelsAreTooLarge() ? 24 : 48;
  for (int i = 0; i < requests; ++i) {
    replies_.emplace_back();
    ASSERT_EQ(replies_.back().Start(engine_.get(), SpecOf(i)), absl::OkStatus());
    if (i % 8 != 7) continue;  // a score in between leaves a slot without a sampler
    scored.push_back(1 + i % 10);
    ScoreSpec score;
    score.tokens = scored;
    score.want_logprobs = true;
    std::promise<absl::StatusOr<ScoreResult>> promise;
    ASSERT_TRUE(engine_
                    ->Score(score,
                            [&](absl::StatusOr<ScoreResult> result) {
                              promise.set_value(std::move(result));
                            })
                    .ok());
    const auto result = promise.get_future().get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->logprobs, ScoreThroughBackend(*scorer, config_, 1, scored, 1).logprobs);
  }
  for (int i = 0; i < requests; ++i) {
    ReplyCollector& reply = replies_[static_cast<size_t>(i)];
    ASSERT_EQ(reply.Wait(), absl::OkStatus()) << i;
    for (int s = 0; s < SpecOf(i).num_samples; ++s) {
      EXPECT_EQ(Of(reply, static_cast<size_t>(s)),
                Alone(SpecOf(i), {}, {}, static_cast<uint32_t>(s)))
          << "request " << i << ", sample " << s;
    }
  }
  ExpectAtRest();
}

// Tenants take slots from each other, in the middle of prompts, before and after samples fork.
TEST_P(EngineSlotTest, AReplyThatIsPreemptedGoesOnBitForBit) {
  slots_ = 3;
  options_.preempt_after_runs = 2;
  options_.prefill_tokens_busy = options_.prefill_tokens_idle = 4;
  // No run begins before all requests are there: a request alone is not preempted.
  const auto all_wait = std::make_shared<absl::Notification>();
  hostile_.before = [=](BackendCall call) {
    if (call == BackendCall::kSubmit) all_wait->WaitForNotification();
  };
  Start();
  const int requests = BundledModelsAreTooLarge() ? 9 : 30;
  std::vector<GenerateSpec> specs;
  for (int i = 0; i < requests; ++i) {
    GenerateSpec spec = SpecOf(i);
    spec.tenant.assign(1, static_cast<char>('a' + i % 3));
    for (int t = 0; t < 12; ++t) spec.prompt.push_back(1 + (i + t) % 10);
    spec.max_tokens = 12;
    specs.push_back(spec);
    replies_.emplace_back();
    EXPECT_EQ(replies_.back().Start(engine_.get(), spec), absl::OkStatus());
  }
  all_wait->Notify();
  ASSERT_FALSE(HasFailure());
  for (size_t i = 0; i < specs.size(); ++i) {
    ASSERT_EQ(replies_[i].Wait(), absl::OkStatus()) << i;
    for (int s = 0; s < specs[i].num_samples; ++s) {
      EXPECT_EQ(Of(replies_[i], static_cast<size_t>(s)),
                Alone(specs[i], {}, {}, static_cast<uint32_t>(s)))
          << "request " << i << ", sample " << s;
    }
  }
  EXPECT_GT(engine_->GetLoad().preempted_total, 0);
  ExpectAtRest();
}

// Rows come and go and stand elsewhere in every run, each with options of its own.
TEST_P(EngineSlotTest, ARowsPlaceInARunSaysNothingOfWhoseItIs) {
  slots_ = 9;
  hostile_.narrow = [](BackendLimits* limits) {
    limits->max_rows = 5;
    limits->preferred_steps = 3;
  };
  Start();
  std::vector<GenerateSpec> specs;
  for (int i = 0; i < (BundledModelsAreTooLarge() ? 15 : 30); ++i) {
    GenerateSpec spec = SpecOf(i);
    spec.num_samples = 1;
    spec.max_tokens = 1 + (i * 7) % 29;
    specs.push_back(spec);
    replies_.emplace_back();
    ASSERT_EQ(replies_.back().Start(engine_.get(), spec), absl::OkStatus());
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    ASSERT_EQ(replies_[i].Wait(), absl::OkStatus());
    EXPECT_EQ(Of(replies_[i]), Alone(specs[i])) << i;
  }
  ExpectAtRest();
}

INSTANTIATE_TEST_SUITE_P(All, EngineSlotTest, ::testing::ValuesIn(TestedAttention()),
                         [](const auto& param) { return param.param.name; });

// Straight on the backend.
class BackendSlotTest : public EngineStateTest {
 protected:
  void SetUp() override {
    if (BundledModelsAreTooLarge()) config_.num_layers = 1;  // an emulated step takes its time
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config_, 3).ok());
    model_ = *Model::Load(directory_.path());
  }
  static std::vector<float> State(Backend& backend, Slot slot) {
    std::vector<float> state(backend.StateFloats(slot));
    EXPECT_TRUE(backend.ReadSlot(slot, state).ok());
    return state;
  }
  static RunRow Row(Slot slot, int64_t position, std::span<const int32_t> tokens, int samples) {
    RunRow row;
    row.slot = slot;
    row.position = position;
    row.tokens = tokens;
    row.sample = samples > 0;
    row.max_samples = samples;
    return row;
  }
  static std::vector<Record> Submit(Backend& backend, std::vector<RunRow> rows, int steps = 1) {
    rivulet::Run run;
    run.rows = std::move(rows);
    run.num_steps = steps;
    EXPECT_EQ(backend.Submit(run), absl::OkStatus());
    return PollAll(backend);
  }
  // Feeds the first lengths[r] of `tokens` to slot r + 1, as many at once as the backend takes.
  static void Feed(Backend& backend, std::span<const int32_t> tokens,
                   const std::vector<size_t>& lengths) {
    std::vector<size_t> fed(lengths.size(), 0);
    while (fed != lengths) {
      std::vector<RunRow> run;
      size_t room = std::min<size_t>(size_t(backend.limits().max_tokens), 1024);
      for (size_t r = 0; r < lengths.size(); ++r) {
        const size_t count = std::min(lengths[r] - fed[r], room);
        if (count == 0) continue;
        run.push_back(Row(Slot(r) + 1, int64_t(fed[r]), tokens.subspan(fed[r], count), 0));
        fed[r] += count;
        room -= count;
      }
      Submit(backend, run);
    }
  }
};

// What of a slot can be used up, and what a slot that is zeroed must therefore have lost.
TEST_P(BackendSlotTest, ZeroingForgetsEveryKindOfThingThatASlotKeeps) {
  auto backend = NewBackend(3);
  const std::vector<int32_t> prompt = {0, 5, 6, 6, 7};
  SlotSampler plain, counting;
  plain.params.seed = counting.params.seed = 9;
  counting.params.frequency_penalty = 1;
  counting.params.repetition_penalty = 2;
  counting.params.presence_penalty = 1;
  const auto draw = [&](Slot slot, const SlotSampler* sampler) {
    EXPECT_TRUE(sampler == nullptr || backend->SetSampler(slot, *sampler).ok());
    std::vector<std::tuple<int32_t, bool, bool, size_t>> drawn;
    for (const Record& record : Submit(*backend, {Row(slot, 0, prompt, 12)}, 12)) {
      drawn.emplace_back(record.token, record.stopped, std::isnan(record.logprob),
                         record.top.size());
    }
    return drawn;
  };
  std::map<std::string, SlotSampler> kinds;
  kinds["state alone"] = plain;
  kinds["counts of prompt and output"] = counting;
  kinds["a history"] = counting;
  for (int32_t t = 0; t < 11; ++t) kinds["a history"].history.push_back({t, true, 7});
  kinds["stop ids"] = plain;
  kinds["stop ids"].stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  kinds["biases"] = plain;
  kinds["biases"].params.logit_bias = {{2, 60.0f}};
  kinds["temperature and limits"] = plain;
  kinds["temperature and limits"].params.temperature = 0.1f;
  kinds["temperature and limits"].params.top_k = 1;
  kinds["seed and sample index"] = plain;
  kinds["seed and sample index"].params.seed = 5;
  kinds["seed and sample index"].sample_index = 3;
  kinds["log-probabilities"] = plain;
  kinds["log-probabilities"].want_logprobs = true;
  kinds["log-probabilities"].num_top_logprobs = 4;
  const SlotSampler* const as[] = {nullptr, &plain, &counting};
  for (const SlotSampler* sampler : as) {
    auto fresh_backend = NewBackend(1);
    std::swap(backend, fresh_backend);
    const auto fresh = draw(1, sampler);  // a slot that nobody has ever used
    std::swap(backend, fresh_backend);
    for (const auto& [kind, used] : kinds) {
      const Slot slot = 2;
      ASSERT_TRUE(backend->ZeroSlots({&slot, 1}).ok());
      draw(slot, &used);
      ASSERT_TRUE(backend->ZeroSlots({&slot, 1}).ok());
      EXPECT_EQ(State(*backend, slot), State(*backend, 3)) << kind;
      EXPECT_EQ(draw(slot, sampler), fresh) << kind;
    }
  }
}

TEST_P(BackendSlotTest, RunsOfAnyNumberOfRowsTouchNoSlotButTheirOwn) {
  constexpr int kSlots = 21;
  auto backend = NewBackend(kSlots);
  const std::vector<int32_t> tokens = {0, 4, 9, 2};
  std::vector<Slot> slots;
  for (Slot slot = 1; slot <= kSlots; ++slot) {
    slots.push_back(slot);
    ASSERT_TRUE(backend->SetSampler(slot, SlotSampler()).ok());
    Submit(*backend, {Row(slot, 0, std::span(tokens).first(1 + size_t(slot) % 4), 0)});
  }
  std::vector<int64_t> position(kSlots + 1);
  for (const Slot slot : slots) position[size_t(slot)] = 1 + slot % 4;
  std::mt19937 random(4);
  // Every count of rows, so every bucket and every number of rows that it pads.
  for (int rows = 1; rows <= kSlots; ++rows) {
    std::shuffle(slots.begin(), slots.end(), random);
    std::map<Slot, std::vector<float>> others;
    for (size_t i = size_t(rows); i < slots.size(); ++i) {
      others[slots[i]] = State(*backend, slots[i]);
    }
    std::vector<RunRow> run;
    for (size_t i = 0; i < size_t(rows); ++i) {
      const bool prompt = (i + size_t(rows)) % 3 == 0;
      const size_t count = prompt ? 3 : 1;
      run.push_back(Row(slots[i], position[size_t(slots[i])], std::span(tokens).first(count), 2));
      position[size_t(slots[i])] += int64_t(count) + 1;
    }
    Submit(*backend, run, 2);
    for (const auto& [slot, state] : others) {
      EXPECT_EQ(State(*backend, slot), state) << "slot " << slot << " beside " << rows << " rows";
    }
  }
  // The guard is nobody's: no call takes it.
  std::vector<float> state(backend->limits().bytes_per_slot / sizeof(float));
  const Slot guard = kGuardSlot;
  EXPECT_FALSE(backend->ZeroSlots({&guard, 1}).ok());
  EXPECT_FALSE(backend->SetSampler(guard, SlotSampler()).ok());
  EXPECT_FALSE(backend->CopySlot(guard, 1).ok());
  EXPECT_FALSE(backend->CopySlot(1, guard).ok());
  EXPECT_FALSE(backend->ReadSlot(guard, state).ok());
  EXPECT_FALSE(backend->WriteSlot(guard, state).ok());
}

// Prompts of every length, in runs of several numbers of rows, against tokens that are fed one by
// one: whatever is padded to a tile, a piece or a bucket, no state moves past its last real token.
TEST_P(BackendSlotTest, NoPromptLengthAdvancesAStateBeyondItsLastToken) {
  constexpr int kLongest = 257;
  const std::vector<int> row_counts =
      StepsAreSlow() ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 5, 8, 17};
  const Slot stepper = row_counts.back() + 1;
  auto backend = NewBackend(stepper);
  std::vector<int32_t> tokens;
  for (int i = 0; i < kLongest; ++i) tokens.push_back(1 + i * 7 % 10);
  std::vector<std::vector<float>> stepped = {State(*backend, stepper)};  // [tokens fed]
  for (int i = 0; i < kLongest; ++i) {
    Submit(*backend, {Row(stepper, i, std::span(tokens).subspan(size_t(i), 1), 0)});
    stepped.push_back(State(*backend, stepper));
  }
  for (const int rows : row_counts) {
    for (int length = 1; length <= kLongest; ++length) {
      // Where each token takes its time, the lengths around what anything is padded to.
      if (BundledModelsAreTooLarge() && length > 34 && (length + 2) % 64 > 4) continue;
      std::vector<size_t> lengths = {size_t(length)};  // the others are shorter
      while (lengths.size() < size_t(rows)) lengths.push_back(1 + (lengths.back() + 12) % 40);
      std::vector<Slot> slots(lengths.size());
      std::iota(slots.begin(), slots.end(), 1);
      ASSERT_TRUE(backend->ZeroSlots(slots).ok());
      Feed(*backend, tokens, lengths);
      for (size_t r = 0; r < lengths.size(); ++r) {
        ASSERT_EQ(State(*backend, slots[r]), stepped[lengths[r]])
            << lengths[r] << " tokens in row " << r << " of " << rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendSlotTest, ::testing::ValuesIn(TestedAttention()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace rivulet::testing
