// SPDX-License-Identifier: Apache-2.0
// What the seam promises beside numbers: slots, forks, snapshots, stops, penalties,
// log-probabilities, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/categorical.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

class BackendContractTest : public ::testing::TestWithParam<TestedBackend> {
 protected:
  void Start(const ModelConfig& config, int num_slots = 4) {
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config, 3).ok());
    StartHere(num_slots);
  }
  // From what stands in directory_.
  void StartHere(int num_slots) {
    auto model = Model::Load(directory_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    auto backend = GetParam().same_bits.back()(model_, num_slots);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }

  // Feeds `tokens` to `slot` at `position` and draws `samples` tokens in one run.
  std::vector<Record> Draw(Slot slot, int64_t position, const std::vector<int32_t>& tokens,
                           int samples, bool as_output = false) {
    rivulet::Run run;
    RunRow row;
    row.slot = slot;
    row.position = position;
    row.tokens = tokens;
    row.sample = samples > 0;
    row.max_samples = samples;
    row.count_as_output = as_output;
    run.rows.push_back(row);
    run.num_steps = std::max(1, samples);
    EXPECT_EQ(backend_->Submit(run), absl::OkStatus());
    return PollAll(*backend_);
  }
  static std::vector<int32_t> TokensOf(const std::vector<Record>& records) {
    std::vector<int32_t> tokens;
    for (const Record& record : records) tokens.push_back(record.token);
    return tokens;
  }
  void Sampler(Slot slot, const SlotSampler& sampler) {
    EXPECT_TRUE(backend_->SetSampler(slot, sampler).ok());
  }
  void Zero(Slot slot) { EXPECT_TRUE(backend_->ZeroSlots({&slot, 1}).ok()); }
  std::vector<float> State(Slot slot) {
    std::vector<float> state(backend_->StateFloats(slot));
    EXPECT_TRUE(backend_->ReadSlot(slot, state).ok());
    return state;
  }

  TempDir directory_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> backend_;
};

SlotSampler Seeded(uint64_t seed) {
  SlotSampler sampler;
  sampler.params.seed = seed;
  return sampler;
}

TEST_P(BackendContractTest, AZeroedSlotIsAsGoodAsNew) {
  Start(GetParam().Config());
  Sampler(1, Seeded(1));
  const std::vector<int32_t> fresh = TokensOf(Draw(1, 0, {0, 5, 6}, 20));
  Sampler(2, Seeded(1));
  Draw(2, 0, {9, 8, 7}, 10);
  Zero(2);
  EXPECT_EQ(State(2), State(3)) << "slot 3 was never used";
  Sampler(2, Seeded(1));
  EXPECT_EQ(TokensOf(Draw(2, 0, {0, 5, 6}, 20)), fresh);
}

TEST_P(BackendContractTest, ARunOfManyStepsEqualsManyRunsAndAForkGoesOnAsItsOrigin) {
  Start(GetParam().Config());
  Sampler(1, Seeded(7));
  const std::vector<int32_t> together = TokensOf(Draw(1, 0, {0, 5}, 12));
  Sampler(2, Seeded(7));
  std::vector<int32_t> apart = TokensOf(Draw(2, 0, {0, 5}, 1));
  for (int i = 1; i < 6; ++i) apart.push_back(TokensOf(Draw(2, 1 + i, {apart.back()}, 1, true))[0]);
  ASSERT_TRUE(backend_->CopySlot(2, 3).ok());
  Sampler(3, Seeded(7));
  for (const Slot slot : {2, 3}) {
    std::vector<int32_t> rest = TokensOf(Draw(slot, 7, {apart.back()}, 6, true));
    rest.insert(rest.begin(), apart.begin(), apart.end());
    EXPECT_EQ(rest, together) << slot;
  }
}

