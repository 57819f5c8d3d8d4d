// SPDX-License-Identifier: Apache-2.0
// What a config.json of a hybrid means: which layers attend, sizes, positions, and what is refused.
#include "model/hybrid_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"
#include "model/block_settings.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

constexpr char kGranite[] = R"({"model_type": "granitemoehybrid", "vocab_size": 50,
  "hidden_size": 48, "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
  "mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_expand": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "shared_intermediate_size": 40,
  "num_local_experts": 0, "position_embedding_type": "nope", "attention_multiplier": 0.125,
  "max_position_embeddings": 4096, "tie_word_embeddings": true})";
constexpr char kQwen[] = R"({"model_type": "qwen3_5_text", "vocab_size": 50, "hidden_size": 48,
  "num_hidden_layers": 8, "head_dim": 16, "num_attention_heads": 3, "num_key_value_heads": 1,
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
  "linear_value_head_dim": 12, "intermediate_size": 40, "max_position_embeddings": 262144,
  "rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.5},
  "hidden_act": "silu"})";

constexpr char kLfm2[] = R"({"model_type": "lfm2", "vocab_size": 50, "hidden_size": 48,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
  "layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 12288,
  "intermediate_size": 64})";
constexpr char kFalcon[] = R"({"model_type": "falcon_h1", "vocab_size": 50, "hidden_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "intermediate_size": 40, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16,
  "mamba_d_state": 16, "key_multiplier": 0.5, "attention_in_multiplier": 2,
  "attention_out_multiplier": 3, "lm_head_multiplier": 0.25, "ssm_in_multiplier": 2,
  "ssm_multipliers": [1, 2, 3, 4, 5], "rope_theta": 100000000000.0})";

std::string With(const char* text, absl::string_view from, absl::string_view to) {
  const std::string changed = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_NE(changed, text) << from;
  return changed;
}

absl::StatusOr<ModelConfig> ParseHybrid(absl::string_view text) {
  const absl::StatusOr<JsonValue> json = ParseSettings(text);
  if (!json.ok()) return json.status();
  return ParseBlockConfig(*json);
}

std::vector<bool> Attends(const absl::StatusOr<ModelConfig>& config) {
  std::vector<bool> attends;
  for (const LayerParts& layer : config->block().layers) attends.push_back(layer.attends);
  return attends;
}

void ExpectRefusedHybrid(const std::string& text, absl::string_view reason, absl::string_view field,
                         absl::string_view what) {
  const auto config = ParseHybrid(text);
  ASSERT_FALSE(config.ok()) << text;
  EXPECT_EQ(GetErrorDetail(config.status()).reason, reason) << config.status();
  EXPECT_EQ(GetErrorDetail(config.status()).field, field) << config.status();
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(std::string(what)));
}

