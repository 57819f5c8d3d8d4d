// SPDX-License-Identifier: Apache-2.0
// A sequence's bits depend on nothing but itself: not on batch mates, row order, slot, threads,
// vector width, limits, run length, or whether its tokens were prefilled or stepped.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "model/model.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using kernels::FeatureMapKind;

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Drawn&) const = default;
};

// What a sequence is: its prompt and seed.
struct Sequence {
  std::vector<int32_t> prompt;
  uint64_t seed = 0;
};

std::vector<Sequence> RandomSequences(const ModelConfig& config, int count) {
  std::mt19937 random(7);
  std::vector<Sequence> sequences;
  for (int i = 0; i < count; ++i) {
    Sequence s;
    s.seed = uint64_t(i) * 977 + 5;
    const int prompt = 1 + int(random() % 5);
    for (int t = 0; t < prompt; ++t)
      s.prompt.push_back(int32_t(random() % uint32_t(config.num_output_tokens())));
    sequences.push_back(std::move(s));
  }
  return sequences;
}

// Generates `length` tokens for each sequence in one batch. `slot_of(i)`: sequence i's slot; rows
// stand in slot order.
std::vector<Drawn> Generate(Backend& backend, const std::vector<Sequence>& sequences, int length,
                            int steps_per_run, const std::vector<Slot>& slots) {
  std::vector<Drawn> drawn(sequences.size());
  std::vector<std::vector<int32_t>> feed(sequences.size());
  std::vector<int64_t> position(sequences.size());
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return slots[a] < slots[b]; });
  for (size_t i = 0; i < sequences.size(); ++i) {
    SlotSampler sampler;
    sampler.params.seed = sequences[i].seed;
    sampler.params.temperature = 1;
    sampler.want_logprobs = true;
    EXPECT_TRUE(backend.ZeroSlots({&slots[i], 1}).ok());
    EXPECT_TRUE(backend.SetSampler(slots[i], sampler).ok());
    feed[i] = sequences[i].prompt;
  }
  for (int done = 0; done < length; done += steps_per_run) {
    Run run;
    run.num_steps = steps_per_run;
    for (const size_t i : order) {
      RunRow row;
      row.slot = slots[i];
      row.position = position[i];
      row.tokens = feed[i];
      row.sample = true;
      row.max_samples = steps_per_run;
      row.count_as_output = done > 0;
      run.rows.push_back(row);
    }
    EXPECT_TRUE(backend.Submit(run).ok());
    const std::vector<Record> records = PollAll(backend);
    for (const size_t i : order) position[i] += int64_t(feed[i].size()) + steps_per_run - 1;
    for (const Record& record : records) {
      const size_t i = order[size_t(record.row)];
      drawn[i].tokens.push_back(record.token);
      drawn[i].logprobs.push_back(record.logprob);
      feed[i] = {record.token};
    }
  }
  return drawn;
}

std::vector<Slot> SlotsInOrder(size_t n) {
  std::vector<Slot> slots(n);
  std::iota(slots.begin(), slots.end(), 1);
  return slots;
}

class BackendBitsTest : public ::testing::TestWithParam<std::tuple<std::string, TestedBackend>> {
 protected:
  void SetUp() override {
    auto model = Model::Load(SourcePath(std::get<0>(GetParam())));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
  const std::vector<BackendFactory>& factories() const { return std::get<1>(GetParam()).same_bits; }
  std::unique_ptr<Backend> NewBackend(const BackendFactory& factory) {
    auto backend = factory(model_, kSequences);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  }

  const int kSequences = BundledModelsAreTooLarge() || StepsAreSlow() ? 19 : 256;
  std::shared_ptr<const Model> model_;
};

TEST_P(BackendBitsTest, TokensAreTheSameAloneAndAmongOthersAtAnyPlaceRunLengthAndMakeOfTheBackend) {
  const int length = BundledModelsAreTooLarge() ? 8 : 12;
  const std::vector<Sequence> sequences = RandomSequences(model_->config(), kSequences);
  std::vector<std::vector<Drawn>> runs;
  for (const BackendFactory& factory : factories()) {
    auto backend = NewBackend(factory);
    runs.push_back(Generate(*backend, sequences, length, 1, SlotsInOrder(size_t(kSequences))));
    std::vector<Slot> shuffled = SlotsInOrder(size_t(kSequences));
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(3));
    runs.push_back(Generate(*backend, sequences, length, 4, shuffled));
  }
  for (const auto& other : runs) EXPECT_EQ(other, runs[0]);
  auto backend = NewBackend(factories()[0]);
  for (const size_t i : {size_t{0}, size_t{17}, size_t(kSequences) - 1}) {
    for (const size_t batch : {1, 2, 5, 13, 31}) {
      if (batch > size_t(kSequences) || (StepsAreSlow() && i != 17)) continue;
      std::vector<Sequence> few(batch, sequences[i]);
      for (size_t j = 1; j < batch; ++j) few[j] = sequences[(i + j * 7) % size_t(kSequences)];
      EXPECT_EQ(Generate(*backend, few, length, 4, SlotsInOrder(batch))[0], runs[0][i])
          << i << " of " << batch;
    }
  }
}

