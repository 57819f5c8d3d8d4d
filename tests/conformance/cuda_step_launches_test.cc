// SPDX-License-Identifier: Apache-2.0
// How many launches a step of the family's models has: the nodes of its graph, which the emulator
// counts as they run. On a device each of them waits for the one before.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/cuda/cuda_backend.h"
#include "model/model.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

constexpr int kManyRows = 8, kMostRows = 12;

enum class Precision { kF16, kFloat32, kInt8 };

std::unique_ptr<Backend> New(std::shared_ptr<const Model> model, Precision precision) {
  CudaBackendOptions options;
  options.num_slots = kMostRows;
  options.max_tokens = 256;
  options.many_rows = kManyRows;
  options.products = CudaProductChoice::kOwn;
  options.patience = Patience();
  if (precision == Precision::kFloat32) options.precision = CudaPrecision::kFloat32;
  if (precision == Precision::kInt8) options.weights = WeightPrecision::kInt8;
  auto backend = CreateCudaBackend(std::move(model), options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

// Of a run in which `rows` sequences are fed `tokens` each and draw `draws`.
int64_t LaunchesOfRun(Backend& backend, int rows, int tokens, int draws) {
  const std::vector<int32_t> prompt(size_t(tokens), 3);
  Run run;
  run.num_steps = draws;
  for (int i = 0; i < rows; ++i) {
    RunRow row;
    row.slot = i + 1;
    row.tokens = prompt;
    row.sample = true;
    row.max_samples = draws;
    EXPECT_TRUE(backend.ZeroSlots({&row.slot, 1}).ok());
    EXPECT_TRUE(backend.SetSampler(row.slot, SlotSampler()).ok());
    run.rows.push_back(row);
  }
  while (cuda_emulator::Advance(1000)) {  // what slots and samplers have queued
  }
  const int64_t before = cuda_emulator::Count().kernels;
  EXPECT_TRUE(backend.Submit(run).ok());
  PollAll(backend);
  return cuda_emulator::Count().kernels - before;
}

// What one more draw adds.
int64_t LaunchesOfStep(Backend& backend, int rows) {
  return LaunchesOfRun(backend, rows, 1, 3) - LaunchesOfRun(backend, rows, 1, 2);
}

struct Case {
  const char* name;
  Precision precision;
  int few, many;  // launches of a layer, with few rows and from `many_rows` on
  int prompt;     // of a layer of one prompt of many rows
};

class CudaStepLaunchesTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto model =
        Model::Load(SourcePath(absl::StrCat("tests/conformance/family/", GetParam().name)));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    backend_ = New(model_, GetParam().precision);
    ASSERT_NE(backend_, nullptr);
  }
  int Layers(int launches) const { return model_->config().num_layers * launches; }
  // Embedding, final norm, head and draw.
  int Others() const { return 4 + (model_->config().block().first_norm ? 1 : 0); }

  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(CudaStepLaunchesTest, EveryRowCountHasTheLaunchesThatAreDocumented) {
  const Case& c = GetParam();
  for (const int rows : {1, 3, kMostRows}) {
    const bool many = rows >= kManyRows;
    const int rounding_of_head = many && c.precision != Precision::kFloat32 ? 1 : 0;
    EXPECT_EQ(LaunchesOfStep(*backend_, rows),
              Layers(many ? c.many : c.few) + Others() + rounding_of_head)
        << rows << " rows";
  }
  EXPECT_EQ(LaunchesOfRun(*backend_, 1, 100, 1), Layers(c.prompt) + Others());
}

std::string NameOf(const Case& c) {
  const char* const names[] = {"F16", "Float32", "Int8"};
  return absl::StrCat(c.name, names[size_t(c.precision)]);
}

INSTANTIATE_TEST_SUITE_P(All, CudaStepLaunchesTest,
                         ::testing::Values(Case{"rwkv7", Precision::kF16, 10, 10, 10},
                                           Case{"rwkv7", Precision::kFloat32, 10, 10, 10},
                                           Case{"rwkv7", Precision::kInt8, 10, 10, 10},
                                           Case{"mamba2", Precision::kF16, 6, 6, 6},
                                           Case{"mamba2", Precision::kFloat32, 6, 6, 6},
                                           Case{"mamba2", Precision::kInt8, 6, 6, 6}),
                         [](const auto& param) { return NameOf(param.param); });

}  // namespace
}  // namespace rivulet::testing