TEST(HybridSettingsTest, LayersThatAttendKeepKeysAndValuesAndTheOthersAState) {
  const auto config = ParseHybrid(kGranite);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Attends(config), (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(config->block().softmax->rope.frequencies.empty()) << "no positions";
  EXPECT_EQ(config->max_tokens(), 4097) << "trained positions, and one that is not fed";
  EXPECT_EQ(config->model_max_tokens(), std::nullopt);
  const StateParts state = config->state();
  const size_t layer = size_t{6} * 16 * 8 + 3 * (48 + 2 * 16);
  EXPECT_EQ(state.fixed_floats, (2 * layer + 15) / 16 * 16);
  EXPECT_EQ(state.block_floats, size_t{64} * 2 * (12 + 12));
  EXPECT_EQ(state.recurrent_at[2], layer);
}

TEST(HybridSettingsTest, WithoutLayerTypesEveryFourthLayerOfQwenAttends) {
  const auto config = ParseHybrid(kQwen);
  ASSERT_TRUE(config.ok()) << config.status();
  const SoftmaxConfig& softmax = *config->block().softmax;
  EXPECT_EQ(Attends(config),
            (std::vector<bool>{false, false, false, true, false, false, false, true}));
  EXPECT_EQ(config->max_tokens(), kDefaultContext + 1) << "fewer than the trained positions";
  EXPECT_EQ(softmax.rope.frequencies,
            (std::vector<double>{1, std::pow(100.0, -2.0 / 8), std::pow(100.0, -4.0 / 8),
                                 std::pow(100.0, -6.0 / 8)}));
  const auto every_second =
      ParseHybrid(With(kQwen, R"("hidden_act")", R"("full_attention_interval": 2, "hidden_act")"));
  EXPECT_TRUE(Attends(every_second)[1]);
}

TEST(HybridSettingsTest, TheOuterSettingsOfAModelWithAVisionTowerSayWhetherTheHeadIsTied) {
  const std::string is_true = R"("tie_word_embeddings": true, )";
  for (const std::string& tied :
       {is_true, std::string(R"("tie_word_embeddings": false, )"), std::string()}) {
    const auto config = ParseHybrid(absl::StrCat(
        R"({"model_type": "qwen3_5", "vision_config": {"depth": 1}, )", tied, R"("text_config": )",
        With(kQwen, R"("hidden_act")", R"("tie_word_embeddings": true, "hidden_act")"), "}"));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->block().tied_head, tied == is_true) << "false where it is missing";
    EXPECT_TRUE(IsSkippedTensor(*config, "mtp.fc.weight"));
    EXPECT_TRUE(IsSkippedTensor(*config, "model.visual.pos_embed.weight"));
    EXPECT_EQ(IsSkippedTensor(*config, "lm_head.weight"), config->block().tied_head);
    EXPECT_FALSE(IsSkippedTensor(*config, "model.language_model.norm.weight"));
  }
  EXPECT_FALSE(IsSkippedTensor(*ParseHybrid(kGranite), "mtp.fc.weight"));
  ExpectRefusedHybrid(R"({"model_type": "qwen3_5"})", "INVALID_CONFIG", "text_config", "missing");
}

TEST(HybridSettingsTest, TheFeedForwardOfLfm2IsAdjustedUnlessToldOtherwise) {
  const auto config = ParseHybrid(kLfm2);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ffn_size, 8192) << "of block_ff_dim, which goes before intermediate_size";
  EXPECT_TRUE(config->block().tied_head) << "by default";
  EXPECT_EQ(Attends(config), (std::vector<bool>{false, true, false}));
  EXPECT_DOUBLE_EQ(config->block().softmax->rope.frequencies[1], std::pow(1e6, -2.0 / 8));
  EXPECT_EQ(config->state().fixed_floats, size_t{2 * 2 * 48});
  const auto plain =
      ParseHybrid(With(kLfm2, R"("block_ff_dim": 12288)",
                       R"("block_auto_adjust_ff_dim": false, "tie_embedding": false)"));
  EXPECT_EQ(plain->ffn_size, 64);
  EXPECT_FALSE(plain->block().tied_head);
  const auto old = ParseHybrid(With(kLfm2, R"("layer_types": ["conv", "full_attention", "conv"])",
                                    R"("full_attn_idxs": [2])"));
  EXPECT_EQ(Attends(old), (std::vector<bool>{false, false, true}));
}

TEST(HybridSettingsTest, EveryLayerOfFalconH1IsBothAndScaled) {
  const auto config = ParseHybrid(kFalcon);
  ASSERT_TRUE(config.ok()) << config.status();
  const BlockConfig& block = config->block();
  EXPECT_FLOAT_EQ(block.softmax->scale, 0.25f * 0.5f * 4);
  EXPECT_FLOAT_EQ(block.softmax->output_scale, 6);
  EXPECT_FLOAT_EQ(block.logits_scaling, 4);
  EXPECT_EQ(block.mamba_multipliers, (std::vector<float>{2, 4, 6, 8, 10}));
  EXPECT_EQ(block.mamba_norm, MambaNorm::kNone) << "by default";
  const StateParts state = config->state();
  EXPECT_GT(state.recurrent_at[1], 0u);
  EXPECT_EQ(state.cache_offset[1], size_t{64} * 2 * 32);
  for (const auto& [first, norm] :
       {std::pair{"true", MambaNorm::kNormFirst}, {"false", MambaNorm::kGateFirst}}) {
    const auto normed =
        ParseHybrid(With(kFalcon, R"("key_multiplier")",
                         absl::StrCat(R"("mamba_rms_norm": true, "mamba_norm_before_gate": )",
                                      first, R"(, "key_multiplier")")));
    EXPECT_EQ(normed->block().mamba_norm, norm) << first;
  }
}

