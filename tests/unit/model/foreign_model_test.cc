// SPDX-License-Identifier: Apache-2.0
// What --model says of files and directories of other programs. All commands load models by Model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/model.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;
using testing::WriteFile;
using testing::WriteSafetensors;

const std::string kZip(
    "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl", 46);
const std::string kPickle("\x80\2}q\0.", 6);
const std::string kGguf("GGUF\3\0\0\0\1\0\0\0\0\0\0\0", 16);
constexpr char kLfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";

std::string Safetensors(const std::string& tensor) {
  return WriteSafetensors(
      absl::StrCat(R"({")", tensor, R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
      std::string(4, '\0'));
}

void ExpectForeign(const std::string& place, const std::vector<std::string>& said) {
  for (const bool hash : {true, false}) {
    const absl::Status status = hash ? Model::Load(place).status() : Model::Open(place).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "FOREIGN_CHECKPOINT") << status;
    EXPECT_EQ(GetErrorDetail(status).field, "model") << status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const std::string message(status.message());
    for (const std::string& words : said) EXPECT_THAT(message, HasSubstr(words));
    EXPECT_THAT(message, AllOf(HasSubstr(place), HasSubstr("docs/models.md"),
                               Not(HasSubstr("rivulet-model")), Not(HasSubstr("\n"))));
  }
}

struct FileCase {
  const char* name;
  std::string bytes;
  std::vector<std::string> said;
};

std::vector<FileCase> FileCases() {
  const std::vector<std::string> torch = {"a PyTorch checkpoint", "rivulet-convert",
                                          "save_pretrained"};
  return {
      {"RWKV-x070-World-0.1B.pth", kZip, torch},
      {"model.pt", kPickle, torch},
      {"without-a-suffix", kZip, torch},
      {"weights.safetensors",
       Safetensors("some.weight"),
       {"a safetensors file", "the directory that holds it", "config.json"}},
      {"mamba2.safetensors",
       WriteSafetensors(R"({"backbone.layers.0.mixer.A_log":{"dtype":"F32","shape":[1],)"
                        R"("data_offsets":[0,4]},"backbone.layers.0.mixer.dt_bias":)"
                        R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                        std::string(8, '\0')),
       {"a safetensors file", "Mamba-2 checkpoint of transformers"}},
      {"large.pth", kLfs, {"a pointer of Git LFS", "git lfs pull"}},
  };
}

TEST(ForeignModelTest, AFileSaysWhatItIsAndWhatToDo) {
  for (const FileCase& test : FileCases()) {
    SCOPED_TRACE(test.name);
    const TempDir dir;
    ASSERT_TRUE(WriteFile(dir.File(test.name), test.bytes).ok());
    ExpectForeign(dir.File(test.name), test.said);
  }
}

TEST(ForeignModelTest, ADirectoryWithoutConfigJsonSaysWhatItsFilesAre) {
  for (const FileCase& test : FileCases()) {
    SCOPED_TRACE(test.name);
    const TempDir dir;
    ASSERT_TRUE(WriteFile(dir.File("README.md"), "read me").ok());
    ASSERT_TRUE(WriteFile(dir.File(test.name), test.bytes).ok());
    std::vector<std::string> said = test.said;
    said.push_back("config.json");
    said.emplace_back(test.name);
    ExpectForeign(dir.path(), said);
  }
}

TEST(ForeignModelTest, ADirectoryOfGgufFilesSaysThatTheFileIsTaken) {
  const TempDir dir;
  ASSERT_TRUE(WriteFile(dir.File("RWKV7-Q4_K_M.gguf"), kGguf).ok());
  ExpectForeign(dir.path(), {"config.json", "\"RWKV7-Q4_K_M.gguf\" is a GGUF file",
                             "--model takes the file itself"});
}

TEST(ForeignModelTest, AGgufFileOfAnotherArchitectureIsNamed) {
  const TempDir dir;
  testing::GgufFile file;
  // Of a type that is not read: the architecture is what matters.
  file.tensors = {{"t", {1}, 11, "x"}};
  for (const char* name : {"llama", "mamba", "rwkv6", "arwkv7", "a\nb"}) {
    file.Set("general.architecture", testing::RawString(name));
    ASSERT_TRUE(WriteFile(dir.File("m.gguf"), file.Bytes()).ok());
    ExpectForeign(dir.File("m.gguf"), {absl::StrCat("the architecture ", Quoted(name)),
                                       "served from GGUF: rwkv7, mamba2"});
  }
}