TEST_P(BackendContractTest, AWrittenStateGoesOnBitForBit) {
  Start(GetParam().Config());
  Draw(1, 0, {0, 3, 4, 5}, 0);
  ASSERT_TRUE(backend_->WriteSlot(4, State(1)).ok());
  Sampler(1, Seeded(2));
  Sampler(4, Seeded(2));
  EXPECT_EQ(TokensOf(Draw(1, 4, {6}, 8)), TokensOf(Draw(4, 4, {6}, 8)));
  EXPECT_EQ(State(1), State(4));
}

// Also of what a run drew and fed itself, into a block of positions that the prompt does not reach.
TEST_P(BackendContractTest, AZeroedSlotHasNothingOfItsLastSequence) {
  Start(GetParam().Config());
  std::vector<int32_t> tokens(70);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * 7 % 11);
  Sampler(1, Seeded(1));
  Draw(1, 0, std::vector<int32_t>(tokens.begin(), tokens.begin() + 60), 20);
  EXPECT_GE(State(1).size(), State(2).size());
  Zero(1);
  for (const Slot slot : {1, 2}) Draw(slot, 0, tokens, 0);
  EXPECT_EQ(State(1), State(2)) << "slot 2 is new";
}

// Of a state that grows, what the longer one held behind the shorter one is gone.
TEST_P(BackendContractTest, AShorterStateLeavesNothingOfTheLongerOneInItsPlace) {
  Start(GetParam().Config());
  std::vector<int32_t> tokens(90);  // two blocks; a tested backend takes 97 at once
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * 7 % 11);
  const std::vector<int32_t> shorter = {0, 3, 4}, more(tokens.begin(), tokens.begin() + 70);
  Draw(1, 0, tokens, 0);
  Draw(2, 0, shorter, 0);
  for (const Slot slot : {3, 4}) ASSERT_TRUE(backend_->WriteSlot(slot, State(1)).ok());
  ASSERT_TRUE(backend_->WriteSlot(3, State(2)).ok());
  ASSERT_TRUE(backend_->CopySlot(2, 4).ok());
  for (const Slot slot : {2, 3, 4}) Draw(slot, 3, more, 0);
  EXPECT_EQ(State(3), State(2)) << "written";
  EXPECT_EQ(State(4), State(2)) << "copied";
}

TEST_P(BackendContractTest, ASequenceEndsAtTheContext) {
  Start(GetParam().Config());
  const int64_t context = backend_->limits().context;
  if (context == 0) return;
  for (const auto& [position, samples, good] : {std::tuple{context - 2, 1, true},
                                                {context - 2, 2, true},
                                                {context - 2, 3, false},
                                                {context - 1, 1, true},
                                                {context, 0, false}}) {
    const std::vector<int32_t> token = {1};
    rivulet::Run run;
    RunRow& row = run.rows.emplace_back();
    row.slot = 1;
    row.position = position;
    row.tokens = token;
    row.sample = samples > 0;
    row.max_samples = samples;
    run.num_steps = std::max(1, samples);
    EXPECT_EQ(backend_->Submit(run).ok(), good) << position << " " << samples;
    if (good) PollAll(*backend_);
  }
}

TEST_P(BackendContractTest, SeedAndSampleIndexChangeTheDraws) {
  Start(GetParam().Config());
  std::vector<std::vector<int32_t>> draws;
  for (const auto& [seed, index] : {std::pair{1, 0}, {2, 0}, {1, 1}, {1, 0}}) {
    Zero(1);
    SlotSampler sampler = Seeded(uint64_t(seed));
    sampler.sample_index = uint32_t(index);
    Sampler(1, sampler);
    draws.push_back(TokensOf(Draw(1, 0, {0}, 30)));
  }
  EXPECT_EQ(draws[0], draws[3]);
  EXPECT_NE(draws[0], draws[1]);
  EXPECT_NE(draws[0], draws[2]);
}

