// SPDX-License-Identifier: Apache-2.0
// The whole engine on the emulated CUDA backend: sequences join, fork and leave between runs of
// many steps, and a device that fails ends them all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "model/cpu/cpu_backend.h"
#include "model/cuda/cuda_backend.h"
#include "server/engine/engine.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/random_model.h"
#include "tests/support/reply_collector.h"

namespace rivulet::testing {
namespace {

namespace emulator = ::rivulet::cuda_emulator;

constexpr int kSlots = 4, kRequests = 9;

class CudaEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::Reset();
    ModelConfig config = TinyConfig();
    config.num_layers = 1;
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config, 3).ok());
    auto model = Model::Load(directory_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
  void TearDown() override { emulator::Reset(); }

  std::unique_ptr<Backend> NewCuda() {
    CudaBackendOptions options;
    options.num_slots = kSlots;
    options.precision = CudaPrecision::kFloat32;
    options.max_tokens = 64;
    options.preferred_steps = 5;
    return *CreateCudaBackend(model_, options);
  }
  static GenerateSpec Spec(int i) {
    GenerateSpec spec;
    for (int t = 0; t < i % 4; ++t) spec.prompt.push_back(1 + (i + 3 * t) % 10);
    spec.max_tokens = 7 + 5 * (i % 4);
    spec.num_samples = i % 5 == 3 ? 2 : 1;
    spec.sampling.seed = uint64_t(i) + 100;
    if (i % 3 == 1) spec.sampling.frequency_penalty = 1.5f;
    if (i % 3 == 2) spec.stop_ids = {4};
    return spec;
  }

  TempDir directory_;
  std::shared_ptr<const Model> model_;
};

TEST_F(CudaEngineTest, SequencesThatJoinAndLeaveGetTheTokensOfTheCpu) {
  std::vector<std::vector<std::vector<int32_t>>> tokens;  // [backend][sample]
  for (const bool cuda : {false, true}) {
    auto engine = Engine::Create(
        model_, cuda ? NewCuda() : *CreateCpuBackend(model_, {.num_slots = kSlots, .threads = 1}),
        {});
    std::vector<ReplyCollector> replies(kRequests);  // more than there are slots
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_EQ(replies[size_t(i)].Start(engine.get(), Spec(i)), absl::OkStatus());
      if (i % 4 == 2) replies[size_t(i)].WaitForTokens(3);
    }
    std::vector<std::vector<int32_t>> drawn;
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_EQ(replies[size_t(i)].Wait(), absl::OkStatus());
      EXPECT_EQ(replies[size_t(i)].violation(), "");
      for (int s = 0; s < Spec(i).num_samples; ++s) {
        drawn.push_back(replies[size_t(i)].sample(size_t(s)).tokens);
      }
    }
    tokens.push_back(std::move(drawn));
    EXPECT_EQ(engine->GetLoad().slots_used, 0);
  }
  EXPECT_EQ(tokens[1], tokens[0]);
  EXPECT_GT(emulator::Count().kernels, 100);
}

TEST_F(CudaEngineTest, AFailingDeviceEndsEveryReplyAndTurnsHealthBad) {
  auto engine = Engine::Create(model_, NewCuda(), {});
  emulator::FailKernel(60);
  std::vector<ReplyCollector> replies(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    GenerateSpec spec = Spec(i);
    spec.max_tokens = 1000;
    spec.stop_ids.clear();
    const absl::Status started = replies[size_t(i)].Start(engine.get(), std::move(spec));
    if (started.ok()) {
      EXPECT_EQ(replies[size_t(i)].Wait().code(), absl::StatusCode::kUnavailable);
    } else {
      EXPECT_EQ(started.code(), absl::StatusCode::kUnavailable);
    }
  }
  EXPECT_EQ(engine->GetLoad().health.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(engine->GetLoad().health.message()), ::testing::HasSubstr("CUDA error"));
  EXPECT_EQ(replies[0].Start(engine.get(), Spec(0)).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace rivulet::testing
