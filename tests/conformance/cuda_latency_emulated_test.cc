// SPDX-License-Identifier: Apache-2.0
// Runs of few rows as one launch, where only the emulator can look: devices of other sizes, blocks
// that never run, orders in which blocks run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/cuda/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/conformance/two_backends.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
namespace emulator = ::rivulet::cuda_emulator;

constexpr int kFewSlots = 3;

class CudaLatencyEmulatedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::Reset();
    ModelConfig config = TinyConfig();
    config.num_layers = 3;
    config.hidden_size = 96;
    config.num_heads = 4;
    config.key_dim = config.value_dim = 24;
    config.ffn_size = 256;
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config, 3).ok());
    auto model = Model::Load(directory_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
  void TearDown() override { emulator::Reset(); }

  static CudaBackendOptions Options(CudaPlan plan) {
    CudaBackendOptions options;
    options.num_slots = kFewSlots;
    options.max_tokens = 32;
    options.plan = plan;
    options.latency_rows = 8;
    options.patience = Patience();
    return options;
  }
  std::unique_ptr<Backend> New(CudaPlan plan) {
    auto backend = CreateCudaBackend(model_, Options(plan));
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? *std::move(backend) : nullptr;
  }
  // What is said of a start that fails because of the plan.
  std::string Refusal(const CudaBackendOptions& options) {
    const absl::Status status = CreateCudaBackend(model_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(GetErrorDetail(status).field, "plan");
    EXPECT_EQ(GetErrorDetail(status).reason, "PLAN_UNSUPPORTED");
    return std::string(status.message());
  }
  static rivulet::Run Draws(int count) {
    static const std::vector<int32_t> start = {1};
    rivulet::Run run;
    run.num_steps = count;
    run.rows.resize(1);
    run.rows[0].slot = 1;
    run.rows[0].tokens = start;
    run.rows[0].sample = true;
    run.rows[0].max_samples = count;
    return run;
  }

  TempDir directory_;
  std::shared_ptr<const Model> model_;
};

TEST_F(CudaLatencyEmulatedTest, ARunOfFewRowsIsOneLaunchAndALargerOneIsGraphs) {
  auto backend = New(CudaPlan::kAuto);
  ASSERT_TRUE(backend->SetSampler(1, SlotSampler()).ok());
  const emulator::Counters before = emulator::Count();
  ASSERT_TRUE(backend->Submit(Draws(8)).ok());
  EXPECT_EQ(PollAll(*backend).size(), 8u);
  EXPECT_EQ(emulator::Count().graph_launches, before.graph_launches);
  EXPECT_EQ(emulator::Count().kernels, before.kernels + 1);
  CudaBackendOptions options = Options(CudaPlan::kAuto);
  options.latency_rows = 1;
  backend = *CreateCudaBackend(model_, options);
  rivulet::Run two = Draws(4);
  two.rows.push_back(two.rows[0]);
  two.rows[1].slot = 2;
  const int64_t graphs = emulator::Count().graph_launches;
  ASSERT_TRUE(backend->Submit(two).ok());
  EXPECT_EQ(PollAll(*backend).size(), 8u);
  EXPECT_EQ(emulator::Count().graph_launches, graphs + 4);
  EXPECT_EQ(emulator::Count().kernels_without_preference, 0);
}

// Stages, shares and what stays in shared memory follow from the device; the bits do not.
TEST_F(CudaLatencyEmulatedTest, DevicesOfEverySizeHaveTheSameBitsInEveryOrderOfBlocks) {
  uint64_t seed = 0;
  std::vector<std::string> plans;
  for (const int multiprocessors : {4, 5, 7, 24}) {
    for (const size_t shared_kib : {size_t{227}, size_t{150}}) {
      SCOPED_TRACE(absl::StrCat(multiprocessors, " multiprocessors, ", shared_kib, " KiB"));
      emulator::Options machine;
      machine.multiprocessors = multiprocessors;
      machine.shared_bytes = shared_kib << 10;
      machine.seed = seed++;
      emulator::Reset(machine);
      auto graphs = New(CudaPlan::kThroughput), one = New(CudaPlan::kLatency);
      plans.push_back(one->limits().plan);
      TwoBackends both(model_, std::move(graphs), std::move(one), kFewSlots, {}, uint32_t(seed));
      both.Compare(4);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_THAT(plans,
              Contains(HasSubstr("weights and states in shared memory; stages x blocks 3 x 8")));
  EXPECT_THAT(plans, Contains(HasSubstr("weights in shared memory; stages x blocks 1 x 4")));
}

TEST_F(CudaLatencyEmulatedTest, WhereItCannotBeTheGraphsRunAndThePlanSaysWhy) {
  emulator::Options machine;
  machine.cooperative = false;
  emulator::Reset(machine);
  EXPECT_EQ(New(CudaPlan::kAuto)->limits().plan, "graphs (the device has no cooperative launches)");
  EXPECT_THAT(Refusal(Options(CudaPlan::kLatency)), HasSubstr("no cooperative launches"));
  machine.cooperative = true;
  machine.multiprocessors = 1;
  emulator::Reset(machine);
  const std::string why =
      "weights exceed the shared memory of 1 multiprocessors with 232448 bytes each";
  EXPECT_EQ(New(CudaPlan::kAuto)->limits().plan, absl::StrCat("graphs (", why, ")"));
  EXPECT_EQ(
      Refusal(Options(CudaPlan::kLatency)),
      absl::StrCat("plan is \"latency\", but ", why, "; set plan to \"auto\" or \"throughput\""));
  CudaBackendOptions options = Options(CudaPlan::kLatency);
  options.latency_rows = 17;
  EXPECT_EQ(GetErrorDetail(CreateCudaBackend(model_, options).status()).field, "latency_rows");
}

TEST_F(CudaLatencyEmulatedTest, Float32AndIntegersRunAsGraphs) {
  for (const bool integers : {false, true}) {
    CudaBackendOptions options = Options(CudaPlan::kAuto);
    options.precision = integers ? CudaPrecision::kDefault : CudaPrecision::kFloat32;
    if (integers) options.weights = WeightPrecision::kInt8;
    const std::string why = integers ? "weights have 8 bits" : "precision is \"float32\"";
    auto chosen = CreateCudaBackend(model_, options);
    options.plan = CudaPlan::kThroughput;
    auto graphs = CreateCudaBackend(model_, options);
    ASSERT_TRUE(chosen.ok() && graphs.ok()) << chosen.status() << graphs.status();
    EXPECT_EQ((*chosen)->limits().plan, absl::StrCat("graphs (", why, ")"));
    EXPECT_EQ((*graphs)->limits().plan, "graphs (chosen by option)");
    EXPECT_EQ((*chosen)->limits().numerics_id, (*graphs)->limits().numerics_id);
    EXPECT_EQ((*chosen)->limits().numerics_id,
              integers ? "cuda-int8q1-graph-sm90-2" : "cuda-float32-graph-sm90-2");
    TwoBackends both(model_, *std::move(graphs), *std::move(chosen), kFewSlots, {}, 5);
    both.Compare(6);
    options.plan = CudaPlan::kLatency;
    EXPECT_EQ(Refusal(options), absl::StrCat("plan is \"latency\", but ", why,
                                             "; set plan to \"auto\" or \"throughput\""));
  }
}

TEST_F(CudaLatencyEmulatedTest, ABlockThatNeverComesEndsTheLaunchAndPoisonsTheBackend) {
  for (int lost = 0; lost < 3; ++lost) {  // of three stages of one block
    auto backend = New(CudaPlan::kAuto);
    ASSERT_TRUE(backend->SetSampler(1, SlotSampler()).ok());
    emulator::LoseBlock(2, lost);
    ASSERT_TRUE(backend->Submit(Draws(4)).ok());
    EXPECT_EQ(PollAll(*backend).size(), 4u);
    ASSERT_TRUE(backend->Submit(Draws(4)).ok());
    absl::StatusOr<bool> complete = false;
    std::vector<Record> records;
    while (complete.ok() && !*complete) complete = backend->Poll(&records);
    ASSERT_FALSE(complete.ok()) << "block " << lost;
    EXPECT_EQ(complete.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(GetErrorDetail(complete.status()).reason, "CUDA_ERROR");
    EXPECT_EQ(backend->Submit(Draws(1)), complete.status());
    EXPECT_LT(records.size(), 4u);
  }
}

TEST_F(CudaLatencyEmulatedTest, BackendsOnOneDeviceTakeTurns) {
  std::unique_ptr<Backend> backends[] = {New(CudaPlan::kAuto), New(CudaPlan::kAuto)};
  std::vector<Record> records[2];
  for (auto& backend : backends) ASSERT_TRUE(backend->SetSampler(1, SlotSampler()).ok());
  for (int turn = 0; turn < 3; ++turn) {
    for (auto& backend : backends) ASSERT_TRUE(backend->Submit(Draws(3)).ok());
    // The second cannot begin before the first has ended: to ask it is enough.
    while (!*backends[1]->Poll(&records[1])) {
    }
    while (!*backends[0]->Poll(&records[0])) {
    }
  }
  ASSERT_EQ(records[0].size(), 9u);
  ASSERT_EQ(records[1].size(), 9u);
  backends[0].reset();
  ASSERT_TRUE(backends[1]->Submit(Draws(3)).ok());
  EXPECT_EQ(PollAll(*backends[1]).size(), 3u);
}

}  // namespace
}  // namespace rivulet::testing
