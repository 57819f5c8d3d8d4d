// SPDX-License-Identifier: Apache-2.0
// Models in GGUF files: settings, names of tensors, parts. Their numbers are compared in
// tests/conformance/family_golden_test.cc.
#include "model/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/loading/packed_weights.h"
#include "model/model.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::GgufFile;
using ::testing::HasSubstr;
using testing::Raw;
using testing::RawBool;
using testing::RawF32;
using testing::RawI32;
using testing::RawString;
using testing::RawU32;
using testing::TempDir;
using testing::WriteFile;

// A tensor of F32 numbers that count from 0.01 on.
testing::GgufTensor Counting(const std::string& name, const std::vector<uint64_t>& extents) {
  uint64_t count = 1;
  for (const uint64_t extent : extents) count *= extent;
  std::string bytes;
  for (uint64_t i = 0; i < count; ++i) bytes += Raw(0.01f * static_cast<float>(i + 1));
  return {name, extents, 0, bytes};
}

GgufFile WithCommon(const std::string& architecture, uint32_t layers) {
  GgufFile file;
  const auto set = [&](const char* key, const std::string& value) {
    file.Set(absl::StrCat(architecture, ".", key), value);
  };
  file.Set("general.architecture", RawString(architecture));
  file.Set("general.type", RawString("model"));
  file.Set("general.name", RawString("My \"Model\" 7B"));
  file.Set("general.quantization_version", RawU32(2));
  set("context_length", RawU32(1048576));
  set("embedding_length", RawU32(8));
  set("block_count", RawU32(layers));
  set("attention.head_count", RawU32(0));
  file.tensors.push_back(Counting("token_embd.weight", {8, 11}));
  file.tensors.push_back(Counting("output_norm.weight", {8}));
  file.tensors.push_back(Counting("output.weight", {8, 11}));
  return file;
}

// Two layers, two heads of 4.
GgufFile Rwkv7() {
  GgufFile file = WithCommon("rwkv7", 2);
  file.Set("rwkv7.attention.layer_norm_epsilon", RawF32(16e-5f));
  file.Set("rwkv7.wkv.head_size", RawU32(4));
  file.Set("rwkv7.feed_forward_length", RawU32(12));
  file.Set("rwkv7.attention.decay_lora_rank", RawU32(3));
  const auto add = [&file](const std::string& name, const std::vector<uint64_t>& extents) {
    file.tensors.push_back(Counting(name, extents));
  };
  for (const char* name : {"token_embd_norm.weight", "token_embd_norm.bias", "output_norm.bias"}) {
    add(name, {8});
  }
  for (const std::string blk : {"blk.0.", "blk.1."}) {
    for (const char* name : {"attn_norm", "attn_norm_2", "time_mix_ln"}) {
      add(blk + name + ".weight", {8});
      add(blk + name + ".bias", {8});
    }
    for (const char* name : {"receptance", "key", "value", "output"}) {
      add(blk + "time_mix_" + name + ".weight", {8, 8});
    }
    for (const char* name : {"w", "a", "v", "g"}) {
      const std::string low = blk + "time_mix_" + name;
      if (name[0] != 'g') add(low + "0.weight", {8});
      add(low + "1.weight", {8, 3});
      add(low + "2.weight", {3, 8});
    }
    for (const char* name : {"time_mix_k_k", "time_mix_k_a", "time_mix_r_k"}) {
      add(blk + name + ".weight", {8});
    }
    add(blk + "time_mix_lerp_fused.weight", {8, 1, 1, 6});
    add(blk + "channel_mix_lerp_k.weight", {8, 1, 1});
    add(blk + "channel_mix_key.weight", {8, 12});
    add(blk + "channel_mix_value.weight", {12, 8});
  }
  return file;
}

// One layer, two heads of 6, two groups of 5.
GgufFile Mamba2() {
  GgufFile file = WithCommon("mamba2", 1);
  file.Set("mamba2.feed_forward_length", RawU32(0));
  file.Set("mamba2.ssm.conv_kernel", RawU32(4));
  file.Set("mamba2.ssm.inner_size", RawU32(12));
  file.Set("mamba2.ssm.state_size", RawU32(5));
  file.Set("mamba2.ssm.time_step_rank", RawU32(2));
  file.Set("mamba2.ssm.group_count", RawU32(2));
  file.Set("mamba2.attention.layer_norm_rms_epsilon", RawF32(1e-5f));
  const auto add = [&file](const std::string& name, const std::vector<uint64_t>& extents) {
    file.tensors.push_back(Counting("blk.0." + name, extents));
  };
  add("attn_norm.weight", {8});
  add("ssm_in.weight", {8, 12 + 12 + 20 + 2});
  add("ssm_conv1d.weight", {4, 32});
  add("ssm_conv1d.bias", {32});
  add("ssm_dt.bias", {2});
  add("ssm_a", {1, 2});
  file.tensors.back().bytes = Raw(-0.5f) + Raw(-2.0f);
  add("ssm_d", {1, 2});
  add("ssm_norm.weight", {6, 2});
  add("ssm_out.weight", {12, 8});
  return file;
}

