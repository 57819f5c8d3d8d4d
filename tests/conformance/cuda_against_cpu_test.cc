// SPDX-License-Identifier: Apache-2.0
// The CUDA backend in float32 against the CPU backend: both do the same operations in the same
// order, drawn at random, and must tell the same.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "model/cpu_backend.h"
#include "model/cuda_backend.h"
#include "tests/conformance/tested_backend.h"

namespace rivulet::testing {
namespace {

// Two backends do the same, at random; every record and state must agree.
class CudaAgainstCpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kSlots = 5;

  // Ends the program, as skipped, where there is no device.
  static void SetUpTestSuite() { (void)TestedBackends(); }
  void SetUp() override {
    auto model = Model::Load(SourceDir() + "/tests/conformance/models/" + GetParam());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    auto cpu = CreateCpuBackend(model_, {.num_slots = kSlots, .threads = 1});
    CudaBackendOptions options;
    options.num_slots = kSlots;
    options.precision = CudaPrecision::kFloat32;
    options.max_tokens = 64;
    auto cuda = CreateCudaBackend(model_, options);
    ASSERT_TRUE(cpu.ok() && cuda.ok()) << cpu.status() << cuda.status();
    cpu_ = *std::move(cpu);
    cuda_ = *std::move(cuda);
  }

  int UpTo(int n) { return int(random_() % uint32_t(n + 1)); }
  int32_t Token() { return int32_t(random_() % uint32_t(model_->config().num_output_tokens())); }

  SlotSampler RandomSampler() {
    SlotSampler sampler;
    sampler.params.seed = random_();
    sampler.params.temperature = UpTo(3) == 0 ? 0.0f : 0.5f + 0.25f * float(UpTo(3));
    sampler.sample_index = uint32_t(UpTo(3));
    if (UpTo(1) == 0) {
      sampler.want_logprobs = true;
      sampler.num_top_logprobs = UpTo(5);
    }
    if (UpTo(1) == 0) sampler.stop_ids = {Token(), Token()};
    if (model_->config().output.type == OutputType::kMixtureOfLogistics) return sampler;
    if (UpTo(1) == 0) {
      sampler.params.frequency_penalty = 0.5f * float(UpTo(3));
      sampler.params.presence_penalty = 0.5f * float(UpTo(3));
      sampler.params.repetition_penalty = 1 + 0.5f * float(UpTo(2));
    }
    if (UpTo(1) == 0) sampler.params.logit_bias = {{Token(), 2.0f}};
    sampler.params.top_k = UpTo(8);
    if (UpTo(1) == 0) sampler.params.top_p = 0.7f;
    if (UpTo(2) == 0) sampler.params.min_p = 0.1f;
    return sampler;
  }
  void Both(const std::function<absl::Status(Backend&)>& operation) {
    EXPECT_EQ(operation(*cpu_), absl::OkStatus());
    EXPECT_EQ(operation(*cuda_), absl::OkStatus());
  }
  void Zero(Slot slot) {
    Both([&](Backend& b) { return b.ZeroSlots({&slot, 1}); });
    fed_[slot] = 0;
    last_[slot] = -1;
  }
  void RandomRun();
  void CompareStates();

