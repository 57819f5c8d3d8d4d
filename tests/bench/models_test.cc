// SPDX-License-Identifier: Apache-2.0
// Models that benchmarks make of random numbers: each kind loads and generates.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/model.h"
#include "tests/bench/backend_choice.h"
#include "tests/bench/family_shape.h"
#include "tests/bench/generation.h"
#include "tests/support/random_model.h"

namespace rivulet::bench {
namespace {

// Two rows of the model generate on the CPU; returns its settings.
ModelConfig Generates(const testing::TempDir& directory, const absl::Status& written) {
  EXPECT_TRUE(written.ok()) << written;
  auto model = Model::Load(directory.path());
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return {};
  }
  const std::shared_ptr<const Model> made = *std::move(model);
  const auto backend = NewBackend({}, made, 2, {}, 1);
  Generation generation(backend.get(), made->config(), 2, 4);
  generation.Run();
  EXPECT_EQ(generation.records().size(), 8u);
  for (const Record& record : generation.records()) EXPECT_FALSE(record.non_finite);
  return made->config();
}

TEST(BenchModelsTest, Rwkv7WithTheRanksOfTheLargestGenerates) {
  const testing::TempDir directory;
  Generates(directory, WriteRwkv7(directory.path(), {.hidden = 128,
                                                     .layers = 2,
                                                     .vocab = 64,
                                                     .decay = 128,
                                                     .rate = 128,
                                                     .value = 96,
                                                     .gate = 480}));
}

TEST(BenchModelsTest, Mamba2Generates) {
  const testing::TempDir directory;
  Generates(directory, WriteMamba2(directory.path(), {.hidden = 64, .layers = 2, .vocab = 64}));
}

TEST(BenchModelsTest, GraniteGenerates) {
  const testing::TempDir directory;
  Generates(directory, WriteGranite(directory.path(), {.hidden = 128,
                                                       .layers = 4,
                                                       .vocab = 64,
                                                       .attention_every = 2,
                                                       .heads = 2,
                                                       .kv_heads = 1,
                                                       .ffn = 96}));
}

TEST(BenchModelsTest, Qwen35Generates) {
  const testing::TempDir directory;
  const ModelConfig config = Generates(directory, WriteQwen35(directory.path(), {.hidden = 64,
                                                                                 .layers = 4,
                                                                                 .vocab = 64,
                                                                                 .delta_heads = 2,
                                                                                 .heads = 2,
                                                                                 .kv_heads = 1,
                                                                                 .ffn = 96}));
  EXPECT_EQ(config.block().softmax->layers, std::vector<bool>({false, false, false, true}));
}

}  // namespace
}  // namespace rivulet::bench