class GgufModelTest : public ::testing::Test {
 protected:
  std::string Write(const GgufFile& file, const std::string& name = "Small-Q8_0.gguf") {
    EXPECT_TRUE(WriteFile(directory_.File(name), file.Bytes()).ok());
    return directory_.File(name);
  }
  // Loads the file and its weights.
  absl::Status LoadAll(const GgufFile& file) {
    auto model = Model::Load(Write(file));
    if (!model.ok()) return model.status();
    return PackedWeights::Load(**model, WeightPrecision::kAuto).status();
  }

  TempDir directory_;
};

TEST_F(GgufModelTest, Rwkv7IsReadAsACheckpoint) {
  const auto model = Model::Load(Write(Rwkv7()));
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.name, "small-q8_0");
  EXPECT_STREQ(config.kind(), "rwkv7");
  EXPECT_EQ(config.vocab_size, 11);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 2);
  EXPECT_EQ(config.key_dim, 4);
  EXPECT_EQ(config.ffn_size, 12);
  EXPECT_EQ(config.norm_eps, 16e-5f);
  EXPECT_FALSE(config.block().tied_head);
  const CheckpointTensors& tensors = (*model)->tensors();
  EXPECT_THAT(tensors.Find("model.layers.1.attn.r_k")->shape, ElementsAre(2, 4));
  EXPECT_THAT(tensors.Find("model.layers.1.attn.x_x")->shape, ElementsAre(6, 1, 1, 8));
  EXPECT_NE(tensors.Find("model.layers.1.attn.v_lora.lora.0.weight"), nullptr);
  // Copies that nothing reads.
  EXPECT_EQ(tensors.Find("model.layers.0.attn.v_lora.lora.0.weight"), nullptr);
  EXPECT_EQ((*model)->weights_sha256().size(), 64u);
  EXPECT_TRUE(LoadAll(Rwkv7()).ok());
}

TEST_F(GgufModelTest, Mamba2IsReadAsACheckpoint) {
  const auto model = Model::Load(Write(Mamba2()));
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.num_heads, 2);
  EXPECT_EQ(config.value_dim, 6);
  EXPECT_EQ(config.key_dim, 5);
  EXPECT_EQ(config.block().num_groups, 2);
  EXPECT_THAT((*model)->tensors().Find("backbone.layers.0.mixer.norm.weight")->shape,
              ElementsAre(12));
  const auto weights = PackedWeights::Load(**model, WeightPrecision::kAuto);
  ASSERT_TRUE(weights.ok()) << weights.status();
  // exp(A_log) itself, not exp(log(...)).
  EXPECT_THAT((*weights)->layers[0].decay_scale, ElementsAre(0.5f, 2.0f));
}

TEST_F(GgufModelTest, BlocksCanBeKeptAsTheyLieInTheFile) {
  GgufFile file = Mamba2();
  testing::GgufTensor& head = file.Tensor("output.weight");
  const std::string block = std::string("\0\x3C", 2) + std::string(32, '\5');
  head.type = 8;
  head.extents = {32, 2};
  head.bytes = block + std::string(2, '\0') + std::string(32, '\7');
  const auto model = Model::Load(Write(file));
  ASSERT_TRUE(model.ok()) << model.status();
  const TensorEntry* const entry = (*model)->tensors().Find("lm_head.weight");
  EXPECT_EQ(entry->dtype, DType::kQ8_0);
  std::string first(34, ' '), second(34, ' ');
  ASSERT_TRUE((*model)->tensors().ReadBlocks("lm_head.weight", 0, std::span(first)).ok());
  ASSERT_TRUE((*model)->tensors().ReadBlocks("lm_head.weight", 1, std::span(second)).ok());
  EXPECT_EQ(first, block);
  EXPECT_EQ(second, head.bytes.substr(34));
  EXPECT_EQ(entry->end - entry->begin, 68u);
}

TEST_F(GgufModelTest, WithoutAHeadTheEmbeddingIsTheHead) {
  for (GgufFile file : {Rwkv7(), Mamba2()}) {
    file.Erase("output.weight");
    const auto model = Model::Load(Write(file));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE((*model)->config().block().tied_head);
    EXPECT_TRUE(LoadAll(file).ok());
  }
}

