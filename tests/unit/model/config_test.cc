// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/random_model.h"
#include "tests/unit/model/config_texts.h"

namespace rivulet {
namespace {

using kernels::FeatureMapKind;
using testing::ConfigJson;
using testing::MakeFeatureMap;
using testing::TinyConfig;

TEST(ConfigTest, ReadsEveryFieldOfEveryKind) {
  std::vector<ModelConfig> configs = {TinyConfig()};
  for (const FeatureMapConfig& map :
       {MakeFeatureMap(FeatureMapKind::kRandomFourier, 6, 0.5f),
        MakeFeatureMap(FeatureMapKind::kSmoothedRandomFourier, 8, 0.25f, 0),
        MakeFeatureMap(FeatureMapKind::kFavor, 2, 2),
        MakeFeatureMap(FeatureMapKind::kGeneralizedRandomRelu, 3, 1),
        MakeFeatureMap(FeatureMapKind::kRfa, 5)}) {
    ModelConfig config = TinyConfig();
    config.encoder().feature_map = map;
    config.encoder().gate = Gate::kRfa;
    config.encoder().normalizer = Normalizer::kClampMin;
    config.encoder().normalizer_value = 0.125f;
    config.encoder().activation = Activation::kRelu;
    config.encoder().final_norm = false;
    config.bos_token_id.reset();
    config.eos_token_id = 3;
    config.encoder().position = PositionType::kSinusoidal;
    config.encoder().combine = PositionCombine::kAdd;
    config.max_positions = 77;
    config.output = {OutputType::kMixtureOfLogistics, 2, 9, MixtureScale::kElu};
    config.content = {ContentType::kImage, 3, 5, 2, ""};
    config.norm_eps = 0.5f;
    configs.push_back(config);
  }
  for (const ModelConfig& config : configs) {
    const auto parsed = ParseModelConfig(ConfigJson(config));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(ConfigJson(*parsed), ConfigJson(config));
    EXPECT_EQ(parsed->encoder().feature_map.columns, config.encoder().feature_map.columns);
    EXPECT_EQ(parsed->encoder().feature_map.n_dims, config.encoder().feature_map.n_dims);
    EXPECT_EQ(parsed->key_features(), config.key_features());
  }
}

TEST(ConfigTest, AcceptsWhatTheFormatAllowsAtItsEdges) {
  for (const std::string& text :
       {With(Tiny(), R"("eos_token_id":null)", R"("eos_token_id":0)"),  // eos == bos
        With(Tiny(), R"("vocab_size":11)", R"("vocab_size":2147483647)"),
        With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":1)"),  // an integer
        With(TinyMixture(), R"("num_levels":10)", R"("num_levels":11)"), TinyText("abcdefghijk"),
        TinyText("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80 defghij"), TinyImage(46340, 46340, 1),
        absl::StrCat(" \n\t", Tiny(), "\r\n")}) {
    EXPECT_TRUE(ParseModelConfig(text).ok()) << text << ParseModelConfig(text).status();
  }
}

TEST(ConfigTest, SmoothedRandomFourierRoundsItsColumnsDown) {
  const auto columns = [](int n_dims) {
    const auto config = ParseModelConfig(
        TinyWithMap(MakeFeatureMap(FeatureMapKind::kSmoothedRandomFourier, n_dims, 1, 1)));
    return config->encoder().feature_map.columns;
  };
  EXPECT_EQ(columns(3), 1);
  EXPECT_EQ(columns(4), 1);
  EXPECT_EQ(columns(15), 7);
  EXPECT_EQ(columns(16), 7);
}

TEST(ConfigTest, ExpectedTensorsHaveTheShapesOfTheFormat) {
  ModelConfig config = TinyConfig();
  config.num_layers = 1;
  config.value_dim = 3;
  config.encoder().position = PositionType::kLearned;
  config.encoder().combine = PositionCombine::kConcat;
  config.max_positions = 7;
  config.encoder().feature_map = MakeFeatureMap(FeatureMapKind::kRfa, 5);
  config.encoder().gate = Gate::kRfa;
  config.output = {OutputType::kMixtureOfLogistics, 2, 9, MixtureScale::kExp};
  std::vector<std::pair<std::string, std::vector<int64_t>>> expected = {
      {"embedding.weight", {11, 4}},    {"position.weight", {7, 4}},
      {"transformer.norm.weight", {8}}, {"transformer.norm.bias", {8}},
      {"predictor.weight", {6, 8}},     {"predictor.bias", {6}}};
  const std::string layer = "transformer.layers.0.";
  const std::pair<std::string, std::vector<int64_t>> of_layer[] = {
      {"attention.query_projection.weight", {8, 8}},
      {"attention.query_projection.bias", {8}},
      {"attention.key_projection.weight", {8, 8}},
      {"attention.key_projection.bias", {8}},
      {"attention.value_projection.weight", {6, 8}},
      {"attention.value_projection.bias", {6}},
      {"attention.out_projection.weight", {8, 6}},
      {"attention.out_projection.bias", {8}},
      {"attention.omega", {2, 4, 5}},
      {"attention.sigma", {2, 4}},
      {"attention.gate_projection.weight", {2, 8}},
      {"attention.gate_projection.bias", {2}},
      {"linear1.weight", {12, 8}},
      {"linear1.bias", {12}},
      {"linear2.weight", {8, 12}},
      {"linear2.bias", {8}},
      {"norm1.weight", {8}},
      {"norm1.bias", {8}},
      {"norm2.weight", {8}},
      {"norm2.bias", {8}}};
  for (const auto& tensor : of_layer) expected.emplace_back(layer + tensor.first, tensor.second);
  std::vector<std::pair<std::string, std::vector<int64_t>>> actual;
  for (const TensorSpec& spec : ExpectedTensors(config)) actual.emplace_back(spec.name, spec.shape);
  EXPECT_THAT(actual, ::testing::UnorderedElementsAreArray(expected));

  config.encoder().feature_map = MakeFeatureMap(FeatureMapKind::kFavor, 6);
  std::vector<int64_t> omega;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (spec.name == layer + "attention.inner_attention.feature_map.omega") omega = spec.shape;
    EXPECT_NE(spec.name, layer + "attention.sigma");
  }
  EXPECT_EQ(omega, (std::vector<int64_t>{4, 3}));
}

TEST(ConfigTest, SoftmaxAttentionKeepsKeysAndValuesWithinAContext) {
  const ModelConfig full = *ParseModelConfig(TinySoftmax(0));
  EXPECT_STREQ(full.kind(), "softmax");
  EXPECT_EQ(full.key_features(), 0);
  EXPECT_STREQ(full.feature_map_name(), "");
  EXPECT_EQ(full.model_max_tokens(), std::nullopt);
  EXPECT_EQ(full.max_tokens(), kDefaultContext) << "with a bos";
  EXPECT_EQ(full.WithContext(100).max_tokens(), 100);
  EXPECT_EQ(full.WithContext(100).bytes_per_slot(), full.state().size().At(100));
  const ModelConfig window = *ParseModelConfig(TinySoftmax(5));
  EXPECT_EQ(window.max_tokens(), std::nullopt) << "a window adds no limit";
  EXPECT_EQ(window.state().size().per_block, 0u);
  EXPECT_NE(window.state_identity().text, ParseModelConfig(TinySoftmax(6))->state_identity().text);
  for (const TensorSpec& spec : ExpectedTensors(full)) {
    EXPECT_EQ(spec.name.find("omega"), std::string::npos) << spec.name;
  }
}

}  // namespace
}  // namespace rivulet