// What changes the mathematics and is not supported.
TEST(HybridSettingsTest, WhatIsNotSupportedIsNamed) {
  const auto granite = [](absl::string_view from, absl::string_view to) {
    return With(kGranite, from, to);
  };
  const auto qwen = [](absl::string_view more) {
    return With(kQwen, R"("hidden_act")", absl::StrCat(more, R"(, "hidden_act")"));
  };
  const std::string unsupported = "UNSUPPORTED_MODEL", invalid = "INVALID_CONFIG";
  ExpectRefusedHybrid(granite(R"("num_local_experts": 0)", R"("num_local_experts": 8)"), invalid,
                      "intermediate_size", "missing");
  ExpectRefusedHybrid(granite("\"nope\"", "\"alibi\""), unsupported, "position_embedding_type",
                      "\"alibi\"");
  ExpectRefusedHybrid(granite(R"(["mamba", )", R"(["moe", )"), unsupported, "layer_types",
                      "\"moe\"");
  ExpectRefusedHybrid(granite(R"(["mamba", )", "["), invalid, "layer_types", "has 2 entries");
  ExpectRefusedHybrid(granite(R"("num_key_value_heads": 2)", R"("num_key_value_heads": 3)"),
                      invalid, "num_key_value_heads", "does not divide");
  ExpectRefusedHybrid(granite(R"("mamba_d_head": 8)", R"("mamba_d_head": 9)"), invalid,
                      "mamba_n_heads", "mamba_expand * hidden_size = 48");
  ExpectRefusedHybrid(With(kFalcon, "[1, 2, 3, 4, 5]", "[1, 2, 3]"), invalid, "ssm_multipliers",
                      "has 3 entries; allowed: 5");
  ExpectRefusedHybrid(With(kFalcon, "[1, 2, 3, 4, 5]", "[1, 2, 0, 4, 5]"), invalid,
                      "ssm_multipliers", "holds 0");
  ExpectRefusedHybrid(With(kFalcon, R"("mamba_d_ssm": 64)", R"("mamba_d_ssm": 65)"), invalid,
                      "mamba_n_heads", "mamba_d_ssm = 65");
  ExpectRefusedHybrid(With(kLfm2, R"("layer_types": ["conv", "full_attention", "conv"])",
                           R"("full_attn_idxs": [3])"),
                      invalid, "full_attn_idxs", "0 to 2");
  ExpectRefusedHybrid(With(kLfm2, R"("block_ff_dim")", R"("use_pos_enc": false, "block_ff_dim")"),
                      unsupported, "use_pos_enc", "false");
  ExpectRefusedHybrid(With(granite("\"nope\"", "\"rope\"").c_str(), R"("num_attention_heads": 4)",
                           R"("num_attention_heads": 16)"),
                      invalid, "partial_rotary_factor", "heads of 3 values");
  ExpectRefusedHybrid(qwen(R"("attn_output_gate": false)"), unsupported, "attn_output_gate",
                      "false");
  ExpectRefusedHybrid(qwen(R"("mlp_only_layers": [1])"), unsupported, "mlp_only_layers", "[]");
  ExpectRefusedHybrid(qwen(R"("sliding_window": 64)"), unsupported, "sliding_window", "64");
  ExpectRefusedHybrid(With(kQwen, R"("default")", R"("longrope")"), unsupported,
                      "rope_parameters.rope_type", "\"longrope\"");
  ExpectRefusedHybrid(With(kQwen, R"("default")", R"("linear")"), invalid, "rope_parameters.factor",
                      "missing");
  ExpectRefusedHybrid(With(kQwen, "100.0", "0.5"), invalid, "rope_parameters.rope_theta",
                      "allowed: at least 1");
  ExpectRefusedHybrid(With(kQwen, R"("default")", R"("linear", "factor": 0.5)"), invalid,
                      "rope_parameters.factor", "allowed: at least 1");
  ExpectRefusedHybrid(With(kLfm2, R"("block_ff_dim")",
                           R"("rope_scaling": {"type": "yarn", "factor": 2}, "block_ff_dim")"),
                      invalid, "rope_scaling.original_max_position_embeddings", "missing");
  const std::string deep = With(kQwen, R"("num_hidden_layers": 8, "head_dim": 16)",
                                R"("num_hidden_layers": 4096, "head_dim": 256)");
  ExpectRefusedHybrid(With(deep.c_str(), R"("num_attention_heads": 3, "num_key_value_heads": 1)",
                           R"("num_attention_heads": 4096, "num_key_value_heads": 4096)"),
                      invalid, "num_hidden_layers", "allowed: at most 17179869184");
  ExpectRefusedHybrid(With(kQwen, "0.5}", "0.05}"), invalid,
                      "rope_parameters.partial_rotary_factor", "even number");
  ExpectRefusedHybrid(With(kQwen, R"("partial_rotary_factor": 0.5)", R"("unheard_of": 1)"),
                      unsupported, "rope_parameters.unheard_of", "unknown");
}