  std::mt19937 random_{uint32_t(std::hash<std::string>()(GetParam()))};
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> cpu_, cuda_;
  int64_t fed_[kSlots + 1] = {};
  int32_t last_[kSlots + 1] = {-1, -1, -1, -1, -1, -1};  // drawn but not fed
};

void CudaAgainstCpuTest::RandomRun() {
  const int num_steps = 1 + UpTo(5);
  const bool just_draws = UpTo(1) == 0;  // a first step like any other
  std::vector<std::vector<int32_t>> tokens(kSlots), targets(kSlots);
  std::vector<std::vector<OutputRequest>> requests[2];
  std::vector<std::vector<float>> outputs[2];
  std::vector<rivulet::Run> runs(2);
  for (auto& r : requests) r.resize(kSlots);
  for (auto& o : outputs)
    o.assign(kSlots, std::vector<float>(size_t(model_->config().output_size())));
  for (Slot slot = 1; slot <= kSlots; ++slot) {
    const auto i = size_t(slot) - 1;
    if (UpTo(3) == 0) continue;
    RunRow row;
    row.slot = slot;
    row.position = fed_[slot];
    const bool goes_on = last_[slot] >= 0;
    const int count = goes_on || just_draws || UpTo(1) == 0 ? 1 : 1 + UpTo(6);
    for (int t = 0; t < count; ++t) tokens[i].push_back(goes_on ? last_[slot] : Token());
    row.count_as_output = goes_on;
    row.tokens = tokens[i];
    if (!just_draws && UpTo(3) == 0) {
      for (int t = 0; t < count; ++t) targets[i].push_back(Token());
      row.targets = targets[i];
    }
    const bool wants = !just_draws && UpTo(3) == 0;
    const int index = UpTo(count - 1);
    for (int b = 0; wants && b < 2; ++b) requests[b][i] = {{index, outputs[b][i].data()}};
    row.sample = just_draws || UpTo(4) > 0;
    row.max_samples = row.sample ? 1 + UpTo(6) : 0;
    for (int b = 0; b < 2; ++b) {
      row.outputs = requests[b][i];
      runs[size_t(b)].rows.push_back(row);
    }
  }
  if (runs[0].rows.empty()) return;
  std::vector<Record> records[2];
  Backend* backends[] = {cpu_.get(), cuda_.get()};
  for (int b = 0; b < 2; ++b) {
    runs[size_t(b)].num_steps = num_steps;
    ASSERT_EQ(backends[b]->Submit(runs[size_t(b)]), absl::OkStatus());
    records[b] = PollAll(*backends[b]);
  }
  for (size_t i = 0; i < kSlots; ++i) {
    for (size_t j = 0; j < outputs[0][i].size(); ++j) {
      ASSERT_NEAR(outputs[1][i][j], outputs[0][i][j], 1e-3) << "raw outputs of slot " << i + 1;
    }
  }
  ASSERT_EQ(records[1].size(), records[0].size());
  for (const RunRow& row : runs[0].rows) fed_[row.slot] += int64_t(row.tokens.size());
  for (const RunRow& row : runs[0].rows) last_[row.slot] = -1;
  std::vector<size_t> seen(runs[0].rows.size());  // records of each row
  for (size_t i = 0; i < records[0].size(); ++i) {
    const Record &cpu = records[0][i], &cuda = records[1][i];
    ASSERT_EQ(cuda.row, cpu.row) << i;
    ASSERT_EQ(cuda.position, cpu.position) << i;
    ASSERT_EQ(cuda.token, cpu.token) << i;
    ASSERT_EQ(cuda.stopped, cpu.stopped) << i;
    ASSERT_EQ(cuda.non_finite, cpu.non_finite) << i;
    ASSERT_EQ(std::isnan(cuda.logprob), std::isnan(cpu.logprob)) << i;
    if (!std::isnan(cpu.logprob)) {
      ASSERT_NEAR(cuda.logprob, cpu.logprob, 2e-3) << i;
    }
    ASSERT_EQ(cuda.top.size(), cpu.top.size()) << i;
    for (size_t t = 0; t < cpu.top.size(); ++t) {
      ASSERT_EQ(cuda.top[t].token, cpu.top[t].token) << i;
      ASSERT_NEAR(cuda.top[t].logprob, cpu.top[t].logprob, 2e-3) << i;
    }
    const RunRow& row = runs[0].rows[size_t(cpu.row)];
    const bool drawn = seen[size_t(cpu.row)]++ >= row.targets.size();
    if (drawn) {
      if (last_[row.slot] >= 0) ++fed_[row.slot];
      last_[row.slot] = cpu.stopped ? -1 : cpu.token;
    }
  }
}

void CudaAgainstCpuTest::CompareStates() {
  std::vector<float> cpu(cpu_->limits().bytes_per_slot / sizeof(float)), cuda(cpu.size());
  ASSERT_EQ(cuda_->limits().bytes_per_slot, cpu_->limits().bytes_per_slot);
  for (Slot slot = 1; slot <= kSlots; ++slot) {
    ASSERT_TRUE(cpu_->ReadSlot(slot, cpu).ok());
    ASSERT_TRUE(cuda_->ReadSlot(slot, cuda).ok());
    for (size_t i = 0; i < cpu.size(); ++i) {
      ASSERT_NEAR(cuda[i], cpu[i], 1e-4 * (1 + std::fabs(cpu[i]))) << "slot " << slot;
    }
  }
}

TEST_P(CudaAgainstCpuTest, RandomOperationsGiveTheSameRecordsAndStatesInTheSameOrder) {
  for (Slot slot = 1; slot <= kSlots; ++slot) Zero(slot);
  std::vector<float> kept(cpu_->limits().bytes_per_slot / sizeof(float));
  for (int i = 0; i < 80; ++i) {
    SCOPED_TRACE(absl::StrCat("operation ", i));
    const Slot a = 1 + UpTo(kSlots - 1), b = 1 + UpTo(kSlots - 1);
    switch (UpTo(6)) {
      case 0: {
        const SlotSampler sampler = RandomSampler();
        Both([&](Backend& backend) { return backend.SetSampler(a, sampler); });
        break;
      }
      case 1:
        if (a == b) break;
        Both([&](Backend& backend) { return backend.CopySlot(a, b); });
        fed_[b] = fed_[a];
        last_[b] = last_[a];
        break;
      case 2:
        ASSERT_TRUE(cpu_->ReadSlot(a, kept).ok());
        Both([&](Backend& backend) { return backend.WriteSlot(b, kept); });
        fed_[b] = fed_[a];
        last_[b] = -1;
        break;
      default:
        if (fed_[a] > 25) Zero(a);
        if (fed_[b] > 25) Zero(b);
        for (Slot slot = 1; slot <= kSlots; ++slot) {
          if (fed_[slot] > 30) Zero(slot);
        }
        RandomRun();
    }
    ASSERT_FALSE(HasFatalFailure());
  }
  CompareStates();
}

INSTANTIATE_TEST_SUITE_P(Models, CudaAgainstCpuTest,
                         ::testing::Values("tiny-elu-relu", "tiny-elu-learned-concat",
                                           "tiny-elu-sinusoidal", "tiny-rfa", "tiny-image"),
                         [](const auto& param) { return TestName(param.param, "mirror"); });

}  // namespace
}  // namespace rivulet::testing