TEST_P(BackendContractTest, AStopTokenEndsTheRowWithinARunAndIsNotFed) {
  Start(GetParam().Config());
  Sampler(1, Seeded(5));
  const std::vector<Record> all = Draw(1, 0, {0}, 20);
  SlotSampler sampler = Seeded(5);
  sampler.stop_ids = {all[4].token};
  size_t first = 0;
  while (all[first].token != all[4].token) ++first;
  Sampler(2, sampler);
  const std::vector<Record> stopped = Draw(2, 0, {0}, 20);
  ASSERT_EQ(stopped.size(), first + 1);
  EXPECT_TRUE(stopped.back().stopped);
  Draw(3, 0, {0}, 0);
  for (size_t i = 0; i < first; ++i) Draw(3, int64_t(i) + 1, {all[i].token}, 0);
  EXPECT_EQ(State(2), State(3));
}

// A mask of some tokens.
class Allowed final : public TokenMask {
 public:
  Allowed(int vocab_size, const std::vector<int32_t>& tokens) : words_(MaskWords(vocab_size)) {
    for (const int32_t token : tokens) words_[size_t(token) / 32] |= uint32_t{1} << (token % 32);
  }
  std::span<const uint32_t> Bits() const override {
    return known ? std::span<const uint32_t>(words_) : std::span<const uint32_t>();
  }
  bool known = true;

 private:
  std::vector<uint32_t> words_;
};

TEST_P(BackendContractTest, AMaskLimitsTheDrawAndChangesNothingElse) {
  Start(GetParam().Config());
  const int vocab = model_->config().vocab_size;
  std::vector<int32_t> all(static_cast<size_t>(vocab));
  std::iota(all.begin(), all.end(), 0);
  const Allowed every(vocab, all);
  Allowed some(vocab, {vocab - 1, 5, 3});
  SlotSampler sampler = Seeded(11);
  sampler.params.presence_penalty = 0.5f;
  sampler.params.top_p = 0.9f;
  sampler.want_logprobs = true;
  const auto draw = [&](Slot slot, std::vector<int32_t> tokens, int64_t position,
                        const TokenMask* mask) {
    RunRow row;
    row.slot = slot;
    row.position = position;
    row.tokens = tokens;
    row.sample = true;
    row.max_samples = 1;
    row.mask = mask;
    rivulet::Run run;
    run.rows = {row};
    std::vector<Record> records;
    EXPECT_EQ(backend_->Submit(run), absl::OkStatus());
    while (!*backend_->Poll(&records)) continue;
    EXPECT_EQ(records.size(), 1u);
    return records[0];
  };
  for (const Slot slot : {1, 2, 3}) Sampler(slot, sampler);
  for (int64_t position = 0; position < 12; ++position) {
    const std::vector<int32_t> fed = {int32_t(position % 7)};
    const Record free = draw(1, fed, position, nullptr), same = draw(2, fed, position, &every);
    EXPECT_EQ(free.token, same.token);
    EXPECT_EQ(free.logprob, same.logprob);
    const Record masked = draw(3, fed, position, position % 3 == 2 ? nullptr : &some);
    if (position % 3 == 2) {
      EXPECT_EQ(masked.token, free.token);
    } else {
      EXPECT_TRUE(masked.token == 3 || masked.token == 5 || masked.token == vocab - 1);
    }
  }
  // A mask that is not known when the products are done.
  Sampler(4, sampler);
  some.known = false;
  EXPECT_TRUE(draw(4, {1, 2}, 0, &some).late);
  some.known = true;
  const bool keeps = backend_->limits().late_masks;
  const Record late = draw(4, keeps ? std::vector<int32_t>() : std::vector<int32_t>{4}, 2, &some);
  EXPECT_FALSE(late.late);
  Zero(1);
  Sampler(1, sampler);
  if (!keeps) draw(1, {1, 2}, 0, nullptr);
  const Record known = keeps ? draw(1, {1, 2}, 0, &some) : draw(1, {4}, 2, &some);
  EXPECT_EQ(late.token, known.token);
  EXPECT_EQ(late.logprob, known.logprob);
  EXPECT_EQ(late.position, known.position);
}