TEST_F(GgufModelTest, AConvolutionMayHaveNoBias) {
  GgufFile file = Mamba2();
  file.Erase("blk.0.ssm_conv1d.bias");
  EXPECT_TRUE(LoadAll(file).ok()) << LoadAll(file);
}

TEST_F(GgufModelTest, AFileThatSaysNothingIsNamedByItsMetadata) {
  const std::string path = Write(Rwkv7(), "model.gguf");
  EXPECT_EQ((*Model::Open(path))->config().name, "my--model--7b");
  EXPECT_EQ((*Model::Open(path, "other"))->config().name, "other");
  EXPECT_EQ(GgufStem("a/b/Name-Q4_0-00001-of-00003.gguf"), "Name-Q4_0");
  EXPECT_EQ(GgufStem("b/Name-00001-of-0000x.gguf"), "Name-00001-of-0000x");
  EXPECT_EQ(GgufStem("of.gguf"), "of");
  EXPECT_EQ(GgufStem("name"), "name");
}

struct BadModel {
  std::function<void(GgufFile*)> change;
  const char* reason;
  std::string said;
};

std::vector<BadModel> BadRwkv7() {
  const auto set = [](const char* key, const std::string& value) {
    return [key, value](GgufFile* f) { f->Set(key, value); };
  };
  const auto erase = [](const char* name) { return [name](GgufFile* f) { f->Erase(name); }; };
  const auto rename = [](const char* from, const char* to) {
    return [from, to](GgufFile* f) { f->Tensor(from).name = to; };
  };
  const char *invalid = "INVALID_CONFIG", *unsupported = "UNSUPPORTED_MODEL",
             *corrupt = "CORRUPT_WEIGHTS";
  return {
      {erase("general.architecture"), invalid, "general.architecture is missing"},
      {set("general.architecture", RawU32(7)), invalid, "general.architecture is missing, or no"},
      {set("general.type", RawString("adapter")), unsupported, "general.type is \"adapter\""},
      {set("general.quantization_version", RawU32(1)), unsupported, "version is the number 1"},
      {erase("rwkv7.embedding_length"), invalid, "rwkv7.embedding_length is missing"},
      {erase("rwkv7.block_count"), invalid, "rwkv7.block_count is missing"},
      {erase("rwkv7.wkv.head_size"), invalid, "rwkv7.wkv.head_size is missing"},
      {erase("rwkv7.feed_forward_length"), invalid, "rwkv7.feed_forward_length is missing"},
      {erase("rwkv7.attention.layer_norm_epsilon"), invalid, "layer_norm_epsilon is missing"},
      {set("rwkv7.block_count", RawString("2")), invalid, "block_count is the text \"2\""},
      {set("rwkv7.block_count", RawF32(2)), invalid, "block_count is the number 2; allowed: 1"},
      {set("rwkv7.block_count", RawU32(0)), invalid, "block_count is the number 0"},
      {set("rwkv7.block_count", RawU32(5000)), invalid, "block_count is the number 5000"},
      {set("rwkv7.embedding_length", RawI32(-8)), invalid, "is the number -8"},
      {set("rwkv7.embedding_length", RawU32(1u << 30)), invalid, "allowed: 1 to 16777216"},
      {set("rwkv7.wkv.head_size", RawU32(3)), invalid, "does not divide by it"},
      {set("rwkv7.attention.layer_norm_epsilon", RawF32(0)), invalid, "numbers above 0"},
      {set("rwkv7.attention.layer_norm_epsilon", RawF32(-1)), invalid, "numbers above 0"},
      {set("rwkv7.attention.layer_norm_epsilon", Raw(uint32_t{6}) + Raw(0x7FC00000u)), invalid,
       "numbers above 0"},
      {set("rwkv7.attention.layer_norm_epsilon", RawF32(1e-5f)), unsupported, "64e-5"},
      {set("rwkv7.token_shift_count", RawU32(1)), unsupported, "token_shift_count is the number 1"},
      {set("rwkv7.attention.head_count", RawU32(2)), unsupported, "head_count is the number 2"},
      {set("rwkv7.rescale_every_n_layers", RawU32(6)), unsupported, "rescale_every_n_layers is"},
      {set("rwkv7.new\n", RawBool(1)), unsupported, "rwkv7.new\\n is true; it is not known here"},
      {erase("token_embd.weight"), corrupt, "\"token_embd.weight\" is missing"},
      {[](GgufFile* f) { f->Tensor("token_embd.weight").extents = {88}; }, corrupt, "no table"},
      {erase("blk.1.time_mix_r_k.weight"), corrupt, "attn.r_k\": the checkpoint lacks it"},
      {erase("output_norm.bias"), corrupt, "\"model.norm.bias\": the checkpoint lacks it"},
      {erase("token_embd_norm.weight"), corrupt, "pre_norm.weight\": the checkpoint lacks it"},
      {rename("blk.1.attn_norm.bias", "blk.2.attn_norm.bias"), corrupt,
       "\"blk.2.attn_norm.bias\": rwkv7 of 2 layers has no such tensor"},
      {rename("blk.1.attn_norm.bias", "blk.01.attn_norm.bias"), corrupt, "no such tensor"},
      {rename("blk.1.attn_norm.bias", "blk.-1.attn_norm.bias"), corrupt, "no such tensor"},
      {rename("blk.1.attn_norm.bias", "blk.1"), corrupt, "\"blk.1\": rwkv7 of 2 layers has no"},
      {rename("blk.1.attn_norm.bias", "blk..attn_norm.bias"), corrupt, "no such tensor"},
      {rename("blk.1.attn_norm.bias", "attn_norm.bias"), corrupt, "no such tensor"},
      {rename("blk.1.attn_norm.bias", "blk.1.token_embd.weight"), corrupt, "no such tensor"},
      {[](GgufFile* f) { f->tensors.push_back(Counting("rope_freqs.weight", {4})); }, corrupt,
       "\"rope_freqs.weight\": rwkv7 of 2 layers has no such tensor"},
      {[](GgufFile* f) {
         f->Tensor("blk.1.time_mix_key.weight").extents = {4, 16};
       },
       corrupt, "k_proj.weight\": shape is [16, 4]; the configuration needs [8, 8]"},
      {[](GgufFile* f) {
         f->Tensor("blk.1.time_mix_r_k.weight").extents = {4, 2};
       },
       "", ""},
      {[](GgufFile* f) {
         f->Tensor("blk.1.time_mix_lerp_fused.weight").extents = {6, 8};
       },
       corrupt, "attn.x_x\": shape is [8, 6]"},
      {[](GgufFile* f) {
         f->Tensor("blk.1.time_mix_key.weight").bytes[3] = '\x7F',
         f->Tensor("blk.1.time_mix_key.weight").bytes[2] = '\x80';
       },
       corrupt, "\"blk.1.time_mix_key.weight\": the weight at index 0 is"},
  };
}

