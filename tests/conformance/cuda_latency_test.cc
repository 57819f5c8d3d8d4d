// SPDX-License-Identifier: Apache-2.0
// Runs of few rows as one launch against the same runs as graphs: the same bits, for every kind of
// linear transformer, on the emulator or the GPU of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/cuda/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/conformance/two_backends.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"
#ifdef RIVULET_CUDA_EMULATED
#include "tests/support/cuda_emulator/cuda_emulator.h"
#endif

namespace rivulet::testing {
namespace {

using kernels::FeatureMapKind;

constexpr int kSlots = 5;

CudaBackendOptions Options(CudaPlan plan) {
  CudaBackendOptions options;
  options.num_slots = kSlots;
  options.max_tokens = 64;
  options.plan = plan;
  options.patience = Patience();
  return options;
}

// `operations` of random operations with both plans.
void ExpectSameBits(const std::shared_ptr<const Model>& model, int operations) {
  auto graphs = CreateCudaBackend(model, Options(CudaPlan::kThroughput));
  auto one = CreateCudaBackend(model, Options(CudaPlan::kLatency));
  ASSERT_TRUE(graphs.ok() && one.ok()) << graphs.status() << one.status();
  EXPECT_THAT((*graphs)->limits().plan, ::testing::StartsWith("graphs"));
  EXPECT_THAT((*one)->limits().plan, ::testing::HasSubstr("up to 5 rows: one launch"));
  EXPECT_EQ((*one)->limits().numerics_id, (*graphs)->limits().numerics_id);
  TwoBackends both(model, *std::move(graphs), *std::move(one), kSlots, {}, 17);
  both.Compare(operations);
}

void ExpectSameBits(const ModelConfig& config, int operations) {
  TempDir directory;
  ASSERT_TRUE(WriteRandomModel(directory.path(), config, 5, DType::kF16).ok());
  auto model = Model::Load(directory.path());
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectSameBits(*model, operations);
}

class CudaLatencyTest : public ::testing::Test {
 protected:
  // Ends the program, as skipped, where there is no device.
  static void SetUpTestSuite() { (void)TestedBackends(); }
#ifdef RIVULET_CUDA_EMULATED
  // So many that their shared memory holds the largest model here, as that of a GPU does.
  void SetUp() override { cuda_emulator::Reset({.multiprocessors = 20}); }
  void TearDown() override { cuda_emulator::Reset(); }
#endif
};

class CudaLatencyGoldenTest : public CudaLatencyTest,
                              public ::testing::WithParamInterface<std::string> {};

TEST_P(CudaLatencyGoldenTest, RandomOperationsHaveTheSameBitsInOneLaunchAsInGraphs) {
  auto model = Model::Load(SourcePath("tests/conformance/models/") + GetParam());
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectSameBits(*model, 40);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaLatencyGoldenTest,
                         ::testing::Values("tiny-elu-relu", "tiny-elu-learned-concat",
                                           "tiny-elu-sinusoidal", "tiny-rfa", "tiny-image"),
                         [](const auto& param) { return TestName(param.param, "bits"); });

// None of these sizes divides a tile, a warp or a block's share; values of a head are odd. Of 107
// features each of the four sums of q . z has some.
TEST_F(CudaLatencyTest, EveryFeatureMapAndGateHasTheSameBitsAtOddSizes) {
  for (const auto& [kind, dims] : {std::pair{FeatureMapKind::kElu, 0},
                                   {FeatureMapKind::kRandomFourier, 22},
                                   {FeatureMapKind::kSmoothedRandomFourier, 20},
                                   {FeatureMapKind::kFavor, 18},
                                   {FeatureMapKind::kGeneralizedRandomRelu, 107},
                                   {FeatureMapKind::kRfa, 13}}) {
    SCOPED_TRACE(absl::StrCat("feature map ", int(kind)));
    ModelConfig config = TinyConfig();
    config.hidden_size = 45;
    config.num_heads = 3;
    config.key_dim = 21;
    config.value_dim = 23;
    config.ffn_size = 77;
    config.vocab_size = 51;
    config.encoder().feature_map = MakeFeatureMap(kind, dims);
    if (kind == FeatureMapKind::kElu || kind == FeatureMapKind::kRfa)
      config.encoder().gate = Gate::kRfa;
    if (kind == FeatureMapKind::kRfa) config.encoder().normalizer = Normalizer::kClampMin;
    config.encoder().final_norm = kind == FeatureMapKind::kFavor;
    ExpectSameBits(config, StepsAreSlow() ? 7 : 12);
    if (HasFatalFailure()) return;
  }
}

// Shapes of states that have attention kernels of their own.
TEST_F(CudaLatencyTest, EverySpecialShapeOfStateHasTheSameBits) {
  for (const auto& [features, values] : {std::pair{32, 32}, {64, 32}, {64, 64}, {128, 64}}) {
    SCOPED_TRACE(absl::StrCat(features, " x ", values));
    ModelConfig config = TinyConfig();
    config.hidden_size = 48;
    config.num_heads = 2;
    config.value_dim = values;
    config.key_dim = features == values ? features : 24;
    config.ffn_size = 96;
    config.num_layers = 3;
    if (features != values) {
      config.encoder().feature_map = MakeFeatureMap(FeatureMapKind::kFavor, features);
    }
    config.encoder().activation = values == 32 ? Activation::kRelu : Activation::kGelu;
    config.vocab_size = values == 32 ? 40 : 300;  // a head in one block, and a head shared by all
    ExpectSameBits(config, StepsAreSlow() ? 5 : 10);
    if (HasFatalFailure()) return;
  }
}

// The shape of mnist-linear, with fewer layers.
TEST_F(CudaLatencyTest, AModelOfImagesHasTheSameBits) {
  ModelConfig config = TinyConfig();
  config.vocab_size = 257;
  config.bos_token_id = 256;
  config.hidden_size = 256;
  config.num_layers = 2;
  config.num_heads = 8;
  config.key_dim = config.value_dim = 32;
  config.ffn_size = 1024;
  config.encoder().final_norm = true;
  config.encoder().position = PositionType::kSinusoidal;
  config.encoder().combine = PositionCombine::kConcat;
  config.max_positions = 784;
  config.output.type = OutputType::kMixtureOfLogistics;
  config.output.num_mixtures = 10;
  config.output.num_levels = 256;
  config.content.type = ContentType::kImage;
  config.content.height = config.content.width = 28;
  config.content.channels = 1;
  ExpectSameBits(config, StepsAreSlow() ? 5 : 60);
}

// Sixteen rows fill a tile of the tensor cores; rows end at different steps.
TEST_F(CudaLatencyTest, AsManyRowsAsOneLaunchTakesHaveTheSameBits) {
  constexpr int kMany = 16;
  ModelConfig config = TinyConfig();
  TempDir directory;
  ASSERT_TRUE(WriteRandomModel(directory.path(), config, 5).ok());
  auto model = Model::Load(directory.path());
  ASSERT_TRUE(model.ok()) << model.status();
  for (const int rows : {5, kMany}) {
    CudaBackendOptions options = Options(CudaPlan::kThroughput);
    options.num_slots = kMany;
    options.max_tokens = 128;
    auto graphs = CreateCudaBackend(*model, options);
    options.plan = CudaPlan::kLatency;
    options.latency_rows = rows;
    auto one = CreateCudaBackend(*model, options);
    ASSERT_TRUE(graphs.ok() && one.ok()) << graphs.status() << one.status();
    TwoBackends both(*model, *std::move(graphs), *std::move(one), kMany, {}, 3);
    both.Compare(30);
  }
}

}  // namespace
}  // namespace rivulet::testing
