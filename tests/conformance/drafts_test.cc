// SPDX-License-Identifier: Apache-2.0
// Rows with drafts (RunRow::drafts): whatever the drafts are, the draws and the state are those of
// a row that fed one token a step, bit for bit. For every part of a state: all kinds of models,
// types of weights and of caches, vector widths and numbers of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_target.h"
#include "model/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

constexpr int kDrafts = 4;

// A sequence, its draws, and its state after each of them; `states[i]`: before draw i is fed.
struct Lone {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<float>> states;
};

SlotSampler SamplerOf(Slot slot) {
  SlotSampler sampler;
  sampler.params.seed = 31 + uint64_t(slot);
  sampler.params.temperature = 0.9f;
  sampler.params.presence_penalty = 0.4f;  // counts that a wrong draft changed would be seen
  sampler.params.frequency_penalty = 0.3f;
  sampler.want_logprobs = true;
  return sampler;
}

std::vector<float> StateOf(Backend& backend, Slot slot) {
  std::vector<float> state(backend.StateFloats(slot));
  EXPECT_TRUE(backend.ReadSlot(slot, state).ok());
  return state;
}

std::vector<Record> Submit(Backend& backend, std::vector<RunRow> rows) {
  Run run;
  run.rows = std::move(rows);
  const absl::Status status = backend.Submit(run);
  EXPECT_TRUE(status.ok()) << status;
  return PollAll(backend);
}

RunRow RowOf(Slot slot, int64_t position, std::span<const int32_t> tokens, int drafts,
             bool as_output = true) {
  RunRow row;
  row.slot = slot;
  row.position = position;
  row.tokens = tokens;
  row.drafts = drafts;
  row.sample = true;
  row.max_samples = 1 + drafts;
  row.count_as_output = as_output;
  return row;
}

// Begins a sequence: feeds the prompt and draws once.
Record Begin(Backend& backend, Slot slot, std::span<const int32_t> prompt) {
  EXPECT_TRUE(backend.ZeroSlots({&slot, 1}).ok());
  EXPECT_TRUE(backend.SetSampler(slot, SamplerOf(slot)).ok());
  return Submit(backend, {RowOf(slot, 0, prompt, 0, false)}).at(0);
}

Lone GenerateAlone(Backend& backend, Slot slot, std::span<const int32_t> prompt, size_t length) {
  Lone lone;
  Record record = Begin(backend, slot, prompt);
  while (true) {
    lone.tokens.push_back(record.token);
    lone.logprobs.push_back(record.logprob);
    lone.states.push_back(StateOf(backend, slot));
    if (lone.tokens.size() == length) return lone;
    record = Submit(backend, {RowOf(slot, record.position, {&lone.tokens.back(), 1}, 0)}).at(0);
  }
}

// A sequence that is generated again with drafts.
struct Drafted {
  Slot slot = 0;
  const Lone* lone = nullptr;
  int64_t position = 0;  // of the next token to feed
  size_t drawn = 1;      // the prompt's row drew the first token
  std::vector<int32_t> tokens;

  // Drafts of which the first `right` are right, if the lone sequence is that long.
  RunRow Row(int drafts, int right, int vocab) {
    tokens = {lone->tokens[drawn - 1]};
    for (int i = 0; i < drafts && drawn + size_t(i) + 1 < lone->tokens.size(); ++i) {
      const int32_t token = lone->tokens[drawn + size_t(i)];
      tokens.push_back(i == right ? (token + 1) % vocab : token);
    }
    return RowOf(slot, position, tokens, int(tokens.size()) - 1);
  }
  void Take(const Record& record) {
    ASSERT_LT(drawn, lone->tokens.size());
    EXPECT_EQ(record.token, lone->tokens[drawn]) << "draw " << drawn;
    EXPECT_EQ(record.logprob, lone->logprobs[drawn]) << "draw " << drawn;
    EXPECT_EQ(record.position, ++position);
    ++drawn;
  }
};

struct Make {
  std::string target;
  int threads;
  WeightPrecision weights;
  kernels::CacheType cache;
  int slots = 3;
};

std::vector<Make> Makes(const ModelConfig& config) {
  using kernels::CacheType;
  std::vector<Make> makes;
  const bool attends = config.state().attention.has_value();
  for (const WeightPrecision weights :
       {WeightPrecision::kAuto, WeightPrecision::kInt8, WeightPrecision::kInt4}) {
    for (const int threads : {1, 2}) {
      // Vector widths and types of weights have kernels of their own, threads have not.
      const auto cache = attends && threads == 2 ? CacheType::kBf16 : CacheType::kF32;
      for (const char* target : {"", "AVX2"}) makes.push_back({target, threads, weights, cache});
    }
  }
  if (RIVULET_SANITIZED) makes = {makes[2]};
  return makes;
}

