// SPDX-License-Identifier: Apache-2.0
// What the CPU backend promises beside the seam: kinds of weights, memory.
#include "model/cpu/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/memory.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;

class CpuBackendTest : public ::testing::Test {
 protected:
  void Start(const ModelConfig& config) {
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config, 3).ok());
    auto model = Model::Load(directory_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    auto backend = CreateCpuBackend(model_, {.num_slots = 4, .threads = 1});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }

  TempDir directory_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> backend_;
};

TEST(ExpertLoadTest, ARunCountsEachTokenForAsManyExpertsAsItChooses) {
  const auto model = Model::Load(SourcePath("tests/conformance/family/lfm2-moe"));
  ASSERT_TRUE(model.ok()) << model.status();
  const BlockConfig& block = (*model)->config().block();
  EXPECT_EQ((*CreateCpuBackend(*model, {.num_slots = 1}))->limits().expert_load, nullptr);
  for (const int threads : {1, 3}) {
    const auto backend =
        CreateCpuBackend(*model, {.num_slots = 1, .count_experts = true, .threads = threads});
    ASSERT_TRUE(backend.ok()) << backend.status();
    const std::vector<int32_t> tokens = {3, 7, 3, 11, 20};
    ScoreThroughBackend(**backend, (*model)->config(), 1, tokens, 2);
    const ExpertLoad& load = *(*backend)->limits().expert_load;
    for (int layer = 0; layer < load.layers(); ++layer) {
      const bool experts = block.layers[size_t(layer)].ffn == FeedForward::kExperts;
      uint64_t rows = 0;
      for (int e = 0; e < load.experts(); ++e) rows += load.rows(layer, e);
      EXPECT_EQ(rows, experts ? 4u * uint64_t(block.experts->router.chosen) : 0u) << layer;
    }
  }
}

TEST_F(CpuBackendTest, LossyWeightsAreAnotherNumericsIdAndTooLargeOnesAnError) {
  ModelConfig config = TinyConfig();
  Start(config);  // a float32 file
  const std::string exact = backend_->limits().numerics_id;
  auto bf16 =
      CreateCpuBackend(model_, {.num_slots = 1, .weights = WeightPrecision::kBF16, .threads = 1});
  ASSERT_TRUE(bf16.ok());
  EXPECT_NE((*bf16)->limits().numerics_id, exact);
  TempDir half;
  ASSERT_TRUE(WriteRandomModel(half.path(), config, 3, DType::kF16).ok());
  auto model = Model::Load(half.path());
  ASSERT_TRUE(model.ok());
  for (const WeightPrecision weights :
       {WeightPrecision::kAuto, WeightPrecision::kF16, WeightPrecision::kF32}) {
    auto backend = CreateCpuBackend(*model, {.num_slots = 1, .weights = weights, .threads = 1});
    ASSERT_TRUE(backend.ok());
    EXPECT_EQ((*backend)->limits().numerics_id, exact) << "an F16 file loses nothing";
  }
  std::vector<RawTensor> tensors = RandomTensors(config, 1, DType::kF32);
  for (RawTensor& tensor : tensors) {
    if (tensor.name != "transformer.layers.0.linear1.weight") continue;
    std::vector<float> values(tensor.bytes.size() / 4, 0.1f);
    values[7] = 70000;
    tensor = MakeTensor(tensor.name, tensor.shape, DType::kF32, values);
  }
  ASSERT_TRUE(WriteFile(half.File("model.safetensors"), WriteSafetensors(tensors)).ok());
  model = Model::Load(half.path());
  ASSERT_TRUE(model.ok());
  const auto status =
      CreateCpuBackend(*model, {.num_slots = 1, .weights = WeightPrecision::kF16}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("transformer.layers.0.linear1.weight"));
}

TEST_F(CpuBackendTest, MoreSessionsThanMemoryIsAnErrorThatNamesTheArithmetic) {
  ModelConfig config = TinyConfig();
  config.value_dim = config.key_dim = 512;
  Start(config);
  const auto status = CreateCpuBackend(model_, {.num_slots = 1 << 24, .threads = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* word : {"weights of", "16777216 slots of", "slots would fit"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
  EXPECT_EQ(GetErrorDetail(CreateCpuBackend(model_, {.num_slots = 0}).status()).field, "num_slots");
}

TEST_F(CpuBackendTest, SlotsThatAreNotGivenTakeHalfOfWhatIsLeft) {
  Start(TinyConfig());
  CpuBackendOptions options;
  options.num_slots = std::nullopt;
  options.threads = 1;
  auto backend = CreateCpuBackend(model_, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->limits().num_slots, 256);
  EXPECT_EQ((*backend)->limits().slots_choice, "auto: at most 256");
  // What others have reserved is not left.
  const auto slot = int64_t((*backend)->limits().bytes_per_slot);
  const int64_t left = 20 * slot;
  options.reserved_bytes =
      ReadHostMemory().total - int64_t((*backend)->limits().weight_bytes) - left;
  backend = CreateCpuBackend(model_, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->limits().num_slots, 10);
  EXPECT_EQ((*backend)->limits().max_rows, 10);
  EXPECT_THAT((*backend)->limits().slots_choice,
              HasSubstr(absl::StrCat("auto: half of the ", left, " bytes left of ")));
  // One slot is made even where it does not take half.
  options.reserved_bytes += 19 * slot;
  backend = CreateCpuBackend(model_, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->limits().num_slots, 1);
}

}  // namespace
}  // namespace rivulet::testing
