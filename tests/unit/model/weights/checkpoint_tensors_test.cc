// SPDX-License-Identifier: Apache-2.0
// Tensors of one file and of shards.
#include "model/weights/checkpoint_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::WriteFile;
using testing::WriteSafetensors;

// A file with one tensor `name` of these float32 values.
std::string FileOf(const std::string& name, const std::vector<float>& values) {
  const std::string data(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(float));
  return WriteSafetensors(absl::StrCat("{\"", name, "\":{\"dtype\":\"F32\",\"shape\":[",
                                       values.size(), "],\"data_offsets\":[0,", data.size(), "]}}"),
                          data);
}

class CheckpointTensorsTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(WriteFile(directory_.File(name), bytes).ok());
  }
  // Two shards and their index; `map` is that of the index.
  void WriteShards(const std::string& map = R"({"a":"m-1.safetensors","b":"m-2.safetensors"})") {
    Write("m-1.safetensors", FileOf("a", {1, 2, 3}));
    Write("m-2.safetensors", FileOf("b", {4, 5}));
    Write("model.safetensors.index.json",
          absl::StrCat("{\"metadata\":{\"total_size\":20},\"weight_map\":", map, "}"));
  }
  auto Open() const { return CheckpointTensors::Open(directory_.File(""), "DIR"); }
  void ExpectError(absl::StatusCode code, const std::string& what) const {
    const auto opened = Open();
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.status().code(), code) << opened.status();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(what));
  }

  TempDir directory_;
};

TEST_F(CheckpointTensorsTest, ShardsReadAsOneFile) {
  WriteShards();
  const auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT((*opened)->names(), ElementsAre("a", "b"));
  EXPECT_EQ((*opened)->Find("c"), nullptr);
  EXPECT_THAT((*opened)->Find("b")->shape, ElementsAre(2));
  std::vector<float> b(2), tail(2);
  ASSERT_TRUE((*opened)->Read("b", b).ok());
  ASSERT_TRUE((*opened)->ReadFrom("a", 1, tail).ok());
  EXPECT_THAT(b, ElementsAre(4, 5));
  EXPECT_THAT(tail, ElementsAre(2, 3));
}

TEST_F(CheckpointTensorsTest, TheHashOfShardsIsThatOfTheirDigests) {
  WriteShards();
  const std::string of_shards = *(*Open())->Sha256();
  EXPECT_EQ(of_shards.size(), 64u);
  Write("model.safetensors", FileOf("a", {1, 2, 3}));  // one file goes before shards
  const auto opened = Open();
  EXPECT_THAT((*opened)->names(), ElementsAre("a"));
  EXPECT_NE(*(*opened)->Sha256(), of_shards);
}

TEST_F(CheckpointTensorsTest, AnIndexThatDoesNotFitItsShardsIsRefused) {
  WriteShards(R"({"a":"m-1.safetensors"})");
  ASSERT_TRUE(Open().ok()) << "a shard that is not named is not read";
  WriteShards(R"({"a":"m-2.safetensors","b":"m-2.safetensors"})");
  ExpectError(absl::StatusCode::kDataLoss, "tensor \"a\" is not in \"m-2.safetensors\"");
  WriteShards(R"({"b":"m-2.safetensors","c":"m-2.safetensors"})");
  ExpectError(absl::StatusCode::kDataLoss, "tensor \"c\" is not in");
  WriteShards(R"({"a":"../m-1.safetensors"})");
  ExpectError(absl::StatusCode::kDataLoss, "allowed: a file of this directory");
  WriteShards(R"({"a":"m-1.bin"})");
  ExpectError(absl::StatusCode::kDataLoss, "allowed: a file of this directory");
  WriteShards("{}");
  ExpectError(absl::StatusCode::kDataLoss, "weight_map is missing or empty");
  WriteShards("[]");
  ExpectError(absl::StatusCode::kDataLoss, "weight_map is an array");
  WriteShards(R"({"a":"m-3.safetensors"})");
  ExpectError(absl::StatusCode::kNotFound, "DIR/m-3.safetensors");
}

TEST_F(CheckpointTensorsTest, ATensorThatTwoShardsHoldOrTheIndexLeavesOutIsRefused) {
  WriteShards();
  Write("m-2.safetensors", FileOf("a", {9}));
  ExpectError(absl::StatusCode::kDataLoss, "tensor \"a\" is in another shard too");
  Write("model.safetensors.index.json",
        R"({"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}})");
  Write("m-2.safetensors", FileOf("c", {9}));
  ExpectError(absl::StatusCode::kDataLoss, "tensor \"b\" is not in");
}

TEST_F(CheckpointTensorsTest, WithoutSafetensorsTheErrorSaysWhatToDo) {
  ExpectError(absl::StatusCode::kNotFound, "neither model.safetensors nor");
  Write("pytorch_model.bin", "x");
  ExpectError(absl::StatusCode::kNotFound, "save_pretrained(DIR, safe_serialization=True)");
}

}  // namespace
}  // namespace rivulet
