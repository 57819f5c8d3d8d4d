// SPDX-License-Identifier: Apache-2.0
// Runs of many rows as one launch, where only the emulator can look: devices of other sizes, what
// is launched, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/conformance/two_backends.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace emulator = ::rivulet::cuda_emulator;

constexpr int kSlots = 7;

class CudaFusedEmulatedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::Reset();
    Load(Config());
  }
  void TearDown() override { emulator::Reset(); }

  static ModelConfig Config() {
    ModelConfig config = TinyConfig();
    config.num_layers = 2;
    config.hidden_size = 96;
    config.num_heads = 4;
    config.key_dim = config.value_dim = 32;
    config.ffn_size = 256;
    return config;
  }
  void Load(const ModelConfig& config) {
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config, 3, DType::kF16).ok());
    auto model = Model::Load(directory_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
  static CudaBackendOptions Options(CudaPlan plan) {
    CudaBackendOptions options;
    options.num_slots = kSlots;
    options.max_tokens = 64;
    options.plan = plan;
    options.fused_rows = 3;
    options.patience = absl::Minutes(10);
    return options;
  }
  // Random operations with both plans; returns how the fused one was described.
  std::string ExpectSameBits(uint32_t seed, int operations) {
    auto graphs = CreateCudaBackend(model_, Options(CudaPlan::kThroughput));
    auto fused = CreateCudaBackend(model_, Options(CudaPlan::kFused));
    EXPECT_TRUE(graphs.ok() && fused.ok()) << graphs.status() << fused.status();
    if (!graphs.ok() || !fused.ok()) return "";
    std::string plan = (*fused)->limits().plan;
    TwoBackends both(model_, *std::move(graphs), *std::move(fused), kSlots, {}, seed);
    both.Compare(operations);
    return plan;
  }
  absl::Status Refused(const CudaBackendOptions& options) {
    const absl::Status status = CreateCudaBackend(model_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(status).field, "plan");
    EXPECT_EQ(GetErrorDetail(status).reason, "PLAN_UNSUPPORTED");
    return status;
  }
  static rivulet::Run Draws(int rows, int count) {
    static const std::vector<int32_t> start = {1};
    rivulet::Run run;
    run.num_steps = count;
    run.rows.resize(size_t(rows));
    for (int i = 0; i < rows; ++i) {
      run.rows[size_t(i)].slot = i + 1;
      run.rows[size_t(i)].tokens = start;
      run.rows[size_t(i)].sample = true;
      run.rows[size_t(i)].max_samples = count;
    }
    return run;
  }

  TempDir directory_;
  std::shared_ptr<const Model> model_;
};

TEST_F(CudaFusedEmulatedTest, ARunOfManyRowsIsOneLaunchAndASmallerOneIsNot) {
  CudaBackendOptions options = Options(CudaPlan::kFused);
  options.latency_rows = 0;
  auto backend = CreateCudaBackend(model_, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_THAT((*backend)->limits().plan,
              StartsWith("runs of 3 to 7 rows: one launch, up to 2 rows a block"));
  EXPECT_THAT((*backend)->limits().plan, HasSubstr("; graphs ("));
  for (Slot slot = 1; slot <= kSlots; ++slot) {
    ASSERT_TRUE((*backend)->SetSampler(slot, SlotSampler()).ok());
  }
  emulator::Counters before = emulator::Count();
  ASSERT_TRUE((*backend)->Submit(Draws(kSlots, 5)).ok());
  EXPECT_EQ(PollAll(**backend).size(), size_t{5 * kSlots});
  EXPECT_EQ(emulator::Count().graph_launches, before.graph_launches);
  EXPECT_EQ(emulator::Count().kernels, before.kernels + 1);
  before = emulator::Count();
  ASSERT_TRUE((*backend)->Submit(Draws(2, 5)).ok());
  EXPECT_EQ(PollAll(**backend).size(), 10u);
  EXPECT_EQ(emulator::Count().graph_launches, before.graph_launches + 5);
}

TEST_F(CudaFusedEmulatedTest, NobodyGetsItUnasked) {
  for (const CudaPlan plan : {CudaPlan::kAuto, CudaPlan::kLatency, CudaPlan::kThroughput}) {
    CudaBackendOptions options = Options(plan);
    options.fused_rows = 1;
    auto backend = CreateCudaBackend(model_, options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_THAT((*backend)->limits().plan, ::testing::Not(HasSubstr("rows a block")));
  }
}

// Rows a block, heads a round, the rings' depth and clusters follow from the device; the bits do
// not.
TEST_F(CudaFusedEmulatedTest, DevicesOfEverySizeHaveTheSameBitsInEveryOrderOfThreads) {
  struct Machine {
    int major, multiprocessors;
    size_t shared_kib;
  };
  uint64_t seed = 0;
  std::vector<std::string> plans;
  for (const Machine& m : {Machine{9, 1, 227},
                           {9, 2, 227},
                           {9, 2, 99},
                           {9, 4, 99},
                           {9, 9, 227},
                           {8, 1, 99},
                           {8, 3, 163},
                           {8, 9, 99}}) {
    SCOPED_TRACE(absl::StrCat(m.multiprocessors, " multiprocessors, ", m.shared_kib, " KiB"));
    emulator::Options machine;
    machine.major = m.major;
    machine.multiprocessors = m.multiprocessors;
    machine.shared_bytes = m.shared_kib << 10;
    machine.seed = seed++;
    emulator::Reset(machine);
    plans.push_back(ExpectSameBits(uint32_t(seed), 4));
    ASSERT_FALSE(HasFailure());
  }
  for (const char* part :
       {"up to 7 rows a block", "up to 4 rows a block", "up to 1 rows a block",
        "heads a round x depth 4 x 6", "heads a round x depth 4 x 2", "clusters of up to 1;",
        "clusters of up to 2;", "clusters of up to 4;"}) {
    EXPECT_THAT(plans, ::testing::Contains(HasSubstr(part)));
  }
}

TEST_F(CudaFusedEmulatedTest, WhatItCannotRunIsRefusedAtStartWithTheValues) {
  CudaBackendOptions options = Options(CudaPlan::kFused);
  options.precision = CudaPrecision::kFloat32;
  EXPECT_THAT(std::string(Refused(options).message()), HasSubstr("precision is \"float32\""));
  options = Options(CudaPlan::kFused);
  options.fused_rows = kSlots + 1;
  EXPECT_THAT(std::string(Refused(options).message()),
              HasSubstr("runs have at most 7 rows (max_sessions), and it takes those of 8"));
  options = Options(CudaPlan::kFused);
  options.head_rows = 2;
  EXPECT_THAT(std::string(Refused(options).message()), HasSubstr("head outputs of 2 rows"));
  emulator::Options machine;
  machine.shared_bytes = 70 << 10;
  emulator::Reset(machine);
  EXPECT_THAT(std::string(Refused(Options(CudaPlan::kFused)).message()),
              HasSubstr(absl::StrCat("and a block of this device has ", 70 << 10)));
  emulator::Reset();
  ModelConfig config = Config();
  config.value_dim = 24;
  Load(config);
  EXPECT_THAT(std::string(Refused(Options(CudaPlan::kFused)).message()),
              HasSubstr("states are 32 x 24"));
  options.fused_rows = 0;
  EXPECT_EQ(GetErrorDetail(CreateCudaBackend(model_, options).status()).field, "fused_rows");
  options = Options(CudaPlan::kFused);
  options.fused_cluster = 5;
  EXPECT_EQ(GetErrorDetail(CreateCudaBackend(model_, options).status()).field, "fused_cluster");
}

}  // namespace
}  // namespace rivulet::testing