TEST_P(BackendContractTest, PenaltiesSeePromptAndOutputAtAnyRunLength) {
  Start(GetParam().Config());
  const int vocab = model_->config().vocab_size;
  SlotSampler sampler = Seeded(3);
  sampler.params.frequency_penalty = 2;
  sampler.params.presence_penalty = 2;
  sampler.params.repetition_penalty =
      1e30f;  // what was seen is never drawn again where its logit is positive
  Sampler(1, sampler);
  const std::vector<int32_t> together = TokensOf(Draw(1, 0, {0, 5, 6}, 12));
  Sampler(2, sampler);
  std::vector<int32_t> apart = TokensOf(Draw(2, 0, {0, 5, 6}, 1));
  while (apart.size() < 12)
    apart.push_back(TokensOf(Draw(2, 2 + int64_t(apart.size()), {apart.back()}, 1, true))[0]);
  EXPECT_EQ(apart, together);
  Zero(1);
  Sampler(1, Seeded(3));
  EXPECT_NE(TokensOf(Draw(1, 0, {0, 5, 6}, 12)), together) << "without penalties";
  // A bias of 100 beats everything; with the frequency penalty counted as output it loses 4 a time,
  // as prompt nothing.
  sampler.params.repetition_penalty = 1;
  sampler.params.logit_bias = {{9, 4.0f * 5 + 2}};
  sampler.params.temperature = 0;
  Zero(1);
  Sampler(1, sampler);
  std::vector<int32_t> biased = TokensOf(Draw(1, 0, {9, 9, 9, 9}, 30));
  const auto nines = std::count(biased.begin(), biased.end(), 9);
  EXPECT_GE(nines, 8);
  EXPECT_LE(nines, 14);
  EXPECT_LT(vocab, 64) << "the bounds above hold for small logits";
}

TEST_P(BackendContractTest, PenaltyCountsGoAlongWithAForkAndAreGoneWithTheSlot) {
  Start(GetParam().Config());
  SlotSampler sampler = Seeded(4);
  sampler.params.frequency_penalty = 2;
  sampler.params.repetition_penalty = 1.5f;
  Sampler(1, sampler);
  const std::vector<int32_t> all = TokensOf(Draw(1, 0, {0, 7, 7}, 30));
  Zero(1);
  Sampler(1, sampler);
  EXPECT_EQ(TokensOf(Draw(1, 0, {0, 7, 7}, 15)),
            std::vector<int32_t>(all.begin(), all.begin() + 15))
      << "nothing is left of the counts before";
  ASSERT_TRUE(backend_->CopySlot(1, 2).ok());
  Sampler(2, sampler);
  EXPECT_EQ(TokensOf(Draw(2, 17, {all[14]}, 15, true)),
            std::vector<int32_t>(all.begin() + 15, all.end()));
}

TEST_P(BackendContractTest, AHistoryStandsForWhatWasFedToReachAWrittenState) {
  Start(GetParam().Config());
  SlotSampler sampler = Seeded(4);
  sampler.params.frequency_penalty = 2;
  sampler.params.repetition_penalty = 1.5f;
  Sampler(1, sampler);
  const std::vector<int32_t> all = TokensOf(Draw(1, 0, {0, 7, 7}, 30));
  Zero(1);
  Sampler(1, sampler);
  Draw(1, 0, {0, 7, 7}, 15);  // feeds the first 14 of what it draws
  ASSERT_TRUE(backend_->WriteSlot(2, State(1)).ok());
  std::map<int32_t, TokenCount> counts = {{0, {0, true, 0}}, {7, {7, true, 0}}};
  for (int i = 0; i < 14; ++i) {
    TokenCount& count = counts[all[size_t(i)]];
    count.token = all[size_t(i)];
    ++count.output_count;
  }
  for (const auto& [token, count] : counts) sampler.history.push_back(count);
  Sampler(2, sampler);
  EXPECT_EQ(TokensOf(Draw(2, 17, {all[14]}, 15, true)),
            std::vector<int32_t>(all.begin() + 15, all.end()));
}