std::unique_ptr<Backend> NewBackend(std::shared_ptr<const Model> model, const Make& make) {
  if (!kernels::SetCpuTargetForTest(make.target.c_str())) return nullptr;
  CpuBackendOptions options;
  options.num_slots = make.slots;
  options.threads = make.threads;
  options.weights = make.weights;
  options.cache = make.cache;
  options.max_drafts = kDrafts;
  options.speculating_rows = 2;
  auto backend = CreateCpuBackend(std::move(model), options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

class DraftsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto model = Model::Load(GetParam());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  void TearDown() override { (void)kernels::SetCpuTargetForTest(""); }
  std::vector<int32_t> Prompt(int tokens, int seed) const {
    std::vector<int32_t> prompt;
    for (int i = 0; i < tokens; ++i) {
      prompt.push_back((seed + i * i * 7 + i) % model_->config().num_output_tokens());
    }
    return prompt;
  }

  std::shared_ptr<const Model> model_;
};

TEST_P(DraftsTest, DrawsAndStatesAreThoseOfSingleSteps) {
  const ModelConfig& config = model_->config();
  // Across the end of a block of keys and values, and around the ring of a window.
  const int length = 33,
            prompt = int(std::min<int64_t>(49, config.max_tokens().value_or(1000) - length));
  ASSERT_GT(prompt, 0);
  for (const Make& make : Makes(config)) {
    const auto backend = NewBackend(model_, make);
    if (backend == nullptr) continue;
    SCOPED_TRACE(absl::StrCat(backend->limits().numerics_id, " ", make.target, ", ", make.threads,
                              " threads"));
    std::vector<Lone> lones;
    std::vector<Drafted> sequences;
    for (const Slot slot : {1, 2, 3}) {
      lones.push_back(GenerateAlone(*backend, slot, Prompt(prompt, slot), length));
    }
    for (const Slot slot : {1, 2, 3}) {
      const Record first = Begin(*backend, slot, Prompt(prompt, slot));
      sequences.push_back({slot, &lones[size_t(slot) - 1], first.position, 1, {}});
    }
    // Each number of right drafts for both rows with drafts, beside one without.
    for (int turn = 0; sequences[0].drawn < size_t(length) && sequences[1].drawn < size_t(length);
         ++turn) {
      const int right[] = {turn % (kDrafts + 1), (2 * turn + 3) % (kDrafts + 1), 0};
      std::vector<RunRow> rows;
      for (size_t i = 0; i < 3; ++i) {
        if (sequences[i].drawn == size_t(length)) continue;
        rows.push_back(sequences[i].Row(i == 2 ? 0 : kDrafts, right[i], config.vocab_size));
      }
      const std::vector<Record> records = Submit(*backend, rows);
      for (const Record& record : records) {
        sequences[size_t(rows[size_t(record.row)].slot) - 1].Take(record);
      }
      for (size_t i = 0; i < 2; ++i) {
        const Drafted& one = sequences[i];
        ASSERT_EQ(StateOf(*backend, one.slot), one.lone->states[one.drawn - 1])
            << "turn " << turn << ", row " << i << " with " << right[i] << " right drafts";
      }
    }
  }
}

std::vector<std::string> Models() {
  std::vector<std::string> found;
  for (const char* folder :
       {"family", "gguf", "hybrid", "llama_cpp", "molformer", "models", "mtp", "softmax"}) {
    const std::string path = SourcePath(std::string("tests/conformance/") + folder);
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (!std::filesystem::exists(entry.path() / "golden.json")) continue;
      std::string model = entry.path();
      for (const char* file : {"model.gguf", "model-00001-of-00003.gguf"}) {
        if (std::filesystem::exists(entry.path() / file)) model = entry.path() / file;
      }
      found.push_back(model);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

INSTANTIATE_TEST_SUITE_P(All, DraftsTest, ::testing::ValuesIn(Models()), [](const auto& param) {
  std::string name = param.param.substr(SourcePath("tests/conformance/").size());
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});

// With so many rows each thread takes pieces of whole rows. The first piece ends with a row with
// drafts, and so has more rows than the others.
TEST(DraftsOfManyRowsTest, DrawsAndStatesAreThoseOfSingleSteps) {
  auto model = Model::Load(SourcePath("model/zoo/shakespeare-chat"));
  ASSERT_TRUE(model.ok()) << model.status();
  constexpr int kSlots = 120, kLength = 1 + 1 + kDrafts;
  const auto backend =
      NewBackend(*model, {"", 2, WeightPrecision::kAuto, kernels::CacheType::kF32, kSlots});
  std::vector<Lone> lones;
  std::vector<Drafted> sequences;
  for (Slot slot = 1; slot <= kSlots; ++slot) {
    const std::vector<int32_t> prompt = {slot, 7 * slot};
    lones.push_back(GenerateAlone(*backend, slot, prompt, kLength));
    const Record first = Begin(*backend, slot, prompt);
    sequences.push_back({slot, nullptr, first.position, 1, {}});
  }
  std::vector<RunRow> rows;
  for (size_t i = 0; i < kSlots; ++i) {
    sequences[i].lone = &lones[i];
    const bool drafts = i == 31 || i == 59;
    rows.push_back(sequences[i].Row(drafts ? kDrafts : 0, i == 31 ? 1 : kDrafts, 1024));
  }
  for (const Record& record : Submit(*backend, rows)) sequences[size_t(record.row)].Take(record);
  for (size_t i = 0; i < kSlots; ++i) {
    const size_t drawn = i == 31 ? 3 : i == 59 ? kLength : 2;
    EXPECT_EQ(sequences[i].drawn, drawn) << i;
    EXPECT_EQ(StateOf(*backend, Slot(i) + 1), lones[i].states[drawn - 1]) << i;
  }
}

class DraftsOfOneRowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = Model::Load(SourcePath("tests/conformance/models/tiny-rfa"));
    ASSERT_TRUE(model.ok()) << model.status();
    backend_ = NewBackend(*model, {"", 1, WeightPrecision::kAuto, kernels::CacheType::kF32});
    lone_ = GenerateAlone(*backend_, 1, prompt_, 8);
    position_ = Begin(*backend_, 1, prompt_).position;
    tokens_.assign(lone_.tokens.begin(), lone_.tokens.begin() + 1 + kDrafts);
  }
  RunRow Row() const { return RowOf(1, position_, tokens_, kDrafts); }

  const std::vector<int32_t> prompt_ = {1, 2, 3};
  std::unique_ptr<Backend> backend_;
  Lone lone_;
  int64_t position_ = 0;
  std::vector<int32_t> tokens_;  // the first draw, then drafts that are all right
};

TEST_F(DraftsOfOneRowTest, AStopTokenEndsTheRowThere) {
  SlotSampler sampler = SamplerOf(1);
  sampler.stop_ids = {lone_.tokens[3]};
  ASSERT_TRUE(backend_->SetSampler(1, sampler).ok());
  size_t first = 1;  // the draw that is the stop token
  while (lone_.tokens[first] != lone_.tokens[3]) ++first;
  const std::vector<Record> records = Submit(*backend_, {Row()});
  ASSERT_EQ(records.size(), first);
  EXPECT_TRUE(records.back().stopped);
  EXPECT_EQ(StateOf(*backend_, 1), lone_.states[first]);
}

TEST_F(DraftsOfOneRowTest, WrongDraftsReadNoMatrixAgain) {
  const auto bytes_of = [this](RunRow row) {
    const size_t before = CpuMatrixBytes(*backend_);
    Submit(*backend_, {row});
    return CpuMatrixBytes(*backend_) - before;
  };
  const size_t right = bytes_of(Row());
  EXPECT_GT(right, 0u);
  position_ = Begin(*backend_, 1, prompt_).position;
  for (int32_t& draft : tokens_) draft ^= 1;
  tokens_[0] ^= 1;
  EXPECT_EQ(bytes_of(Row()), right);
  EXPECT_EQ(StateOf(*backend_, 1), lone_.states[1]);
  position_ = Begin(*backend_, 1, prompt_).position;
  EXPECT_EQ(bytes_of(RowOf(1, position_, {lone_.tokens.data(), 1}, 0)), right) << "one row alone";
}

class Mask final : public TokenMask {
 public:
  explicit Mask(std::vector<uint32_t> bits) : bits_(std::move(bits)) {}
  std::span<const uint32_t> Bits() const override { return bits_; }

 private:
  const std::vector<uint32_t> bits_;
};

TEST_F(DraftsOfOneRowTest, EachDrawHasItsMaskAndALateOneDrawsLater) {
  const Mask all({~uint32_t{0}, ~uint32_t{0}, ~uint32_t{0}, ~uint32_t{0}}), late({});
  const TokenMask* const masks[] = {&all, &late, &all, &all};
  RunRow row = Row();
  row.mask = &all;
  row.draft_masks = masks;
  const std::vector<Record> records = Submit(*backend_, {row});
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1].token, lone_.tokens[2]);
  EXPECT_TRUE(records[2].late);
  EXPECT_EQ(StateOf(*backend_, 1), lone_.states[3]);
  const std::vector<Record> later = Submit(*backend_, {RowOf(1, records[2].position, {}, 0)});
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0].token, lone_.tokens[3]);
  EXPECT_EQ(later[0].logprob, lone_.logprobs[3]);
}

TEST_F(DraftsOfOneRowTest, WhatExceedsTheLimitsIsRefused) {
  const auto refused = [&](RunRow row, int steps = 1) {
    rivulet::Run run;
    run.num_steps = steps;
    run.rows = {row};
    return backend_->Submit(run).code() == absl::StatusCode::kInternal;
  };
  RunRow row = Row();
  row.max_samples = kDrafts;
  EXPECT_TRUE(refused(row));
  EXPECT_TRUE(refused(Row(), 2));
  row = Row();
  row.sample = false;
  EXPECT_TRUE(refused(row));
  row = Row();
  row.drafts = kDrafts - 1;  // behind two tokens
  EXPECT_TRUE(refused(row));
  tokens_.push_back(0);
  EXPECT_TRUE(refused(RowOf(1, position_, tokens_, kDrafts + 1)));
}

}  // namespace
}  // namespace rivulet::testing
