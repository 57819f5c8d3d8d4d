// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using kernels::FeatureMapKind;
using testing::MakeFeatureMap;
using testing::TempDir;
using testing::TinyConfig;
using testing::WriteFile;
using testing::WriteRandomModel;

std::vector<std::string> DirectoriesIn(const std::string& parent) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(parent)) {
    if (entry.is_directory()) out.push_back(entry.path().string());
  }
  return out;
}

TEST(ModelTest, ACheckpointsOwnResponseTemplateComesBeforeTheBuiltInOne) {
  const TempDir dir;
  std::filesystem::copy(SourcePath("model/zoo/shakespeare-chat"), dir.path());
  ASSERT_TRUE(WriteFile(dir.File("tokenizer_config.json"), "{}").ok());
  const auto model = Model::Open(dir.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->text().response_template.name, "qwen3.5");
  ASSERT_TRUE(WriteFile(dir.File("tokenizer_config.json"), R"({"response_template": {}})").ok());
  EXPECT_EQ((*Model::Open(dir.path()))->text().response_template.name, "");
  EXPECT_EQ((*Model::Open(dir.path()))->text().response_template.json, "{}");
}

TEST(ModelTest, LoadsEveryModelOfTheRepository) {
  const auto zoo = DirectoriesIn(SourcePath("model/zoo"));
  const auto conformance = DirectoriesIn(SourcePath("tests/conformance/models"));
  EXPECT_EQ(zoo.size(), 3u);
  EXPECT_GE(conformance.size(), 9u);
  for (const auto& list : {zoo, conformance}) {
    for (const std::string& directory : list) {
      const auto model = Model::Load(directory);
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ((*model)->weights_sha256().size(), 64u);
      EXPECT_EQ((*model)->tokenizer() != nullptr,
                (*model)->config().content.type == ContentType::kText);
      // Those of a checkpoint of the family were read when it was loaded.
      if (!std::holds_alternative<EncoderConfig>((*model)->config().network)) continue;
      for (const TensorSpec& spec : ExpectedTensors((*model)->config())) {
        int64_t count = 1;
        for (const int64_t extent : spec.shape) count *= extent;
        std::vector<float> values(static_cast<size_t>(count),
                                  std::numeric_limits<float>::quiet_NaN());
        ASSERT_TRUE((*model)->tensors().Read(spec.name, values).ok()) << spec.name;
        const auto is_nan = [](float value) { return value != value; };
        EXPECT_EQ(std::count_if(values.begin(), values.end(), is_nan), 0) << spec.name;
      }
    }
  }
}

TEST(ModelTest, LoadsRandomModelsOfEveryKind) {
  const TempDir dir;
  std::vector<ModelConfig> configs;
  for (const FeatureMapConfig& map :
       {MakeFeatureMap(FeatureMapKind::kElu), MakeFeatureMap(FeatureMapKind::kRandomFourier, 6),
        MakeFeatureMap(FeatureMapKind::kSmoothedRandomFourier, 8, 1, 0.5f),
        MakeFeatureMap(FeatureMapKind::kFavor, 2), MakeFeatureMap(FeatureMapKind::kRfa, 3),
        MakeFeatureMap(FeatureMapKind::kGeneralizedRandomRelu, 5)}) {
    for (const Gate gate : {Gate::kNone, Gate::kRfa}) {
      for (const PositionType position :
           {PositionType::kNone, PositionType::kLearned, PositionType::kSinusoidal}) {
        ModelConfig config = TinyConfig();
        config.num_heads = 3;
        config.key_dim = 5;
        config.value_dim = 7;
        config.hidden_size = 10;
        config.encoder().feature_map = map;
        config.encoder().gate = gate;
        config.encoder().position = position;
        config.encoder().combine =
            gate == Gate::kRfa ? PositionCombine::kConcat : PositionCombine::kAdd;
        config.max_positions = 13;
        configs.push_back(config);
      }
    }
  }
  configs.front().output = {OutputType::kMixtureOfLogistics, 2, 10, MixtureScale::kElu};
  configs.front().content = {ContentType::kImage, 3, 4, 1, ""};
  configs.back().content = {ContentType::kText, 0, 0, 0, "\n\"\\\x01 abc\xC3\xA4\xE2\x82\xAC."};
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  for (size_t i = 0; i < configs.size(); ++i) {
    const std::string path = dir.File(absl::StrCat("m", i));
    ASSERT_TRUE(WriteRandomModel(path, configs[i], i, dtypes[i % 3]).ok());
    const auto model = Model::Load(path);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(testing::ConfigJson((*model)->config()), testing::ConfigJson(configs[i]));
  }
}

TEST(ModelTest, RandomModelsAreAFunctionOfTheSeed) {
  const TempDir dir;
  for (const int seed : {1, 2, 1}) {
    static int count = 0;
    ASSERT_TRUE(
        WriteRandomModel(dir.File(absl::StrCat(count++)), TinyConfig(), static_cast<uint64_t>(seed))
            .ok());
  }
  const auto sha = [&dir](const char* name) {
    return (*Model::Load(dir.File(name)))->weights_sha256();
  };
  EXPECT_EQ(sha("0"), sha("2"));
  EXPECT_NE(sha("0"), sha("1"));
}

