// SPDX-License-Identifier: Apache-2.0
#include "model/weights/foreign_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/model.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::WriteFile;
using testing::WriteSafetensors;

using Names = std::vector<std::string>;

struct Case {
  const char* family;
  const char* library;
  const char* tensor;  // that the message names
  Names names;         // of one layer, as the library writes them
  bool served = false;
};

// Projections that several families share.
Names WithProjections(const std::string& prefix, Names names) {
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}) {
    names.push_back(prefix + name);
  }
  names.push_back("model.embeddings.weight");
  names.push_back("lm_head.weight");
  return names;
}

std::vector<Case> Cases() {
  const std::string fla = "model.layers.7.attn.";
  const std::string mixer = "backbone.layers.11.mixer.";
  return {
      {"GLA", "flash-linear-attention", "model.layers.7.attn.gk_proj.0.weight",
       WithProjections(fla, {fla + "g_norm.weight", fla + "g_proj.weight", fla + "gk_proj.0.weight",
                             fla + "gk_proj.1.weight", fla + "gk_proj.1.bias"}),
       true},
      {"RetNet", "flash-linear-attention", "model.layers.7.attn.g_norm.weight",
       WithProjections(fla, {fla + "g_norm.weight", fla + "g_proj.weight"}), true},
      {"DeltaNet", "flash-linear-attention", "model.layers.7.attn.b_proj.weight",
       WithProjections(fla, {fla + "b_proj.weight", fla + "o_norm.weight"}), true},
      {"GatedDeltaNet", "flash-linear-attention", "model.layers.7.attn.a_proj.weight",
       WithProjections(fla, {fla + "A_log", fla + "a_proj.weight", fla + "b_proj.weight",
                             fla + "dt_bias", fla + "g_proj.weight", fla + "o_norm.weight"}),
       true},
      {"KDA", "flash-linear-attention", "model.layers.7.attn.f_proj.0.weight",
       WithProjections(fla, {fla + "A_log", fla + "b_proj.weight", fla + "f_proj.0.weight",
                             fla + "f_proj.1.weight", fla + "g_proj.0.weight"}),
       true},
      {"HGRN2",
       "flash-linear-attention",
       "model.layers.7.attn.f_proj.weight",
       {fla + "f_proj.weight", fla + "g_norm.weight", fla + "i_proj.weight", fla + "q_proj.weight"},
       true},
      {"RWKV-7",
       "flash-linear-attention",
       "model.layers.7.attn.r_k",
       {fla + "r_k", fla + "x_r", fla + "k_proj.weight"},
       true},
      {"RWKV-7", "RWKV-LM", "blocks.3.att.r_k", {"blocks.3.att.r_k", "blocks.3.att.x_r"}},
      {"RWKV", "RWKV-LM", "blocks.3.att.time_decay", {"blocks.3.att.time_decay"}},
      {"RWKV",
       "transformers",
       "rwkv.blocks.0.attention.time_decay",
       {"rwkv.blocks.0.attention.time_decay", "rwkv.embeddings.weight"}},
      {"Mamba-2",
       "transformers",
       "backbone.layers.11.mixer.A_log",
       {mixer + "A_log", mixer + "D", mixer + "dt_bias", mixer + "in_proj.weight"},
       true},
      {"MoLFormer",
       "transformers",
       "molformer.encoder.layer.0.attention.self.query.weight",
       {"molformer.encoder.layer.0.attention.self.query.weight"},
       true},
      {"Mamba",
       "transformers",
       "backbone.layers.11.mixer.A_log",
       {mixer + "A_log", mixer + "D", mixer + "dt_proj.bias", mixer + "x_proj.weight"}},
      {"GatedDeltaNet", "transformers", "model.layers.0.linear_attn.A_log",
       WithProjections("model.layers.3.self_attn.", {"model.layers.0.linear_attn.A_log"})},
      {"softmax transformer", "transformers", "model.layers.3.self_attn.q_proj.weight",
       WithProjections("model.layers.3.self_attn.", {})},
  };
}

// The header of a file that holds one float under each name.
std::string File(const Names& names) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&header, ",\"", names[i], "\":{\"dtype\":\"F32\",\"shape\":[1],",
                    "\"data_offsets\":[", 4 * i, ",", 4 * i + 4, "]}");
  }
  return WriteSafetensors(header + "}", std::string(4 * names.size(), '\0'));
}

void ExpectRefused(const TempDir& dir, const Case& test) {
  const absl::Status status = Model::Load(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("this looks like a ", test.family, " checkpoint of ",
                                           test.library)),
                    HasSubstr(test.served ? "it needs the config.json" : "is not supported"),
                    HasSubstr(test.tensor), HasSubstr(dir.path())));
  EXPECT_EQ(GetErrorDetail(status).reason, "FOREIGN_CHECKPOINT");
}

TEST(ForeignCheckpointTest, IsRecognisedByItsTensors) {
  for (const Case& test : Cases()) {
    SCOPED_TRACE(absl::StrCat(test.family, " of ", test.library));
    const auto found = RecognizeCheckpoint(test.names);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->family, test.family);
    EXPECT_EQ(found->library, test.library);
    EXPECT_EQ(found->tensor, test.tensor);
    EXPECT_EQ(found->served, test.served);
  }
}

TEST(ForeignCheckpointTest, AModelDirectoryOfItSaysWhatItIs) {
  for (const Case& test : Cases()) {
    SCOPED_TRACE(absl::StrCat(test.family, " of ", test.library));
    const TempDir dir;
    ASSERT_TRUE(WriteFile(dir.File("model.safetensors"), File(test.names)).ok());
    ExpectRefused(dir, test);  // without a configuration
    ASSERT_TRUE(WriteFile(dir.File("config.json"), R"({"vocab_size": 3})").ok());
    ExpectRefused(dir, test);
  }
}

TEST(ForeignCheckpointTest, TheIndexOfSeveralFilesWillDo) {
  const TempDir dir;
  const Case test = Cases().front();
  std::string map;
  for (const std::string& name : test.names) {
    absl::StrAppend(&map, map.empty() ? "" : ",", "\"", name, "\":\"model-00001-of-00002\"");
  }
  const std::string index =
      absl::StrCat(R"({"metadata":{"total_size":4},"weight_map":{)", map, "}}");
  ASSERT_TRUE(WriteFile(dir.File("model.safetensors.index.json"), index).ok());
  ExpectRefused(dir, test);
}

TEST(ForeignCheckpointTest, OursAndUnknownOnesKeepTheirErrors) {
  EXPECT_FALSE(RecognizeCheckpoint(Names{}).has_value());
  EXPECT_FALSE(RecognizeCheckpoint(Names{"model.layers.0.attn.q_proj.weight"}).has_value());
  Names ours;
  for (const TensorSpec& spec : ExpectedTensors(testing::TinyConfig())) ours.push_back(spec.name);
  EXPECT_FALSE(RecognizeCheckpoint(ours).has_value());
  const TempDir dir;
  ASSERT_TRUE(WriteFile(dir.File("model.safetensors"), File({"a", "b"})).ok());
  EXPECT_THAT(std::string(Model::Load(dir.path()).status().message()), HasSubstr("config.json"));
  ASSERT_TRUE(WriteFile(dir.File("model.safetensors"), "none").ok());
  EXPECT_THAT(std::string(Model::Load(dir.path()).status().message()), HasSubstr("config.json"));
}

}  // namespace
}  // namespace rivulet