TEST(ForeignModelTest, AConfigurationOfAnotherProgramIsNamed) {
  struct Case {
    const char* config;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 3})",
       {"transformers", "LlamaForCausalLM", "model_type", "save_pretrained"}},
      {R"({"d_model": 768, "n_layer": 24, "ssm_cfg": {"layer": "Mamba2"}})",
       {"mamba_ssm", "rivulet-convert DIR OUT"}},
      {R"({"dim": 4096, "n_layers": 32, "norm_eps": 1e-05, "vocab_size": -1})",
       {"another program", R"("dim", "n_layers", "norm_eps", "vocab_size")", "save_pretrained"}},
      // What names an attention is not ours for that.
      {R"({"attention": "flash", "name": "mine"})", {"another program", R"("attention", "name")"}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.config);
    const TempDir dir;
    ASSERT_TRUE(WriteFile(dir.File("config.json"), test.config).ok());
    ExpectForeign(dir.path(), test.said);
    ASSERT_TRUE(WriteFile(dir.File("pytorch_model.bin"), kZip).ok());
    ExpectForeign(dir.path(), test.said);
  }
}

TEST(ForeignModelTest, AModelTypeThatIsNotServedIsNamedWithItsArchitectures) {
  const TempDir dir;
  ASSERT_TRUE(WriteFile(dir.File("config.json"), R"({"architectures": ["LlamaForCausalLM", "X"],
                                                     "model_type": "llama"})")
                  .ok());
  for (const char* const tensor : {"", "model.layers.0.self_attn.q_proj.weight"}) {
    if (*tensor != '\0') {  // its tensors tell less
      ASSERT_TRUE(WriteFile(dir.File("model.safetensors"), Safetensors(tensor)).ok());
    }
    const absl::Status status = Model::Load(dir.path()).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "UNSUPPORTED_MODEL");
    EXPECT_EQ(GetErrorDetail(status).field, "model_type");
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(dir.File("config.json")), HasSubstr(R"(model_type is "llama")"),
                      HasSubstr(R"(architectures "LlamaForCausalLM", "X")"),
                      HasSubstr("supported: retnet"), HasSubstr(", molformer (docs/models.md")));
  }
}

TEST(ForeignModelTest, AFaultOfOurOwnConfigurationKeepsItsError) {
  const std::string ours = testing::ConfigJson(testing::TinyConfig());
  for (const char* member : {R"("format":"rivulet-model",)", R"("format_version":1,)"}) {
    std::string cut = ours;
    ASSERT_NE(cut.find(member), cut.npos) << ours;
    cut.erase(cut.find(member), std::string(member).size());
    const TempDir dir;
    ASSERT_TRUE(WriteFile(dir.File("config.json"), cut).ok());
    EXPECT_EQ(GetErrorDetail(Model::Load(dir.path()).status()).reason, "INVALID_CONFIG") << member;
  }
}

TEST(ForeignModelTest, WhatIsNoModelOfAnybodyKeepsItsError) {
  const TempDir dir;
  ASSERT_TRUE(WriteFile(dir.File("notes.txt"), "PK is not a zip").ok());
  ASSERT_EQ(mkfifo(dir.File("pipe").c_str(), 0600), 0);
  for (const char* name : {"notes.txt", "pipe"}) {
    const absl::Status status = Model::Load(dir.File(name)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a directory, nor a GGUF file"));
  }
  std::filesystem::rename(dir.File("pipe"), dir.File("pipe.pth"));  // opening it would block
  EXPECT_THAT(std::string(Model::Load(dir.path()).status().message()),
              HasSubstr("config.json: no such file"));
  ASSERT_TRUE(WriteFile(dir.File("config.json"), "{}").ok());
  EXPECT_THAT(std::string(Model::Load(dir.File("config.json")).status().message()),
              HasSubstr("--model takes the directory that holds it"));
}

}  // namespace
}  // namespace rivulet