void ExpectLoadError(const std::string& directory, absl::StatusCode code, const std::string& said) {
  const absl::Status status = Model::Load(directory).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), said)) << status << " lacks " << said;
  for (const char c : status.message()) EXPECT_GE(static_cast<unsigned char>(c), ' ') << status;
}

TEST(ModelTest, NamesThePathThatIsMissing) {
  const TempDir dir;
  ExpectLoadError(dir.File("absent"), absl::StatusCode::kNotFound, dir.File("absent"));
  ExpectLoadError("", absl::StatusCode::kNotFound, "no such model directory");
  ExpectLoadError(dir.path(), absl::StatusCode::kNotFound, dir.File("config.json"));
  ASSERT_TRUE(WriteRandomModel(dir.path(), TinyConfig(), 1).ok());
  std::filesystem::remove(dir.File("model.safetensors"));
  ExpectLoadError(dir.path(), absl::StatusCode::kNotFound, dir.File("model.safetensors"));
  ExpectLoadError(dir.File("config.json"), absl::StatusCode::kNotFound, "not a directory");
  ExpectLoadError(dir.File("a\nb"), absl::StatusCode::kNotFound, "a\\nb");
}

TEST(ModelTest, ARepositoryIsNoDirectory) {
  constexpr char kHint[] = "hf download";
  ExpectLoadError("no-such-owner/rwkv7", absl::StatusCode::kNotFound,
                  "hf download no-such-owner/rwkv7 --local-dir DIR");
  for (const char* path : {"no-such-model", "./no-such-model", "~/no-such-model", "/no-such-model",
                           "no-such-owner/", "a/no-such/model", "a/no\nmodel"}) {
    EXPECT_FALSE(absl::StrContains(Model::Load(path).status().message(), kHint)) << path;
  }
}

TEST(ModelTest, TakesNoConfigurationThatIsNoRegularFileOrTooLarge) {
  const TempDir dir;
  ASSERT_EQ(mkfifo(dir.File("config.json").c_str(), 0600), 0);
  ExpectLoadError(dir.path(), absl::StatusCode::kInvalidArgument, "config.json: must be a regular");
  std::filesystem::remove(dir.File("config.json"));
  std::filesystem::create_directory(dir.File("config.json"));
  ExpectLoadError(dir.path(), absl::StatusCode::kInvalidArgument, "it is a directory");
  std::filesystem::remove(dir.File("config.json"));
  ASSERT_TRUE(WriteRandomModel(dir.path(), TinyConfig(), 1).ok());
  const std::string text = testing::ConfigJson(TinyConfig());
  const size_t limit = 1 << 20;
  ASSERT_TRUE(
      WriteFile(dir.File("config.json"), text + std::string(limit - text.size(), ' ')).ok());
  EXPECT_TRUE(Model::Load(dir.path()).ok());
  ASSERT_TRUE(
      WriteFile(dir.File("config.json"), text + std::string(limit + 1 - text.size(), ' ')).ok());
  ExpectLoadError(dir.path(), absl::StatusCode::kInvalidArgument, "1048576 bytes");
}

TEST(ModelTest, ReadsNoWeightBeforeTheConfigurationIsValid) {
  const TempDir dir;
  ASSERT_TRUE(WriteFile(dir.File("config.json"), "{}").ok());
  ASSERT_TRUE(WriteFile(dir.File("model.safetensors"), "junk").ok());
  ExpectLoadError(dir.path(), absl::StatusCode::kInvalidArgument,
                  dir.File("config.json") + ": format is missing");
}

TEST(ModelTest, FindsANonFiniteWeightWhileLoading) {
  const TempDir dir;
  ASSERT_TRUE(WriteRandomModel(dir.path(), TinyConfig(), 1).ok());
  auto tensors = testing::RandomTensors(TinyConfig(), 1, DType::kF32);
  const std::vector<float> bad(8, std::numeric_limits<float>::infinity());
  for (auto& tensor : tensors) {
    if (tensor.name == "transformer.norm.bias") {
      tensor = testing::MakeTensor(tensor.name, {8}, DType::kF32, bad);
    }
  }
  ASSERT_TRUE(WriteFile(dir.File("model.safetensors"), testing::WriteSafetensors(tensors)).ok());
  ExpectLoadError(dir.path(), absl::StatusCode::kDataLoss,
                  dir.File("model.safetensors") + ": tensor \"transformer.norm.bias\"");
}

TEST(ModelTest, RejectsEveryCutOfAWeightsFileThatIsTooShort) {
  const TempDir dir;
  ModelConfig config = TinyConfig();
  config.num_layers = 1;
  ASSERT_TRUE(WriteRandomModel(dir.path(), config, 1).ok());
  const std::string bytes =
      testing::WriteSafetensors(testing::RandomTensors(config, 1, DType::kF32));
  for (size_t size = 0; size < bytes.size(); size += 29) {
    ASSERT_TRUE(WriteFile(dir.File("model.safetensors"), bytes.substr(0, size)).ok());
    ExpectLoadError(dir.path(), absl::StatusCode::kDataLoss, dir.File("model.safetensors"));
  }
}

}  // namespace
}  // namespace rivulet
