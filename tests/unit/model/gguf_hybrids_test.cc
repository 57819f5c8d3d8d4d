// SPDX-License-Identifier: Apache-2.0
// Hybrids in GGUF files: settings and names of tensors. Their numbers are compared in
// tests/conformance/family_golden_test.cc and tests/conformance/gguf_hybrids_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/gguf_settings.h"
#include "model/hybrid_settings.h"
#include "model/loading/packed_weights.h"
#include "model/model.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_model.h"

namespace rivulet::gguf_hybrids {
namespace {

using testing::GgufFile;
using ::testing::HasSubstr;

// A value of GGUF: "2", "0.5", "true", "text", "[0,2]", "[true,false]".
std::string Value(absl::string_view text) {
  float number = 0;
  if (absl::ConsumePrefix(&text, "[")) {
    std::string bytes;
    uint64_t count = 0;
    uint32_t element = 5;
    for (const absl::string_view part : absl::StrSplit(text.substr(0, text.size() - 1), ',')) {
      int32_t integer = 0;
      ++count;
      if (absl::SimpleAtoi(part, &integer)) {
        bytes += testing::Raw(integer);
      } else {
        element = 7;
        bytes += testing::Raw(uint8_t{part == "true"});
      }
    }
    return testing::RawArray(element, count, bytes);
  }
  if (text == "true" || text == "false") return testing::RawBool(text == "true");
  if (!absl::SimpleAtof(text, &number)) return testing::RawString(text);
  if (absl::StrContains(text, '.')) return testing::RawF32(number);
  return testing::RawI32(static_cast<int32_t>(number));
}

// `keys`: "name=value ..." below the architecture. `tensors`: "name:8x4 ...", in GGUF's order of
// extents; all their numbers are -0.01.
void Add(const std::string& keys, const std::string& tensors, const std::string& prefix,
         GgufFile* file) {
  for (const absl::string_view key : absl::StrSplit(keys, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(key, '=');
    file->Set(absl::StrCat(prefix, ".", parts.first), Value(parts.second));
  }
  for (const absl::string_view tensor : absl::StrSplit(tensors, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(tensor, ':');
    testing::GgufTensor made{parts.first, {}, 0, ""};
    uint64_t count = 1;
    for (const absl::string_view extent : absl::StrSplit(parts.second, 'x')) {
      made.extents.push_back(0);
      EXPECT_TRUE(absl::SimpleAtoi(extent, &made.extents.back()));
      count *= made.extents.back();
    }
    for (uint64_t i = 0; i < count; ++i) made.bytes += testing::Raw(-0.01f);
    file->tensors.push_back(made);
  }
}

std::string Layer(int index, const std::string& tensors) {
  return absl::StrCat(" blk.", index, ".",
                      absl::StrReplaceAll(tensors, {{" ", absl::StrCat(" blk.", index, ".")}}));
}

constexpr char kAttention[] =
    "attn_norm.weight:8 attn_q.weight:8x8 attn_k.weight:8x4 attn_v.weight:8x4 "
    "attn_output.weight:8x8";
constexpr char kMamba[] =
    "attn_norm.weight:8 ssm_in.weight:8x26 ssm_conv1d.weight:2x16 ssm_conv1d.bias:16 ssm_dt.bias:2 "
    "ssm_a:1x2 ssm_d:1x2 ssm_out.weight:8x8";
constexpr char kFfn[] = " ffn_gate.weight:8x6 ffn_up.weight:8x6 ffn_down.weight:6x8";
constexpr char kExperts[] =
    " ffn_gate_inp.weight:8x3 ffn_gate_exps.weight:8x6x3 ffn_up_exps.weight:8x6x3 "
    "ffn_down_exps.weight:6x8x3";
constexpr char kShared[] =
    " ffn_gate_shexp.weight:8x5 ffn_up_shexp.weight:8x5 ffn_down_shexp.weight:5x8";
constexpr char kCommonKeys[] =
    "context_length=64 embedding_length=8 attention.head_count=2 "
    "attention.layer_norm_rms_epsilon=0.01 feed_forward_length=6 rope.freq_base=10000.0 ";
constexpr char kSsmKeys[] =
    "ssm.conv_kernel=2 ssm.inner_size=8 ssm.state_size=4 ssm.group_count=1 ssm.time_step_rank=2 ";
constexpr char kMixtureKeys[] = "expert_count=3 expert_used_count=2 ";

// Two layers of the architecture, the first recurrent; Qwen3.5 with a block of prediction.
GgufFile Hybrid(const std::string& architecture) {
  std::string keys = absl::StrCat(kCommonKeys, "block_count=2 attention.head_count_kv=[0,1] "),
              tensors = "token_embd.weight:8x9 output_norm.weight:8";
  if (absl::StartsWith(architecture, "qwen35")) {
    const bool mixture = architecture == "qwen35moe";
    absl::StrAppend(
        &keys, kSsmKeys,
        "block_count=3 attention.head_count_kv=1 nextn_predict_layers=1 "
        "attention.recurrent_layers=[true,false,false] rope.dimension_count=2 "
        "rope.dimension_sections=[1,0,0,0] ",
        mixture ? kMixtureKeys : "",
        mixture ? "expert_feed_forward_length=6 expert_shared_feed_forward_length=5" : "");
    const std::string ffn = absl::StrCat(
        " post_attention_norm.weight:8",
        mixture ? absl::StrCat(kExperts, kShared, " ffn_gate_inp_shexp.weight:8") : kFfn);
    absl::StrAppend(
        &tensors,
        Layer(0,
              "attn_norm.weight:8 attn_qkv.weight:8x16 attn_gate.weight:8x8 ssm_alpha.weight:8x2 "
              "ssm_beta.weight:8x2 ssm_conv1d.weight:2x16 ssm_a:2 ssm_dt.bias:2 "
              "ssm_norm.weight:4 ssm_out.weight:8x8" +
                  ffn),
        Layer(1, absl::StrCat(absl::StrReplaceAll(kAttention, {{"q.weight:8x8", "q.weight:8x16"}}),
                              " attn_q_norm.weight:4 attn_k_norm.weight:4", ffn)),
        Layer(2, "nextn.eh_proj.weight:16x8 attn_norm.weight:8"));
  } else if (architecture == "granitehybrid" || architecture == "granite-dense") {
    const bool mixture = architecture == "granitehybrid";
    absl::StrAppend(&keys, kSsmKeys,
                    "embedding_scale=12.0 residual_scale=0.5 attention.scale=0.25 logit_scale=3.0 "
                    "rope.scaling.finetuned=false rope.dimension_count=4 ",
                    mixture ? kMixtureKeys : "expert_count=0 ",
                    mixture ? "expert_shared_feed_forward_length=5" : "");
    const std::string ffn =
        absl::StrCat(" ffn_norm.weight:8", mixture ? absl::StrCat(kExperts, kShared) : kFfn);
    absl::StrAppend(&tensors, Layer(0, absl::StrCat(kMamba, " ssm_norm.weight:8", ffn)),
                    Layer(1, kAttention + ffn));
  } else if (absl::StartsWith(architecture, "lfm2")) {
    tensors = "token_embd.weight:8x9 token_embd_norm.weight:8";
    const bool mixture = architecture == "lfm2moe";
    absl::StrAppend(&keys, "shortconv.l_cache=3 ",
                    mixture ? absl::StrCat(kMixtureKeys,
                                           "expert_feed_forward_length=6 expert_gating_func=2 "
                                           "leading_dense_block_count=1")
                            : "");
    absl::StrAppend(
        &tensors,
        Layer(0, absl::StrCat("attn_norm.weight:8 shortconv.conv.weight:3x8 "
                              "shortconv.in_proj.weight:8x24 shortconv.out_proj.weight:8x8 "
                              "ffn_norm.weight:8",
                              kFfn)),
        Layer(1, absl::StrCat(kAttention, " attn_q_norm.weight:4 attn_k_norm.weight:4",
                              " ffn_norm.weight:8",
                              mixture ? absl::StrCat(kExperts, " exp_probs_b.bias:3") : kFfn)));
  } else if (architecture == "falcon-h1") {
    absl::StrAppend(&keys, kSsmKeys, "attention.head_count_kv=1 attention.key_length=4");
    const std::string layer = absl::StrCat(
        kAttention, absl::StrReplaceAll(kMamba, {{"attn_norm.weight:8", ""}}), " ffn_norm:8", kFfn);
    absl::StrAppend(&tensors, Layer(0, layer), Layer(1, layer));
  } else {  // nemotron_h_moe
    absl::StrAppend(&keys, kSsmKeys, kMixtureKeys,
                    "block_count=4 attention.head_count_kv=[0,0,1,0] feed_forward_length=[0,6,0,0] "
                    "attention.layer_norm_epsilon=0.01 expert_feed_forward_length=6 "
                    "expert_shared_feed_forward_length=5 expert_weights_norm=true "
                    "expert_weights_scale=2.5 expert_group_count=1 expert_group_used_count=1 "
                    "expert_shared_count=1 moe_latent_size=4 rope.scaling.finetuned=false");
    absl::StrAppend(
        &tensors, Layer(0, absl::StrCat(kMamba, " ssm_norm.weight:8")),
        Layer(1,
              "attn_norm.weight:8 ffn_gate_inp.weight:8x3 exp_probs_b.bias:3 "
              "ffn_latent_down.weight:8x4 ffn_latent_up.weight:4x8 ffn_up_exps.weight:4x6x3 "
              "ffn_down_exps.weight:6x4x3 ffn_up_shexp.weight:8x5 ffn_down_shexp.weight:5x8"),
        Layer(2, kAttention), Layer(3, "attn_norm.weight:8 ffn_up.weight:8x7 ffn_down.weight:7x8"));
  }
  const std::string name = architecture == "granite-dense" ? "granitehybrid" : architecture;
  GgufFile file;
  file.Set("general.architecture", testing::RawString(name));
  Add(keys, tensors, name, &file);
  return file;
}

class GgufHybridsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<const Model>> Load(const GgufFile& file) {
    const std::string path = directory_.File("model.gguf");
    EXPECT_TRUE(testing::WriteFile(path, file.Bytes()).ok());
    return Model::Load(path);
  }
  absl::Status LoadAll(const GgufFile& file) {
    const auto model = Load(file);
    if (!model.ok()) return model.status();
    return PackedWeights::Load(**model, WeightPrecision::kAuto).status();
  }

  testing::TempDir directory_;
};

constexpr const char* kArchitectures[] = {"qwen35", "qwen35moe", "granitehybrid", "granite-dense",
                                          "lfm2",   "lfm2moe",   "falcon-h1",     "nemotron_h_moe"};

TEST_F(GgufHybridsTest, EveryArchitectureIsRead) {
  for (const char* name : kArchitectures) {
    const absl::Status status = LoadAll(Hybrid(name));
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
  // Older files do not have the size of an expert.
  GgufFile file = Hybrid("nemotron_h_moe");
  file.Erase("nemotron_h_moe.expert_feed_forward_length");
  EXPECT_TRUE(LoadAll(file).ok()) << LoadAll(file);
  // A dense Nemotron-H may say that it has experts, with lengths of 0.
  Add("block_count=1 attention.head_count_kv=0 feed_forward_length=0", "", "nemotron_h_moe", &file);
  std::erase_if(file.tensors, [](const testing::GgufTensor& tensor) {
    return absl::StartsWith(tensor.name, "blk.") && !absl::StartsWith(tensor.name, "blk.0.");
  });
  EXPECT_TRUE(LoadAll(file).ok()) << LoadAll(file);
}

TEST_F(GgufHybridsTest, TheChangesOfTheConverterAreSettings) {
  const auto qwen = Load(Hybrid("qwen35moe")), granite = Load(Hybrid("granitehybrid"));
  ASSERT_TRUE(qwen.ok() && granite.ok());
  const ModelConfig& config = (*qwen)->config();
  EXPECT_TRUE(config.block().tiled_heads);
  EXPECT_EQ(config.num_layers, 2);  // without that of multi-token prediction
  EXPECT_EQ(config.block().softmax->rope.frequencies.size(), 1u);
  EXPECT_TRUE(config.block().layers[0].recurrent && config.block().layers[1].attends);
  EXPECT_TRUE(IsSkippedTensor(config, "mtp.2.nextn.eh_proj.weight"));
  EXPECT_EQ(config.block().experts->shared_size, 5);
  const SoftmaxConfig& softmax = *(*granite)->config().block().softmax;
  EXPECT_TRUE(softmax.rope.interleaved && softmax.rope.frequencies.empty());
  EXPECT_EQ(softmax.scale, 0.25f);
  EXPECT_EQ((*granite)->config().context, 64);
  GgufFile file = Hybrid("granite-dense");
  file.Erase("granitehybrid.rope.scaling.finetuned");
  file.Erase("granitehybrid.attention.scale");
  const auto turned = Load(file);
  ASSERT_TRUE(turned.ok()) << turned.status();
  EXPECT_EQ((*turned)->config().block().softmax->rope.frequencies.size(), 2u);
  EXPECT_EQ((*turned)->config().block().softmax->scale, 0.5f);
}

// "=" sets keys, ":" adds tensors, "-" removes a key or a tensor, "a>b" renames a tensor.
void Change(const std::string& change, const std::string& prefix, GgufFile* file) {
  if (change[0] == '-') {
    file->Erase(change.substr(1));
    return file->Erase(absl::StrCat(prefix, ".", change.substr(1)));
  }
  const std::vector<std::string> renamed = absl::StrSplit(change, '>');
  if (renamed.size() == 2) {
    file->Tensor(renamed[0]).name = renamed[1];
    return;
  }
  const bool tensor = absl::StrContains(change, ':');
  Add(tensor ? "" : change, tensor ? change : "", prefix, file);
}

struct BadHybrid {
  const char *architecture, *change, *reason, *said;
};

constexpr char kInvalid[] = "INVALID_CONFIG", kUnsupported[] = "UNSUPPORTED_MODEL",
               kCorrupt[] = "CORRUPT_WEIGHTS";
constexpr BadHybrid kBad[] = {
    {"qwen35", "-attention.head_count", kInvalid, "head_count is missing"},
    {"qwen35", "attention.head_count=[2,2]", kInvalid, "is an array of 2 values; allowed: 0 to"},
    {"qwen35", "attention.head_count=-1", kInvalid, "is the number -1; allowed: 0 to 16777216"},
    {"qwen35", "attention.head_count=[2,0,2]", kInvalid, "head_count is 0 in layer 1"},
    {"qwen35", "attention.head_count=2.5", kInvalid, "head_count is the number 2.5"},
    {"qwen35", "attention.head_count_kv=3", kInvalid, "num_key_value_heads"},
    {"qwen35", "attention.recurrent_layers=[true,false]", kInvalid, "is an array of 2 values"},
    {"qwen35", "attention.recurrent_layers=[1,0,0]", kInvalid, "true or false, for each of the 3"},
    {"qwen35", "attention.key_length=0", kInvalid, "key_length is the number 0"},
    {"qwen35", "attention.value_length=5", kUnsupported, "value_length is 5; supported: attention"},
    {"qwen35", "attention.causal=false", kUnsupported, "attention.causal is false"},
    {"qwen35", "attention.causal=1", kInvalid, "causal is the number 1; allowed: true and false"},
    {"qwen35", "attention.sliding_window=128", kUnsupported, "sliding_window is the number 128"},
    {"qwen35", "attention.layer_norm_rms_epsilon=-1.0", kInvalid, "numbers above 0"},
    {"qwen35", "nextn_predict_layers=3", kInvalid,
     "predict_layers is the number 3; allowed: 0 to 2"},
    {"qwen35", "full_attention_interval=0", kInvalid, "interval is the number 0"},
    {"qwen35", "ssm.time_step_rank=3", kInvalid, "time_step_rank is 3; ssm.inner_size, 8"},
    {"qwen35", "ssm.group_count=3", kInvalid, "linear_num_key_heads, 3"},
    {"qwen35", "rope.dimension_count=6", kInvalid, "dimension_count is the number 6"},
    {"qwen35", "rope.dimension_count=3", kInvalid, "partial_rotary_factor"},
    {"qwen35", "rope.freq_base=0.0", kInvalid, "freq_base is the number 0"},
    {"qwen35", "rope.scaling.type=longrope", kUnsupported, "type is the text \"longrope\""},
    {"qwen35", "rope.scaling.type=2", kUnsupported, "type is the number 2; supported: none"},
    {"qwen35", "rope.scaling.original_context_length=0 rope.scaling.type=yarn", kInvalid,
     "original_context_length is the number 0"},
    {"qwen35", "rope.scaling.factor=0.5", kInvalid, "factor"},
    {"qwen35", "rope.scaling.yarn_ext_factor=1.0", kUnsupported, "it is not known here"},
    {"qwen35", "expert_count=2", kUnsupported, "expert_count is the number 2; supported: 0"},
    {"qwen35", "feed_forward_length=[6,7,6]", kUnsupported, "length is 6 and 7; supported: layers"},
    {"qwen35", "feed_forward_length=[6,0,6]", kInvalid, "feed_forward_length is 0 in layer 1"},
    {"qwen35", "-blk.0.ssm_beta.weight", kCorrupt, "in_proj_b.weight\": the checkpoint lacks it"},
    {"qwen35", "-blk.1.attn_q_norm.weight", kCorrupt, "q_norm.weight\": the checkpoint lacks it"},
    {"qwen35", "blk.0.ssm_a>blk.3.ssm_a", kCorrupt, "no such tensor"},
    {"qwen35", "blk.1.attn_q.bias:16", kCorrupt, "q_proj.bias\": the configuration has no such"},
    {"qwen35", "rope_freqs.weight:2", kCorrupt, "\"rope_freqs.weight\": qwen35 of 2 layers has no"},
    {"qwen35", "blk.0.ffn_gate_inp.weight:8x3", kCorrupt,
     "gate.weight\": the configuration has no"},
    {"qwen35moe", "-expert_count", kInvalid, "expert_count is missing"},
    {"qwen35moe", "expert_count=5000", kInvalid, "expert_count is the number 5000"},
    {"qwen35moe", "expert_count=4", kCorrupt, "shape is [3, 8]; the configuration needs [4, 8]"},
    {"qwen35moe", "expert_used_count=4", kInvalid, "used_count is 4; allowed: up to expert_count"},
    {"qwen35moe", "expert_used_count=[2,1,2]", kUnsupported, "expert_used_count is 2 and 1"},
    {"qwen35moe", "-expert_shared_feed_forward_length", kInvalid, "shared_feed_forward_length is"},
    {"qwen35moe", "expert_weights_scale=2.0", kUnsupported, "weights_scale is the number 2; it is"},
    {"qwen35moe", "-blk.0.ffn_gate_inp_shexp.weight", kCorrupt, "shared_expert_gate.weight\": the"},
    {"qwen35moe", "-blk.1.ffn_up_exps.weight", kCorrupt, "lacks it"},
    {"granitehybrid", "ssm.inner_size=12", kUnsupported, "inner_size is 12; supported: a multiple"},
    {"granitehybrid", "attention.key_length=8", kUnsupported, "heads that make up the embedding_"},
    {"granitehybrid", "logit_scale=0.0", kInvalid, "logit_scale is the number 0"},
    {"granitehybrid", "-expert_used_count", kInvalid, "expert_used_count is missing"},
    {"granitehybrid", "blk.0.ffn_gate.weight:8x5", kCorrupt,
     "the file has it twice, under another"},
    {"granite-dense", "rope.scaling.finetuned=true rope.dimension_count=2", kUnsupported,
     "dimension_count is 2; supported: all values of a head, 4"},
    {"granite-dense", "-blk.0.ssm_norm.weight", kCorrupt, "mamba.norm.weight\": the checkpoint"},
    {"lfm2", "rope.dimension_count=2", kUnsupported, "dimension_count is 2; supported: all values"},
    {"lfm2", "shortconv.l_cache=9", kInvalid, "l_cache is the number 9; allowed: 1 to 8"},
    {"lfm2", "pooling_type=1", kUnsupported, "pooling_type is the number 1; it is not known here"},
    {"lfm2", "token_embd_norm.weight>output_norm.weight", kCorrupt,
     "\"output_norm.weight\": lfm2 of"},
    {"lfm2moe", "expert_gating_func=1", kUnsupported, "gating_func is the number 1; supported: 2"},
    {"lfm2moe", "leading_dense_block_count=3", kInvalid, "is the number 3; allowed: 0 to 2"},
    {"lfm2moe", "leading_dense_block_count=2", kCorrupt, "w1.weight\": the checkpoint lacks it"},
    {"falcon-h1", "blk.0.ffn_norm>blk.0.ffn_norm.weight", kCorrupt, "ffn_norm.weight\": falcon-h1"},
    {"falcon-h1", "blk.0.ssm_norm.weight:8", kCorrupt, "layers.1.mamba.norm.weight\": the check"},
    {"falcon-h1", "attention.head_count_kv=[0,1]", kInvalid, "head_count_kv is 0 in layer 0"},
    {"nemotron_h_moe", "expert_group_count=2", kInvalid, "n_group"},
    {"nemotron_h_moe", "moe_latent_size=5", kCorrupt, "shape is [3, 6, 4]; the configuration"},
    {"nemotron_h_moe", "expert_weights_scale=-1.0", kInvalid, "numbers above 0"},
    {"nemotron_h_moe", "attention.head_count_kv=[0,0,0,1]", kInvalid, "is 0 in layer 2"},
};

TEST_F(GgufHybridsTest, NamesTheSettingOrTensorThatIsWrong) {
  for (const BadHybrid& bad : kBad) {
    GgufFile file = Hybrid(bad.architecture);
    Change(bad.change,
           bad.architecture == std::string("granite-dense") ? "granitehybrid" : bad.architecture,
           &file);
    const absl::Status status = LoadAll(file);
    SCOPED_TRACE(absl::StrCat(bad.architecture, " ", bad.change, ": ", status.ToString()));
    EXPECT_EQ(GetErrorDetail(status).reason, bad.reason);
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.said));
  }
}

TEST_F(GgufHybridsTest, BambaIsRefused) {
  GgufFile file = Hybrid("granite-dense");
  for (const char* key : {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"}) {
    file.Erase(absl::StrCat("granitehybrid.", key));
  }
  EXPECT_TRUE(LoadAll(file).ok());  // without positions it is a Granite
  for (const char* change : {"rope.scaling.finetuned=true", "-rope.scaling.finetuned"}) {
    Change(change, "granitehybrid", &file);
    const absl::Status status = LoadAll(file);
    EXPECT_EQ(GetErrorDetail(status).reason, "UNSUPPORTED_MODEL");
    EXPECT_THAT(std::string(status.message()), HasSubstr("this is Bamba, which is not supported"));
  }
}

// Parts of a matrix keep their own blocks: attn_v is Q8_0 beside Q4_0.
TEST_F(GgufHybridsTest, BlocksOfSeveralTypesAreNotDecoded) {
  GgufFile file;
  file.Set("general.architecture", testing::RawString("lfm2"));
  Add("context_length=64 embedding_length=32 attention.head_count=1 block_count=1 "
      "attention.layer_norm_rms_epsilon=0.01 feed_forward_length=32 shortconv.l_cache=3",
      "token_embd.weight:32x9 token_embd_norm.weight:32 blk.0.attn_norm.weight:32 "
      "blk.0.ffn_norm.weight:32 blk.0.attn_q_norm.weight:32 blk.0.attn_k_norm.weight:32 "
      "blk.0.ffn_gate.weight:32x32 blk.0.ffn_up.weight:32x32 blk.0.ffn_down.weight:32x32",
      "lfm2", &file);
  for (const auto& [name, type, bytes] : {std::tuple{"attn_q", 2u, 18},
                                          {"attn_k", 2u, 18},
                                          {"attn_v", 8u, 34},
                                          {"attn_output", 2u, 18}}) {
    const std::string block = std::string("\0\x2C", 2) + std::string(size_t(bytes) - 2, '\x17');
    testing::GgufTensor tensor{absl::StrCat("blk.0.", name, ".weight"), {32, 32}, type, ""};
    for (int row = 0; row < 32; ++row) tensor.bytes += block;
    file.tensors.push_back(tensor);
  }
  const auto model = Load(file);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto weights = PackedWeights::Load(**model, WeightPrecision::kAuto);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const MatrixWeights& in = (*weights)->layers[0].in;
  ASSERT_EQ(in.more.size(), 1u);
  EXPECT_EQ(in.packed.n, 64);
  EXPECT_EQ(in.more[0].first, 64);
  EXPECT_TRUE(kernels::IsQuantized(in.packed.type));
  EXPECT_TRUE(kernels::IsQuantized(in.more[0].packed.type));
  EXPECT_NE(in.packed.type, in.more[0].packed.type);
  EXPECT_TRUE((*weights)->facts.lossless);
}

}  // namespace
}  // namespace rivulet::gguf_hybrids