TEST_P(BackendContractTest, LogprobsAreOfTheModelsOwnDistributionWhateverTheSampler) {
  Start(GetParam().Config());
  const int vocab = model_->config().vocab_size;
  SlotSampler sampler = Seeded(3);
  sampler.params.temperature = 0.3f;
  sampler.params.top_k = 3;
  sampler.params.logit_bias = {{2, 50.0f}};
  sampler.want_logprobs = true;
  sampler.num_top_logprobs = 5;
  Sampler(1, sampler);
  std::vector<float> outputs(size_t(vocab), 0.0f);
  const std::vector<int32_t> tokens = {0, 4, 5};
  OutputRequest request{2, outputs.data()};
  rivulet::Run run;
  RunRow row;
  row.slot = 1;
  row.tokens = tokens;
  row.sample = true;
  row.max_samples = 1;
  row.outputs = {&request, 1};
  run.rows.push_back(row);
  ASSERT_TRUE(backend_->Submit(run).ok());
  const std::vector<Record> records = PollAll(*backend_);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].token, 2);
  EXPECT_EQ(records[0].position, 3);
  const double normalizer = kernels::LogSumExp(outputs.data(), vocab);
  EXPECT_NEAR(records[0].logprob, double{outputs[2]} - normalizer, 1e-6);
  ASSERT_EQ(records[0].top.size(), 5u);
  std::sort(outputs.rbegin(), outputs.rend());
  for (size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(records[0].top[i].logprob, double{outputs[i]} - normalizer, 1e-6);
}

TEST_P(BackendContractTest, OutputsThatAreNotFiniteEndTheRowAndSayThatTheyDid) {
  const ModelConfig config = GetParam().Config();
  std::vector<RawTensor> tensors = RandomTensors(config, 1, DType::kF32);
  for (RawTensor& tensor : tensors) {
    if (tensor.name != "predictor.weight") continue;
    const std::vector<float> huge(tensor.bytes.size() / 4, 3e38f);
    tensor = MakeTensor(tensor.name, tensor.shape, DType::kF32, huge);
  }
  ASSERT_TRUE(WriteFile(directory_.File("config.json"), ConfigJson(config)).ok());
  ASSERT_TRUE(WriteFile(directory_.File("model.safetensors"), WriteSafetensors(tensors)).ok());
  StartHere(2);
  Sampler(1, Seeded(1));
  const std::vector<Record> records = Draw(1, 0, {0, 1}, 5);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].non_finite);
}

TEST_P(BackendContractTest, ARunThatBreaksTheContractIsRefusedBeforeAnyStateMoves) {
  Start(GetParam().Config());
  const std::vector<float> before = State(1);
  const std::vector<int32_t> good = {1}, bad = {model_->config().vocab_size};
  for (const auto& [slot, tokens] :
       {std::pair{Slot{0}, &good}, {Slot{5}, &good}, {Slot{1}, &bad}}) {
    rivulet::Run run;
    RunRow first, second;
    first.slot = 1;
    first.tokens = good;
    second.slot = slot;
    second.tokens = *tokens;
    run.rows = {first, second};
    EXPECT_FALSE(backend_->Submit(run).ok());
  }
  EXPECT_EQ(State(1), before);
  const Slot guard = kGuardSlot;
  EXPECT_FALSE(backend_->ZeroSlots({&guard, 1}).ok());
}

INSTANTIATE_TEST_SUITE_P(All, BackendContractTest, ::testing::ValuesIn(TestedAttention()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace rivulet::testing
