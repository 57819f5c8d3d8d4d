// SPDX-License-Identifier: Apache-2.0
// What a config.json of a model with experts, or with layers of one part, means, and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"
#include "model/block_settings.h"
#include "model/hybrid_settings.h"

namespace rivulet {
namespace {

using kernels::RouterForm;
using ::testing::HasSubstr;

constexpr char kGraniteMoe[] = R"({"model_type": "granitemoehybrid", "vocab_size": 50,
  "hidden_size": 48, "num_hidden_layers": 2, "layer_types": ["mamba", "attention"],
  "mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_expand": 1,
  "num_attention_heads": 4, "shared_intermediate_size": 40, "intermediate_size": 24,
  "num_local_experts": 6, "num_experts_per_tok": 3, "residual_multiplier": 0.5})";
constexpr char kLfm2Moe[] = R"({"model_type": "lfm2_moe", "vocab_size": 50, "hidden_size": 48,
  "num_hidden_layers": 3, "num_attention_heads": 6, "layer_types": ["conv", "full_attention",
  "conv"], "num_dense_layers": 1, "intermediate_size": 64, "moe_intermediate_size": 20,
  "num_experts": 8, "num_experts_per_tok": 3, "routed_scaling_factor": 1.5})";
constexpr char kQwenMoe[] = R"({"model_type": "qwen3_5_moe_text", "vocab_size": 50,
  "hidden_size": 48, "num_hidden_layers": 4, "head_dim": 16, "num_attention_heads": 3,
  "num_key_value_heads": 1, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
  "linear_key_head_dim": 8, "linear_value_head_dim": 12})";
constexpr char kNemotron[] = R"({"model_type": "nemotron_h", "vocab_size": 50, "hidden_size": 48,
  "hybrid_override_pattern": "ME*-", "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2,
  "ssm_state_size": 16, "num_attention_heads": 4, "head_dim": 12, "intermediate_size": 56,
  "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28,
  "moe_shared_expert_intermediate_size": 44, "n_group": 4, "topk_group": 2})";

absl::StatusOr<ModelConfig> ParseExpertModel(absl::string_view text) {
  const absl::StatusOr<JsonValue> json = ParseSettings(text);
  if (!json.ok()) return json.status();
  return ParseBlockConfig(*json);
}

TEST(ExpertSettingsTest, GraniteHasExpertsBesideASharedOne) {
  const auto config = ParseExpertModel(kGraniteMoe);
  ASSERT_TRUE(config.ok()) << config.status();
  const ExpertsConfig& experts = *config->block().experts;
  EXPECT_EQ(experts.router.form, RouterForm::kSoftmax);
  EXPECT_EQ(experts.router.scale, 0.5f) << "the residual's multiplier";
  EXPECT_EQ(experts.size, 24);
  EXPECT_EQ(experts.shared_size, 40);
  EXPECT_EQ(config->block().layers[1].ffn, FeedForward::kExperts);
  const auto missing =
      ParseExpertModel(absl::StrReplaceAll(kGraniteMoe, {{R"("num_local_experts": 6,)", ""}}));
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(missing->block().experts->router.experts, 8) << "as transformers: not a dense model";
}

TEST(ExpertSettingsTest, Lfm2BeginsWithDenseLayersAsWideAsTheSettingSays) {
  const auto config = ParseExpertModel(kLfm2Moe);
  ASSERT_TRUE(config.ok()) << config.status();
  const BlockConfig& block = config->block();
  EXPECT_EQ(block.layers[0].ffn, FeedForward::kDense);
  EXPECT_EQ(block.layers[1].ffn, FeedForward::kExperts);
  EXPECT_EQ(config->ffn_size, 64);
  EXPECT_EQ(block.experts->router.form, RouterForm::kSigmoid);
  EXPECT_EQ(block.experts->router.epsilon, 1e-6);
  EXPECT_EQ(block.experts->router.scale, 1.5f);
  EXPECT_TRUE(block.experts->bias) << "by default";
  EXPECT_EQ(block.experts->shared_size, 0);
}

TEST(ExpertSettingsTest, QwenHasDefaultsAndMayHaveAVisionTower) {
  for (const std::string& text :
       {std::string(kQwenMoe),
        absl::StrReplaceAll(kQwenMoe, {{R"("head_dim")", R"("intermediate_size": 5, "head_dim")"}}),
        absl::StrCat(R"({"model_type": "qwen3_5_moe", "text_config": )", kQwenMoe, "}")}) {
    const auto config = ParseExpertModel(text);
    ASSERT_TRUE(config.ok()) << config.status();
    const ExpertsConfig& experts = *config->block().experts;
    EXPECT_EQ(experts.router.experts, 256);
    EXPECT_EQ(experts.router.chosen, 8);
    EXPECT_EQ(experts.size, 512);
    EXPECT_TRUE(experts.shared_gate);
  }
}