TEST_P(BackendBitsTest, PrefillEqualsStepping) {
  std::mt19937 random(11);
  std::vector<int32_t> tokens;
  const int64_t limit = model_->config().max_tokens().value_or(1000);
  const int64_t wanted = BundledModelsAreTooLarge() ? 70 : StepsAreSlow() ? 140 : 300;
  for (int64_t i = 0; i < std::min(limit, wanted); ++i) {
    tokens.push_back(int32_t(random() % uint32_t(model_->config().num_output_tokens())));
  }
  auto backend = NewBackend(factories()[0]);
  const BackendScore stepped = ScoreThroughBackend(*backend, model_->config(), 3, tokens, 1);
  for (const int chunk : {2, 7, 64, 1000}) {
    const BackendScore prefilled =
        ScoreThroughBackend(*backend, model_->config(), kSequences, tokens, chunk);
    EXPECT_EQ(prefilled.state, stepped.state) << chunk;
    EXPECT_EQ(prefilled.outputs, stepped.outputs) << chunk;
    EXPECT_EQ(prefilled.logprobs, stepped.logprobs) << chunk;
  }
}

std::vector<TestedBackend> AllBackends() {
  std::vector<TestedBackend> all = TestedBackends();
  for (TestedBackend& rounded : RoundedBackends()) all.push_back(std::move(rounded));
  return all;
}