std::vector<BadModel> BadMamba2() {
  const auto set = [](const char* key, uint32_t value) {
    return [key, value](GgufFile* f) { f->Set(key, RawU32(value)); };
  };
  const char *invalid = "INVALID_CONFIG", *corrupt = "CORRUPT_WEIGHTS";
  return {
      {set("mamba2.ssm.conv_kernel", 9), invalid, "conv_kernel is the number 9; allowed: 1 to 8"},
      {set("mamba2.ssm.time_step_rank", 5), invalid, "time_step_rank is 5; ssm.inner_size, 12"},
      {set("mamba2.ssm.group_count", 3), invalid, "n_groups"},
      {set("mamba2.ssm.group_count", 0), invalid, "group_count is the number 0"},
      {set("mamba2.ssm.dt_b_c_rms", 1), "UNSUPPORTED_MODEL", "mamba2.ssm.dt_b_c_rms is"},
      {[](GgufFile* f) { f->Erase("mamba2.ssm.state_size"); }, invalid, "state_size is missing"},
      {[](GgufFile* f) { f->Erase("blk.0.ssm_a"); }, corrupt, "A_log\": the checkpoint lacks it"},
      {[](GgufFile* f) { f->Tensor("blk.0.ssm_a").bytes = Raw(-1.0f) + Raw(0.5f); }, corrupt,
       "minus_exp_A_log holds 0.5; allowed: numbers up to 0"},
      {[](GgufFile* f) { f->tensors.push_back(Counting("blk.0.ssm_in.bias", {46})); }, corrupt,
       "\"blk.0.ssm_in.bias\": mamba2 of 1 layers has no such tensor"},
  };
}

TEST_F(GgufModelTest, NamesTheSettingOrTensorThatIsWrong) {
  const auto check = [this](GgufFile (*good)(), const std::vector<BadModel>& cases) {
    for (size_t i = 0; i < cases.size(); ++i) {
      GgufFile file = good();
      cases[i].change(&file);
      const absl::Status status = LoadAll(file);
      SCOPED_TRACE(absl::StrCat("case ", i, ": ", status.ToString()));
      EXPECT_EQ(GetErrorDetail(status).reason, cases[i].reason);
      EXPECT_THAT(std::string(status.message()), HasSubstr(cases[i].said));
      for (const char c : status.message()) EXPECT_GE(c, ' ');
    }
  };
  check(Rwkv7, BadRwkv7());
  check(Mamba2, BadMamba2());
}

