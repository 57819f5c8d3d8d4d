// SPDX-License-Identifier: Apache-2.0
// Directories with weights of 8 and 4 bits.
#include "model/loading/quantize_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/cpu/cpu_backend.h"
#include "model/loading/packed_weights.h"
#include "model/model.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;

const auto kNoProgress = [](int64_t, int64_t) {};

// Outputs after each of some tokens.
std::vector<std::vector<float>> Outputs(const std::string& directory, const WeightChoice& weights) {
  const auto model = Model::Load(directory);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  const auto backend = CreateCpuBackend(*model, {.num_slots = 1, .weights = weights, .threads = 1});
  EXPECT_TRUE(backend.ok()) << backend.status();
  if (!backend.ok()) return {};
  std::vector<int32_t> tokens;
  for (int i = 0; i < 20; ++i) tokens.push_back((i * 7 + 1) % (*model)->config().vocab_size);
  return ScoreThroughBackend(**backend, (*model)->config(), 1, tokens, 100).outputs;
}

// The own format, also with widths that are multiples of 256, and a kind of which a tensor becomes
// two.
class QuantizeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantizeTest, TheDirectoryHasTheBitsOfTheChoiceOnTheOriginal) {
  const std::string from = SourcePath(GetParam());
  for (const char* text : {"int8", "int4", "int4,head=f16", "auto,head=int8"}) {
    const WeightChoice choice = *ParseWeightChoice(text);
    const TempDir out;
    int64_t last = 0;
    const auto made = QuantizeDirectory(from, out.path(), choice, [&](int64_t done, int64_t all) {
      EXPECT_GT(done, last);
      EXPECT_LE(last = done, all);
    });
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_LT(made->bytes_after, made->bytes_before);
    EXPECT_EQ(made->bytes_after, last);
    EXPECT_GT(made->rounded, 0);
    EXPECT_TRUE(Outputs(out.path(), {}) == Outputs(from, choice)) << text;
    for (const char* left : {"golden.json", "model.safetensors.xz", "training.log"}) {
      EXPECT_FALSE(std::filesystem::exists(out.File(left))) << left;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, QuantizeTest,
                         ::testing::Values("model/zoo/shakespeare-rfa", "model/zoo/mnist-linear",
                                           "tests/conformance/family/mamba2"),
                         [](const auto& param) {
                           std::string name = param.param;
                           name = name.substr(name.rfind('/') + 1);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(QuantizeKeepsTest, WidthsThatAreNoMultipleOf32AndWhatMakesDecays) {
  const TempDir out;
  ASSERT_TRUE(QuantizeDirectory(SourcePath("tests/conformance/family/gla"), out.path(),
                                WeightPrecision::kInt8, kNoProgress)
                  .ok());
  const auto model = Model::Load(out.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto type_of = [&](const char* name) {
    return (*model)->tensors().Find(absl::StrCat("model.layers.0.", name, ".weight"))->dtype;
  };
  EXPECT_EQ(type_of("attn.q_proj"), DType::kQ8_0);
  EXPECT_EQ(type_of("mlp.gate_proj"), DType::kQ8_0);
  EXPECT_EQ(type_of("mlp.down_proj"), DType::kF32);  // 12 wide
  EXPECT_EQ(type_of("attn.gk_proj.0"), DType::kF32);
  EXPECT_EQ(type_of("attn_norm"), DType::kF32);
}

TEST(QuantizeKeepsTest, ATensorOfAllExpertsStaysOne) {
  const std::string from = SourcePath("tests/conformance/family/granite-moe");
  const TempDir out;
  ASSERT_TRUE(QuantizeDirectory(from, out.path(), WeightPrecision::kInt8, kNoProgress).ok());
  const auto original = Model::Load(from), model = Model::Load(out.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string experts = "model.layers.0.block_sparse_moe.";
  const std::string in = experts + "input_linear.weight", back = experts + "output_linear.weight";
  const auto values = [](const Model& of, const std::string& name) {
    size_t count = 1;
    for (const int64_t extent : of.tensors().Find(name)->shape) count *= size_t(extent);
    std::vector<float> floats(count);
    EXPECT_TRUE(of.tensors().Read(name, floats).ok());
    return floats;
  };
  EXPECT_EQ((*model)->tensors().Find(in)->dtype, DType::kQ8_0);
  const std::vector<float> rounded = values(**model, in), exact = values(**original, in);
  ASSERT_EQ(rounded.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(rounded[i], exact[i], 0.01) << i;
  EXPECT_EQ(values(**model, back), values(**original, back)) << "8 wide: kept";
  EXPECT_EQ(Outputs(out.path(), {}).size(), 19u) << "it is served";
}

TEST(QuantizeTypesTest, Int4HasTheFormOfQ4KWhereTheWidthAllowsItAndKeepsBlocksOfFourBits) {
  const TempDir out;
  ASSERT_TRUE(QuantizeDirectory(SourcePath("model/zoo/shakespeare-rfa"), out.path(),
                                WeightPrecision::kInt4, kNoProgress)
                  .ok());
  const auto model = Model::Load(out.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto type_of = [&](const char* name) {
    return (*model)->tensors().Find(absl::StrCat("transformer.layers.0.", name, ".weight"))->dtype;
  };
  EXPECT_EQ(type_of("linear1"), DType::kQ4_1);  // 384 wide
  EXPECT_EQ(type_of("linear2"), DType::kQ4_K);  // 1536 wide

  const auto blocks = Model::Load(SourcePath("tests/conformance/gguf/mamba2-iq4/model.gguf"));
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  const auto plan = PackedWeights::Plan(**blocks, WeightPrecision::kInt4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<kernels::WeightType> types;
  for (const PackedRows& matrix : plan->matrices) {
    if (absl::EndsWith(matrix.rows.name, "out_proj.weight")) types.push_back(matrix.type);
  }
  using enum kernels::WeightType;
  EXPECT_THAT(types, ::testing::ElementsAre(kIQ4XS, kIQ4NL, kQ4K));
}

TEST(QuantizeErrorsTest, WhatCannotBeDoneIsSaidBeforeAnythingIsWritten) {
  const std::string from = SourcePath("tests/conformance/family/gla");
  const TempDir full;
  ASSERT_TRUE(WriteFile(full.File("x"), "x").ok());
  struct {
    std::string from, out;
    WeightPrecision weights;
    const char *field, *said;
  } const cases[] = {
      {from, full.path(), WeightPrecision::kInt8, "out", "is not empty"},
      {from + "/config.json", full.File("new"), WeightPrecision::kInt8, "model",
       "no model directory"},
      {from, full.File("new"), WeightPrecision::kF16, "weights", "allowed here: int8 or int4"},
  };
  for (const auto& c : cases) {
    const absl::Status status = QuantizeDirectory(c.from, c.out, c.weights, kNoProgress).status();
    EXPECT_EQ(GetErrorDetail(status).field, c.field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.said));
    EXPECT_FALSE(std::filesystem::exists(full.File("new")));
  }
}

TEST(QuantizeErrorsTest, AWeightThatIsTooLargeIsNamedAndLeavesNoWeights) {
  ModelConfig config = TinyConfig();
  config.hidden_size = 64;
  std::vector<RawTensor> tensors = RandomTensors(config, 1, DType::kF32);
  for (RawTensor& tensor : tensors) {
    if (tensor.name != "transformer.layers.0.linear1.weight") continue;
    std::vector<float> values(tensor.bytes.size() / 4, 0.1f);
    values[7] = 1e7f;
    tensor = MakeTensor(tensor.name, tensor.shape, DType::kF32, values);
  }
  const TempDir from, out;
  ASSERT_TRUE(WriteRandomModel(from.path(), config, 1).ok());
  ASSERT_TRUE(WriteFile(from.File("model.safetensors"), WriteSafetensors(tensors)).ok());
  const absl::Status status =
      QuantizeDirectory(from.path(), out.path(), WeightPrecision::kInt8, kNoProgress).status();
  EXPECT_EQ(GetErrorDetail(status).reason, "WEIGHT_TOO_LARGE") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers.0.linear1.weight"));
  EXPECT_TRUE(std::filesystem::is_empty(out.path())) << "so that a second try finds it empty";
}

TEST(QuantizeErrorsTest, ADirectoryOfFewBitsIsNotRoundedAgainAndALinkToNothingIsLeftOut) {
  const std::string original = SourcePath("tests/conformance/family/mamba2");
  const TempDir from, out, again;
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(original + "/" + name, from.File(name));
  }
  std::filesystem::create_symlink("nowhere", from.File("tokenizer.model"));
  const auto made = QuantizeDirectory(from.path(), out.path(), WeightPrecision::kInt8, kNoProgress);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE(std::filesystem::exists(out.File("tokenizer.model")));
  const absl::Status status =
      QuantizeDirectory(out.path(), again.path(), WeightPrecision::kInt4, kNoProgress).status();
  EXPECT_EQ(GetErrorDetail(status).field, "model") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("few bits already"));
}

// Integers that are kept are multiplied with rounded activations, decoded ones are not.
TEST(QuantizedNumericsTest, EachChoiceForADirectoryOfFewBitsHasAnIdOfItsOwn) {
  const TempDir out;
  ASSERT_TRUE(QuantizeDirectory(SourcePath("tests/conformance/family/mamba2"), out.path(),
                                WeightPrecision::kInt8, kNoProgress)
                  .ok());
  const auto model = Model::Load(out.path());
  ASSERT_TRUE(model.ok()) << model.status();
  std::set<std::string> ids;
  const char* const choices[] = {"auto", "f32",           "f16",           "int8",
                                 "int4", "auto,head=f32", "f32,head=auto", "int8,head=f32"};
  for (const char* choice : choices) {
    const auto backend = CreateCpuBackend(
        *model, {.num_slots = 1, .weights = *ParseWeightChoice(choice), .threads = 1});
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_TRUE(ids.insert((*backend)->limits().numerics_id).second)
        << choice << ": " << (*backend)->limits().numerics_id;
  }
}

}  // namespace
}  // namespace rivulet::testing
