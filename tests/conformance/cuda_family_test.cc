// SPDX-License-Identifier: Apache-2.0
// Models of the family, hybrids and GP-MoLFormer on the CUDA backend: against their float64 goldens
// (make_family.py, hybrid/README.md, molformer/README.md), against the CPU backend, whose states
// they share, and the bits that a sequence must keep in any company.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "model/base/error.h"
#include "model/cpu/cpu_backend.h"
#include "model/cuda/cuda_backend.h"
#include "model/model.h"
#include "tests/conformance/tested_backend.h"
#include "tests/conformance/two_backends.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

// The kinds that this backend refuses, or the others.
std::vector<std::string> FamilyDirectories(bool refused = false) {
  std::vector<std::string> found;
  for (const char* folder :
       {"tests/conformance/family", "tests/conformance/hybrid", "tests/conformance/molformer"}) {
    for (const auto& entry : std::filesystem::directory_iterator(SourcePath(folder))) {
      if (!std::filesystem::exists(entry.path() / "golden.json")) continue;
      const std::string name = entry.path().filename();
      const bool is_refused = name.ends_with("-moe") || name.starts_with("nemotron");
      if (is_refused == refused) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::shared_ptr<const Model> Loaded(const std::string& directory) {
  auto model = Model::Load(directory);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

TEST(CudaRefusedTest, ExpertsAndLayersOfOnePartAreRefusedByName) {
  const std::vector<std::string> directories = FamilyDirectories(/*refused=*/true);
  EXPECT_EQ(directories.size(), 5u);
  for (const std::string& directory : directories) {
    const auto status = TestedBackends()[0].same_bits[0](Loaded(directory), 3).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "MODEL_UNSUPPORTED") << directory << ": " << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("use --backend cpu"));
  }
}

class CudaFamilyTest : public ::testing::TestWithParam<std::tuple<std::string, TestedBackend>> {
 protected:
  void SetUp() override {
    model_ = Loaded(std::get<0>(GetParam()));
    ASSERT_NE(model_, nullptr);
    golden_ = ReadGolden(std::get<0>(GetParam()));
    ASSERT_FALSE(golden_.sequences.empty());
  }
  const TestedBackend& tested() const { return std::get<1>(GetParam()); }
  std::unique_ptr<Backend> NewBackend(const BackendFactory& factory, int slots = 3) {
    auto backend = factory(model_, slots);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? *std::move(backend) : nullptr;
  }
  BackendScore Score(Backend& backend, std::span<const int32_t> tokens, int chunk) {
    return ScoreThroughBackend(backend, model_->config(), 1, tokens,
                               std::min(chunk, backend.limits().max_tokens));
  }

  std::shared_ptr<const Model> model_;
  Golden golden_;
};

TEST_P(CudaFamilyTest, OutputsAndLikelihoodMatchFloat64) {
  const auto backend = NewBackend(tested().same_bits[0]);
  ASSERT_NE(backend, nullptr);
  const double tolerance = std::max(1e-4, 3 * tested().least_output_tolerance);
  for (const GoldenSequence& sequence : golden_.sequences) {
    const BackendScore score = Score(*backend, sequence.tokens, 1024);
    ASSERT_EQ(int64_t(score.logprobs.size()), sequence.num_scored);
    EXPECT_NEAR(score.nll_nats, sequence.nll_nats, tolerance * std::max(1.0, sequence.nll_nats));
    const double worst = WorstOutputError(golden_, sequence, score);
    EXPECT_LE(worst, tolerance);
    std::printf("  %s: worst output error %.2g (limit %.2g)\n",
                std::get<0>(GetParam()).c_str() + std::get<0>(GetParam()).rfind('/') + 1, worst,
                tolerance);
  }
}

TEST_P(CudaFamilyTest, TheCutIntoRunsAndTheMakeOfTheBackendChangeNoBit) {
  const std::span<const int32_t> all = golden_.sequences.back().tokens;
  const auto tokens = all.first(std::min<size_t>(all.size(), StepsAreSlow() ? 10 : 200));
  BackendScore first;
  for (const BackendFactory& factory : tested().same_bits) {
    const auto backend = NewBackend(factory);
    ASSERT_NE(backend, nullptr);
    for (const int chunk : {1024, 1, 7}) {
      const BackendScore score = Score(*backend, tokens, chunk);
      if (first.outputs.empty()) first = score;
      EXPECT_EQ(score.outputs, first.outputs) << "chunks of " << chunk;
      EXPECT_EQ(score.state, first.state) << "chunks of " << chunk;
    }
  }
}

// What a sequence draws, one of `slots` that all do.
std::vector<int32_t> Drawn(Backend& backend, const std::vector<Slot>& slots, Slot mine) {
  std::vector<std::vector<int32_t>> prompts;
  rivulet::Run run;
  run.num_steps = 6;
  for (const Slot slot : slots) {
    SlotSampler sampler;
    sampler.params.seed = slot == mine ? 5 : uint64_t(100 + slot);
    EXPECT_TRUE(backend.ZeroSlots({&slot, 1}).ok());
    EXPECT_TRUE(backend.SetSampler(slot, sampler).ok());
    prompts.push_back(slot == mine ? std::vector<int32_t>{3, 9, 4, 7, 8}
                                   : std::vector<int32_t>(size_t(1 + slot), int32_t(slot)));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    RunRow row;
    row.slot = slots[i];
    row.tokens = prompts[i];
    row.sample = true;
    row.max_samples = run.num_steps;
    run.rows.push_back(row);
  }
  EXPECT_TRUE(backend.Submit(run).ok());
  std::vector<int32_t> drawn;
  for (const Record& record : PollAll(backend)) {
    if (slots[size_t(record.row)] == mine) drawn.push_back(record.token);
  }
  return drawn;
}

TEST_P(CudaFamilyTest, ASequenceDrawsTheSameAloneAndAmongOthers) {
  const auto backend = NewBackend(tested().same_bits[1], 6);
  ASSERT_NE(backend, nullptr);
  const std::vector<int32_t> alone = Drawn(*backend, {2}, 2);
  ASSERT_EQ(alone.size(), 6u);
  std::vector<float> state(backend->StateFloats(2)), among = state;
  ASSERT_TRUE(backend->ReadSlot(2, state).ok());
  EXPECT_EQ(Drawn(*backend, {1, 3, 4, 5, 6}, 6), alone);
  ASSERT_TRUE(backend->ReadSlot(6, among).ok());
  EXPECT_EQ(among, state);
}

// Both backends have one layout of a state: either continues from a state that the other wrote.
TEST_P(CudaFamilyTest, AStateOfOneBackendContinuesOnTheOther) {
  const std::vector<int32_t>& tokens = golden_.sequences.front().tokens;
  const size_t half = tokens.size() / 2;
  auto cpu = CreateCpuBackend(model_, {.num_slots = 3, .threads = 1});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const auto cuda = NewBackend(tested().same_bits[0]);
  ASSERT_NE(cuda, nullptr);
  Backend* const backends[] = {cpu->get(), cuda.get()};
  ASSERT_EQ(backends[0]->limits().bytes_per_slot, backends[1]->limits().bytes_per_slot);
  const double tolerance = std::max(1e-4, 3 * tested().least_output_tolerance);
  const BackendScore whole = Score(**cpu, tokens, 1024);
  for (int from = 0; from < 2; ++from) {
    const BackendScore first = Score(*backends[from], std::span(tokens).first(half + 1), 1024);
    Backend& to = *backends[1 - from];
    const Slot slot = 2;
    ASSERT_TRUE(to.WriteSlot(slot, first.state).ok());
    std::vector<float> kept(first.state.size());
    ASSERT_TRUE(to.ReadSlot(slot, kept).ok());
    EXPECT_EQ(kept, first.state);
    std::vector<float> output(size_t(model_->config().output_size()));
    const OutputRequest request = {int(tokens.size() - half) - 2, output.data()};
    rivulet::Run run;
    RunRow row;
    row.slot = slot;
    row.position = int64_t(half);
    row.tokens = std::span(tokens).subspan(half, tokens.size() - half - 1);
    row.outputs = {&request, 1};
    run.rows.push_back(row);
    ASSERT_TRUE(to.Submit(run).ok());
    PollAll(to);
    for (size_t i = 0; i < output.size(); ++i) {
      ASSERT_NEAR(output[i], whole.outputs.back()[i], tolerance) << "from " << from;
    }
  }
}

// Weights of 8 bits: no further from float64 than on the CPU, which rounds activations to 8 bits,
// too; the same bits however runs are cut. Kind "linear" with gates, too.
class CudaInt8Test : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaInt8Test, OutputsAreAsNearAsTheCpusAndTheCutChangesNoBit) {
  const TestedBackend tested = RoundedBackends()[0];
  const std::shared_ptr<const Model> model = Loaded(GetParam());
  const Golden golden = ReadGolden(GetParam());
  const GoldenSequence& sequence = golden.sequences.front();
  const auto score = [&](Backend& backend, int chunk) {
    return ScoreThroughBackend(backend, model->config(), 1, sequence.tokens,
                               std::min(chunk, backend.limits().max_tokens));
  };
  auto cpu = CreateCpuBackend(model, {.num_slots = 3, .weights = WeightPrecision::kInt8});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const double limit = WorstOutputError(golden, sequence, score(**cpu, 1024));
  BackendScore first;
  for (const BackendFactory& factory : tested.same_bits) {
    const auto backend = factory(model, 3);
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_THAT((*backend)->limits().numerics_id, ::testing::HasSubstr("cuda-int8q1"));
    for (const int chunk : {1024, 7}) {
      const BackendScore now = score(**backend, chunk);
      if (first.outputs.empty()) first = now;
      EXPECT_EQ(now.outputs, first.outputs) << "chunks of " << chunk;
      EXPECT_EQ(now.state, first.state) << "chunks of " << chunk;
    }
  }
  const double worst = WorstOutputError(golden, sequence, first);
  std::printf("  worst output error %.2g, the CPU's %.2g\n", worst, limit);
  EXPECT_LE(worst, 1.25 * limit + 1e-3);
}

std::vector<std::string> Int8Directories() {
  std::vector<std::string> found = FamilyDirectories();
  for (const char* name : {"tiny-elu-relu", "tiny-rfa", "tiny-image"}) {
    found.push_back(SourcePath(std::string("tests/conformance/models/") + name));
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(All, CudaInt8Test, ::testing::ValuesIn(Int8Directories()),
                         [](const auto& param) { return TestName(param.param, "int8"); });

TEST(CudaGgufTest, IntegersOfAFileAreDecoded) {
  for (const char* name :
       {"gguf/mamba2-k", "gguf/rwkv7-q4_0", "llama_cpp/qwen35-q8_0", "llama_cpp/falcon-h1-q8_0"}) {
    const std::string directory = SourcePath(std::string("tests/conformance/") + name);
    const auto model = Loaded(directory + "/model.gguf");
    ASSERT_NE(model, nullptr);
    const TestedBackend tested = TestedBackends()[0];  // float32
    const auto backend = tested.same_bits[0](model, 3);
    ASSERT_TRUE(backend.ok()) << backend.status();
    const Golden golden = ReadGolden(directory);
    for (const GoldenSequence& sequence : golden.sequences) {
      const BackendScore score =
          ScoreThroughBackend(**backend, model->config(), 1, sequence.tokens,
                              std::min(1024, (*backend)->limits().max_tokens));
      EXPECT_LE(WorstOutputError(golden, sequence, score), 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaFamilyTest,
                         ::testing::Combine(::testing::ValuesIn(FamilyDirectories()),
                                            ::testing::ValuesIn(TestedBackends())),
                         [](const auto& param) {
                           return TestName(std::get<0>(param.param), std::get<1>(param.param).name);
                         });

class CudaFamilyMirrorTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaFamilyMirrorTest, RandomOperationsGiveTheSameRecordsAndStatesAsOnTheCpu) {
  constexpr int kSlots = 5;
  const std::shared_ptr<const Model> model = Loaded(GetParam());
  ASSERT_NE(model, nullptr);
  auto cpu = CreateCpuBackend(model, {.num_slots = kSlots, .threads = 1});
  CudaBackendOptions options;
  options.num_slots = kSlots;
  options.precision = CudaPrecision::kFloat32;
  options.max_tokens = 64;
  auto cuda = CreateCudaBackend(model, options);
  ASSERT_TRUE(cpu.ok() && cuda.ok()) << cpu.status() << cuda.status();
  TwoBackends both(model, *std::move(cpu), *std::move(cuda), kSlots,
                   {.outputs = 1e-3, .logprobs = 2e-3, .states = 1e-4}, 17);
  both.Compare(20);
}

INSTANTIATE_TEST_SUITE_P(All, CudaFamilyMirrorTest, ::testing::ValuesIn(FamilyDirectories()),
                         [](const auto& param) { return TestName(param.param, "mirror"); });

TEST(CudaFamilyOptionsTest, WhatTheseModelsDoNotHaveIsRefusedByName) {
  const std::shared_ptr<const Model> model = Loaded(FamilyDirectories().front());
  ASSERT_NE(model, nullptr);
  CudaBackendOptions options;
  options.num_slots = 2;
  options.max_tokens = 32;
  options.weights = WeightPrecision::kInt4;
  EXPECT_EQ(GetErrorDetail(CreateCudaBackend(model, options).status()).field, "weights");
  options.weights = {};
  auto backend = CreateCudaBackend(model, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->limits().plan, "graphs");
  EXPECT_EQ((*backend)->limits().products, "own kernels (no run has 128 rows)");
}

}  // namespace
}  // namespace rivulet::testing