TEST(ExpertSettingsTest, ALayerOfNemotronIsOnePart) {
  for (const char* layers :
       {R"("hybrid_override_pattern": "ME*-")",
        R"("layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"])",
        R"("layer_types": ["mamba", "moe", "attention", "mlp"], "num_hidden_layers": 4)"}) {
    const auto config = ParseExpertModel(
        absl::StrReplaceAll(kNemotron, {{R"("hybrid_override_pattern": "ME*-")", layers}}));
    ASSERT_TRUE(config.ok()) << config.status();
    const BlockConfig& block = config->block();
    ASSERT_EQ(config->num_layers, 4);
    EXPECT_TRUE(block.layers[0].recurrent && block.layers[0].ffn == FeedForward::kNone);
    EXPECT_TRUE(!block.layers[1].mixes() && block.layers[1].ffn == FeedForward::kExperts);
    EXPECT_TRUE(block.layers[2].attends && block.layers[2].ffn == FeedForward::kNone);
    EXPECT_TRUE(!block.layers[3].mixes() && block.layers[3].ffn == FeedForward::kDense);
    const StateParts state = config->state();
    EXPECT_EQ(state.fixed_floats, size_t{4} * 16 * 16 + 3 * (64 + 2 * 2 * 16)) << "one layer";
    EXPECT_EQ(state.block_floats, size_t{64} * 4 * (12 + 12)) << "one layer";
    EXPECT_TRUE(block.squared_relu);
    EXPECT_EQ(block.experts->router.groups, 4);
    EXPECT_TRUE(IsSkippedTensor(*config, "mtp.layers.0.norm.weight"));
  }
  const auto dense = ParseExpertModel(absl::StrReplaceAll(kNemotron, {{"ME*-", "M-*-"}}));
  ASSERT_TRUE(dense.ok()) << dense.status();
  EXPECT_FALSE(dense->block().experts.has_value());
}

TEST(ExpertSettingsTest, WhatIsNotSupportedIsNamed) {
  struct Case {
    const char *text, *from, *to, *field, *what;
  };
  const Case cases[] = {
      {kGraniteMoe, R"("num_experts_per_tok": 3)", R"("num_experts_per_tok": 7)",
       "num_experts_per_tok", "is 7; allowed: at most num_local_experts, 6"},
      {kGraniteMoe, R"("intermediate_size": 24,)", R"("intermediate_size": 16777216,)",
       "intermediate_size", "of 6 experts: too many columns"},
      {kGraniteMoe, R"("num_local_experts": 6)", R"("num_local_experts": -1)", "num_local_experts",
       "is -1; allowed"},
      {kLfm2Moe, R"("num_dense_layers": 1)", R"("num_dense_layers": 4)", "num_dense_layers",
       "is 4; allowed"},
      {kLfm2Moe, "1.5", "0", "routed_scaling_factor", "is 0"},
      {kQwenMoe, R"("head_dim")", R"("norm_topk_prob": false, "head_dim")", "norm_topk_prob",
       "false"},
      {kQwenMoe, R"("head_dim")", R"("mlp_only_layers": [0], "head_dim")", "mlp_only_layers",
       "supported: []"},
      {kNemotron, "ME*-", "ME*X", "hybrid_override_pattern", R"("X"; supported: M, *, -, E)"},
      {kNemotron, "ME*-", "", "hybrid_override_pattern", "has 0 layers"},
      {kNemotron, R"("head_dim")", R"("num_hidden_layers": 5, "head_dim")",
       "hybrid_override_pattern", "has 4 layers"},
      {kNemotron, R"("head_dim")", R"("layer_types": ["mlp", "mlp", "mlp", "mlp"], "head_dim")",
       "hybrid_override_pattern", "layer_types names other layers"},
      {kNemotron, R"("hybrid_override_pattern": "ME*-",)", "", "hybrid_override_pattern",
       "missing"},
      {kNemotron, R"("n_group": 4)", R"("n_group": 3)", "n_group", "does not divide by it"},
      {kNemotron, R"("topk_group": 2)", R"("topk_group": 1)", "topk_group",
       "groups of 2 experts; allowed: at least num_experts_per_tok, 3"},
      {kNemotron, R"("n_groups": 2)", R"("n_groups": 3)", "n_groups", "mamba_num_heads, 4"},
      {kNemotron, R"("head_dim")", R"("mlp_hidden_act": "silu", "head_dim")", "mlp_hidden_act",
       "\"silu\""},
      {kNemotron, R"("head_dim")", R"("sliding_window": 8, "head_dim")", "sliding_window", "is 8"}};
  for (const Case& one : cases) {
    const std::string text = absl::StrReplaceAll(one.text, {{one.from, one.to}});
    ASSERT_NE(text, one.text) << one.from;
    const auto config = ParseExpertModel(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(GetErrorDetail(config.status()).field, one.field) << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(one.what));
  }
}

}  // namespace
}  // namespace rivulet
