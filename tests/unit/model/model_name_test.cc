// SPDX-License-Identifier: Apache-2.0
#include "model/model_name.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/model.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using testing::TempDir;

// The name of a model of the family in `directory`, whose config.json has `path` as _name_or_path
// where that is not "".
std::string NameIn(const std::string& directory, const std::string& path = "") {
  namespace fs = std::filesystem;
  const TempDir dir;
  const fs::path at = fs::path(dir.path() + "/" + directory).lexically_normal();
  fs::create_directories(at);
  fs::copy(SourcePath("tests/conformance/family/gated-deltanet"), at);
  if (!path.empty()) {
    const std::string file = (at / "config.json").string();
    std::string text{std::istreambuf_iterator<char>(std::ifstream(file).rdbuf()), {}};
    text.replace(text.find('{'), 1, absl::StrCat("{\"_name_or_path\": \"", path, "\","));
    std::ofstream(file) << text;
  }
  const auto model = Model::Open(dir.path() + "/" + directory);
  return model.ok() ? (*model)->config().name : std::string(model.status().message());
}

TEST(ModelNameTest, ADirectoryNamesItsModel) {
  EXPECT_EQ(NameIn("RWKV7-0.4B-World/"), "rwkv7-0.4b-world");
  EXPECT_EQ(NameIn("models//my model", "owner/other"), "my-model");
  EXPECT_EQ(NameIn("hub/models--fla-hub--GLA-340M/snapshots/0a1b2c"), "gla-340m");
  EXPECT_EQ(NameIn(std::string(80, 'a')), std::string(64, 'a'));
  EXPECT_EQ(NameIn("mine/."), "mine");
}

// Where containers mount a model, and other places that say nothing of it.
TEST(ModelNameTest, ADirectoryThatSaysNothingLeavesItToTheConfiguration) {
  const std::string hash(40, 'c');
  for (const std::string& place :
       {std::string("models"), std::string("Model/"), std::string("data"), std::string("..."),
        "x/" + hash, std::string("checkpoint"), std::string("weights")}) {
    SCOPED_TRACE(place);
    EXPECT_EQ(NameIn(place, "fla-hub/GatedDeltaNet-1.3B"), "gateddeltanet-1.3b");
    EXPECT_EQ(NameIn(place, "/h/hub/models--a--Tiny/snapshots/" + hash), "tiny");
    // It says as little, or nothing at all: the kind of the model remains.
    EXPECT_EQ(NameIn(place, "./"), "gated_deltanet");
    EXPECT_EQ(NameIn(place, "/models"), "gated_deltanet");
    EXPECT_EQ(NameIn(place), "gated_deltanet");
  }
}

TEST(ModelNameTest, TheChoiceSaysWhereTheNameIsFrom) {
  const auto words = [](const std::string& directory, const std::string& config) {
    return ChooseModelName(directory, *ParseStrictJson(config, JsonLimits{}));
  };
  const std::string of_path = R"({"model_type": "gla", "_name_or_path": "a/b"})";
  EXPECT_EQ(words("/x/y", of_path).source, "the directory");
  EXPECT_EQ(words("/models", of_path).name, "b");
  EXPECT_EQ(words("/models", of_path).source, "_name_or_path of config.json");
  EXPECT_EQ(words("/", R"({"model_type": "gla", "_name_or_path": 7})").name, "gla");
  EXPECT_EQ(words("/", R"({"model_type": "gla"})").source, "model_type of config.json");
}

}  // namespace
}  // namespace rivulet