// Figures of transformers 5.23 (modeling_rope_utils.py), for heads of 8 values and theta 100.
TEST(RopeTest, TypesChangeTheFrequencies) {
  const auto rope = [](absl::string_view more) {
    const auto config =
        ParseHybrid(With(kQwen, R"("rope_type": "default", "partial_rotary_factor": 0.5)",
                         absl::StrCat(R"("partial_rotary_factor": 0.5, )", more)));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->block().softmax->rope : RopeConfig();
  };
  const RopeConfig plain = rope(R"("rope_type": "default")");
  const RopeConfig linear = rope(R"("type": "linear", "factor": 4)");
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(linear.frequencies[i], plain.frequencies[i] / 4);
  }
  // Wavelengths of 6.3, 19.9, 62.8 and 199 positions; trained for 64: full, between, divided.
  const RopeConfig llama3 = rope(
      R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
         "original_max_position_embeddings": 64)");
  const double smooth = (64 * plain.frequencies[1] / (2 * M_PI) - 1) / 3;
  EXPECT_DOUBLE_EQ(llama3.frequencies[0], plain.frequencies[0]);
  EXPECT_DOUBLE_EQ(llama3.frequencies[1],
                   (1 - smooth) * plain.frequencies[1] / 8 + smooth * plain.frequencies[1]);
  EXPECT_DOUBLE_EQ(llama3.frequencies[3], plain.frequencies[3] / 8);
  // turns(32) is below 0, turns(1) is 1.9: the ramp runs from 0 to 2.
  const RopeConfig yarn =
      rope(R"("rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 57)");
  EXPECT_DOUBLE_EQ(yarn.frequencies[0], plain.frequencies[0]);
  EXPECT_DOUBLE_EQ(yarn.frequencies[1], plain.frequencies[1] * (0.5 / 4 + 0.5));
  EXPECT_DOUBLE_EQ(yarn.frequencies[2], plain.frequencies[2] / 4);
  EXPECT_DOUBLE_EQ(yarn.factor, 0.1 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(plain.factor, 1);
}

TEST(RopeTest, WhichSettingsCountIsAsInTransformers) {
  const auto turned = [](const char* text, absl::string_view more) {
    const auto config = ParseHybrid(
        With(text, R"("num_attention_heads")", absl::StrCat(more, R"(, "num_attention_heads")")));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->block().softmax->rope.frequencies : std::vector<double>();
  };
  // Type default takes partial_rotary_factor from Qwen3.5 alone.
  const char* const half = R"("rope_parameters": {"partial_rotary_factor": 0.5})";
  EXPECT_EQ(turned(kFalcon, half).size(), 8u);
  EXPECT_EQ(turned(kLfm2, R"("partial_rotary_factor": 0.5)").size(), 4u);
  EXPECT_EQ(
      turned(kFalcon,
             R"("rope_scaling": {"type": "linear", "factor": 2, "partial_rotary_factor": 0.5})")
          .size(),
      4u);
  // An empty rope_scaling is none.
  EXPECT_EQ(turned(kLfm2, R"("rope_scaling": {}, "rope_parameters": {"rope_theta": 16})")[1], 0.5);
  // The trained length is max_position_embeddings where it is missing.
  const char* const llama3 = R"("max_position_embeddings": 64, "rope_scaling": {"factor": 8,
    "rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4)";
  EXPECT_EQ(turned(kLfm2, absl::StrCat(llama3, "}")),
            turned(kLfm2, absl::StrCat(llama3, R"(, "original_max_position_embeddings": 64})")));
}

}  // namespace
}  // namespace rivulet