// Three parts, as llama-gguf-split makes them.
class GgufPartsTest : public GgufModelTest {
 protected:
  void SetUp() override {
    const GgufFile whole = Rwkv7();
    const size_t count = whole.tensors.size();
    for (size_t i = 0; i < 3; ++i) {
      if (i == 0) parts_[i].metadata = whole.metadata;
      const auto at = [&](size_t part) { return whole.tensors.begin() + long(count * part / 3); };
      parts_[i].tensors.assign(at(i), at(i + 1));
      parts_[i].Set("split.no", Raw(uint32_t{2}) + Raw(static_cast<uint16_t>(i)));
      parts_[i].Set("split.count", Raw(uint32_t{2}) + Raw(uint16_t{3}));
      parts_[i].Set("split.tensors.count", RawI32(static_cast<int32_t>(count)));
    }
  }
  // The path of the first.
  std::string WriteParts() {
    for (size_t i = 0; i < 3; ++i) Write(parts_[i], Name(i));
    return directory_.File(Name(0));
  }
  static std::string Name(size_t i) { return absl::StrCat("m-0000", i + 1, "-of-00003.gguf"); }

  GgufFile parts_[3];
};

TEST_F(GgufPartsTest, PartsAreReadAsOneFile) {
  const auto whole = Model::Load(Write(Rwkv7()));
  const auto model = Model::Load(WriteParts());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config().name, "m");
  EXPECT_EQ((*model)->tensors().names(), (*whole)->tensors().names());
  EXPECT_NE((*model)->weights_sha256(), (*whole)->weights_sha256());
  EXPECT_TRUE(PackedWeights::Load(**model, WeightPrecision::kAuto).ok());
}

TEST_F(GgufPartsTest, PartsThatDoNotFitTogetherAreRefused) {
  const auto expect = [this](size_t part, const char* reason, const std::string& said) {
    const absl::Status status = Model::Open(WriteParts()).status();
    EXPECT_EQ(GetErrorDetail(status).reason, reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Name(part)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
    SetUp();
  };
  parts_[1].Set("split.no", RawU32(2));
  expect(1, "CORRUPT_WEIGHTS", "do not say part 2 of 3");
  parts_[2].Set("split.count", RawU32(4));
  expect(2, "CORRUPT_WEIGHTS", "do not say part 3 of 3");
  parts_[0].Set("split.count", RawI32(-3));
  expect(0, "CORRUPT_WEIGHTS", "split.count is -3; allowed: 1 to 1024");
  parts_[0].Set("split.count", RawU32(65535));
  expect(0, "CORRUPT_WEIGHTS", "split.count is 65535");
  parts_[0].Set("split.no", RawI32(-1));
  expect(0, "CORRUPT_WEIGHTS", "split.no is -1; allowed: 0 to 2");
  parts_[1].Set("split.tensors.count", RawU32(5));
  expect(1, "CORRUPT_WEIGHTS", "split.tensors.count differs from that of the first part");
  for (GgufFile& part : parts_) part.Set("split.tensors.count", RawU32(5));
  expect(0, "CORRUPT_WEIGHTS", "split.tensors.count is 5, but the parts hold");
  parts_[2].tensors.push_back(parts_[0].tensors[0]);
  for (GgufFile& part : parts_) part.Erase("split.tensors.count");
  expect(2, "CORRUPT_WEIGHTS", "is in another part too");
  parts_[2].magic = "GGML";
  expect(2, "CORRUPT_WEIGHTS", "begins with \"GGML\"");
  parts_[0].Set("split.no", RawU32(1));
  expect(0, "INVALID_CONFIG", "part 2 of 3; --model takes the first");
  EXPECT_EQ(remove(directory_.File(Name(2)).c_str()), 0);
  Write(parts_[0], Name(0));
  Write(parts_[1], Name(1));
  const absl::Status missing = Model::Open(directory_.File(Name(0))).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr(Name(2)));
  // A first part by another name.
  Write(parts_[0], "renamed.gguf");
  EXPECT_THAT(std::string(Model::Open(directory_.File("renamed.gguf")).status().message()),
              HasSubstr("NAME-00001-of-00003.gguf"));
}

}  // namespace
}  // namespace rivulet
