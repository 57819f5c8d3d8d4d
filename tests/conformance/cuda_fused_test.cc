// SPDX-License-Identifier: Apache-2.0
// Runs of many rows as one launch against the same runs as graphs: the same bits, for every shape
// that the launch takes, on the emulator or the GPU of this machine.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/conformance/two_backends.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using kernels::FeatureMapKind;

class CudaFusedTest : public ::testing::Test {
 protected:
  // Ends the program, as skipped, where there is no device.
  static void SetUpTestSuite() { (void)TestedBackends(); }
};

int Multiprocessors() {
  int count = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  return count;
}

// `operations` of random operations on `slots` slots with both plans, and clusters of so many
// blocks where the device has them.
void ExpectSameBits(const std::shared_ptr<const Model>& model, int slots, int operations,
                    int cluster) {
  CudaBackendOptions options;
  options.num_slots = slots;
  options.max_tokens = 8 * slots;
  options.patience = absl::Minutes(10);
  options.plan = CudaPlan::kThroughput;
  auto graphs = CreateCudaBackend(model, options);
  options.plan = CudaPlan::kFused;
  options.fused_rows = 1;
  options.fused_cluster = cluster;
  auto fused = CreateCudaBackend(model, options);
  ASSERT_TRUE(graphs.ok() && fused.ok()) << graphs.status() << fused.status();
  EXPECT_THAT((*graphs)->limits().plan, ::testing::StartsWith("graphs"));
  EXPECT_THAT((*fused)->limits().plan,
              ::testing::StartsWith(absl::StrCat("runs of 1 to ", slots, " rows: one launch")));
  EXPECT_EQ((*fused)->limits().numerics_id, (*graphs)->limits().numerics_id);
  TwoBackends both(model, *std::move(graphs), *std::move(fused), slots, {}, 17);
  both.Compare(operations);
}

void ExpectSameBits(const ModelConfig& config, int slots, int operations) {
  TempDir directory;
  ASSERT_TRUE(WriteRandomModel(directory.path(), config, 5, DType::kF16).ok());
  auto model = Model::Load(directory.path());
  ASSERT_TRUE(model.ok()) << model.status();
  for (const int cluster : {1, 4}) {
    SCOPED_TRACE(absl::StrCat("clusters of up to ", cluster));
    ExpectSameBits(*model, slots, operations, cluster);
  }
}

ModelConfig Config(int features, int values) {
  ModelConfig config = TinyConfig();
  config.hidden_size = 48;
  config.num_heads = 2;
  config.num_layers = 2;
  config.value_dim = values;
  config.key_dim = features == values ? features : 24;
  config.ffn_size = 96;
  if (features != values) {
    config.feature_map = MakeFeatureMap(FeatureMapKind::kFavor, features);
  }
  return config;
}

TEST_F(CudaFusedTest, EveryShapeOfStateHasTheSameBits) {
  for (const auto& [features, values] : {std::pair{32, 32}, {64, 32}, {64, 64}, {128, 64}}) {
    SCOPED_TRACE(absl::StrCat(features, " x ", values));
    ModelConfig config = Config(features, values);
    config.activation = values == 32 ? Activation::kRelu : Activation::kGelu;
    config.vocab_size = values == 32 ? 40 : 300;
    ExpectSameBits(config, 5, StepsAreSlow() ? 5 : 12);
    if (HasFailure()) return;
  }
}

// Columns of heads share tiles, rows end within a vector, heads come in several rounds.
TEST_F(CudaFusedTest, OddSizesAndEveryFeatureMapAndGateHaveTheSameBits) {
  for (const auto& [kind, dims] : {std::pair{FeatureMapKind::kElu, 0},
                                   {FeatureMapKind::kRandomFourier, 32},
                                   {FeatureMapKind::kFavor, 32},
                                   {FeatureMapKind::kGeneralizedRandomRelu, 32},
                                   {FeatureMapKind::kRfa, 16}}) {
    SCOPED_TRACE(absl::StrCat("feature map ", int(kind)));
    ModelConfig config = Config(32, 32);
    config.hidden_size = 45;
    config.num_heads = 6;
    config.ffn_size = 77;
    config.vocab_size = 51;
    if (kind != FeatureMapKind::kElu) config.key_dim = 22;
    config.feature_map = MakeFeatureMap(kind, dims);
    if (kind == FeatureMapKind::kElu || kind == FeatureMapKind::kRfa) config.gate = Gate::kRfa;
    if (kind == FeatureMapKind::kRfa) config.normalizer = Normalizer::kClampMin;
    config.final_norm = kind == FeatureMapKind::kFavor;
    ExpectSameBits(config, 6, StepsAreSlow() ? 4 : 12);
    if (HasFailure()) return;
  }
}

// The shape of mnist-linear, with fewer layers.
TEST_F(CudaFusedTest, AModelOfImagesHasTheSameBits) {
  ModelConfig config = Config(32, 32);
  config.vocab_size = 257;
  config.bos_token_id = 256;
  config.hidden_size = 256;
  config.num_heads = 8;
  config.ffn_size = 1024;
  config.final_norm = true;
  config.position = {PositionType::kSinusoidal, PositionCombine::kConcat, 784};
  config.output.type = OutputType::kMixtureOfLogistics;
  config.output.num_mixtures = 10;
  config.output.num_levels = 256;
  config.content.type = ContentType::kImage;
  config.content.height = config.content.width = 28;
  config.content.channels = 1;
  ExpectSameBits(config, 5, StepsAreSlow() ? 3 : 60);
}

// So many rows that some blocks have more than one tile of 16, and the last one has few.
TEST_F(CudaFusedTest, BlocksOfTwoTilesOfRowsHaveTheSameBits) {
  ModelConfig config = Config(32, 32);
  config.num_layers = 1;
  ExpectSameBits(config, 17 * Multiprocessors() + 3, StepsAreSlow() ? 3 : 30);
}

}  // namespace
}  // namespace rivulet::testing