std::vector<std::string> BitsModels(bool bundled) {
  std::vector<std::string> models = {"tests/conformance/models/tiny-favor",
                                     "tests/conformance/models/tiny-smoothed-random-fourier",
                                     "tests/conformance/models/tiny-image",
                                     "tests/conformance/molformer/gp-molformer-bf16",
                                     "tests/conformance/softmax/full",
                                     "tests/conformance/softmax/window4"};
  if (HasExperts()) {
    models.push_back("tests/conformance/family/lfm2-moe");
    models.push_back("tests/conformance/family/nemotron-moe");
  }
  if (bundled && !BundledModelsAreTooLarge() && !StepsAreSlow()) {
    models.push_back("model/zoo/mnist-linear");
    models.push_back("model/zoo/shakespeare-rfa");
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, BackendBitsTest,
                         ::testing::Combine(::testing::ValuesIn(BitsModels(true)),
                                            ::testing::ValuesIn(TestedBackends())),
                         [](const auto& param) {
                           return TestName(std::get<0>(param.param), std::get<1>(param.param).name);
                         });
INSTANTIATE_TEST_SUITE_P(Rounded, BackendBitsTest,
                         ::testing::Combine(::testing::ValuesIn(BitsModels(false)),
                                            ::testing::ValuesIn(RoundedBackends())),
                         [](const auto& param) {
                           return TestName(std::get<0>(param.param), std::get<1>(param.param).name);
                         });

// What a prompt leaves and draws that is fed in runs of `cut` tokens which want nothing, except for
// the last.
struct Fed {
  std::vector<float> state;
  int32_t drawn = -1;
  float logprob = 0;
  bool operator==(const Fed&) const = default;
};
Fed Feed(Backend& backend, std::span<const int32_t> prompt, size_t cut) {
  const Slot slot = 1;
  SlotSampler sampler;
  sampler.params.temperature = 0;
  sampler.params.presence_penalty = 1;  // tokens of the prompt are counted
  sampler.want_logprobs = true;
  EXPECT_TRUE(backend.ZeroSlots({&slot, 1}).ok());
  EXPECT_TRUE(backend.SetSampler(slot, sampler).ok());
  Fed fed;
  for (size_t at = 0; at < prompt.size(); at += cut) {
    Run run;
    RunRow row;
    row.slot = slot;
    row.position = int64_t(at);
    row.tokens = prompt.subspan(at, std::min(cut, prompt.size() - at));
    row.sample = at + cut >= prompt.size();
    row.max_samples = row.sample ? 1 : 0;
    run.rows.push_back(row);
    EXPECT_TRUE(backend.Submit(run).ok());
    for (const Record& r : PollAll(backend)) fed.drawn = r.token, fed.logprob = r.logprob;
  }
  fed.state.resize(backend.StateFloats(slot));
  EXPECT_TRUE(backend.ReadSlot(slot, fed.state).ok());
  return fed;
}

// Odd sizes exercise every tail: none of these divides a vector, a warp or a panel.
class BackendBitsOddSizesTest : public ::testing::TestWithParam<TestedBackend> {};

TEST_P(BackendBitsOddSizesTest, EveryFeatureMapAndGateHasTheSameBitsInEveryMakeOfTheBackend) {
  struct Shape {
    FeatureMapKind kind;
    int dims, key_dim = 21, value_dim = 23;
  };
  // The last three have kernels of their own on a GPU.
  for (const auto& [kind, dims, key_dim, value_dim] :
       {Shape{FeatureMapKind::kElu, 0}, Shape{FeatureMapKind::kRandomFourier, 22},
        Shape{FeatureMapKind::kSmoothedRandomFourier, 20}, Shape{FeatureMapKind::kFavor, 18},
        Shape{FeatureMapKind::kGeneralizedRandomRelu, 19}, Shape{FeatureMapKind::kRfa, 13},
        Shape{FeatureMapKind::kElu, 0, 32, 32}, Shape{FeatureMapKind::kRfa, 32, 20, 32},
        Shape{FeatureMapKind::kGeneralizedRandomRelu, 64, 8, 64}}) {
    // Features do not depend on the type of the weights: int8 runs one map on the emulator.
    if (StepsAreSlow() && GetParam().name == "int8" && kind != FeatureMapKind::kElu) continue;
    ModelConfig config = TinyConfig();
    config.hidden_size = 45;
    config.num_heads = 3;
    config.key_dim = key_dim;
    config.value_dim = value_dim;
    config.ffn_size = 77;
    config.vocab_size = 51;
    config.encoder().feature_map = MakeFeatureMap(kind, dims);
    config.encoder().gate =
        kind == FeatureMapKind::kRfa || kind == FeatureMapKind::kElu ? Gate::kRfa : Gate::kNone;
    TempDir directory;
    ASSERT_TRUE(WriteRandomModel(directory.path(), config, 5).ok());
    auto model = Model::Load(directory.path());
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<int32_t> tokens(40);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(1 + i * 7 % 50);
    const size_t stepped = StepsAreSlow() ? 8 : tokens.size();
    std::vector<BackendScore> scores, steps;
    std::vector<Fed> fed;
    for (const BackendFactory& factory : GetParam().same_bits) {
      auto backend = factory(*model, 1);
      ASSERT_TRUE(backend.ok()) << backend.status();
      scores.push_back(ScoreThroughBackend(**backend, config, 1, tokens, 37));
      for (const int chunk : {1, 37}) {
        steps.push_back(
            ScoreThroughBackend(**backend, config, 1, std::span(tokens).first(stepped), chunk));
      }
      for (const size_t cut : {40, 9}) fed.push_back(Feed(**backend, tokens, cut));
    }
    EXPECT_GE(fed[0].drawn, 0);
    for (const Fed& other : fed) EXPECT_EQ(other, fed[0]) << int(kind);
    for (const auto& same : {scores, steps}) {
      for (const BackendScore& score : same) {
        EXPECT_EQ(score.outputs, same[0].outputs) << int(kind);
        EXPECT_EQ(score.state, same[0].state) << int(kind);
      }
    }
    auto first = scores[0].outputs;
    first.resize(steps[0].outputs.size());
    EXPECT_EQ(first, steps[0].outputs) << int(kind);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendBitsOddSizesTest, ::testing::ValuesIn(AllBackends()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace rivulet::testing
