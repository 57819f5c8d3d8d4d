// SPDX-License-Identifier: Apache-2.0
// What a config.json of a checkpoint means: which settings are honoured, and that none that changes
// the mathematics is passed over.
#include "model/block_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

constexpr char kFla[] = R"("vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2,
  "num_heads": 2, "hidden_act": "swish", "norm_eps": 1e-6, "attn": null)";
constexpr char kMamba2[] = R"({"model_type": "mamba2", "vocab_size": 50, "hidden_size": 64,
  "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2,
  "expand": 2, "layer_norm_epsilon": 1e-5,
  "time_step_limit": [0.0, {"__float__": "Infinity"}]})";
constexpr char kRwkv7[] = R"({"model_type": "rwkv7", "vocab_size": 50, "hidden_size": 64,
  "num_hidden_layers": 2, "head_dim": 32, "hidden_act": "sqrelu", "value_dim": [64, 64]})";

// A model of flash-linear-attention with `more` settings.
std::string Fla(absl::string_view type, absl::string_view more = "") {
  return absl::StrCat("{\"model_type\": \"", type, "\", ", kFla, more.empty() ? "" : ", ", more,
                      "}");
}

absl::StatusOr<ModelConfig> ParseKind(absl::string_view text) {
  const absl::StatusOr<JsonValue> json = ParseSettings(text);
  if (!json.ok()) return json.status();
  return ParseBlockConfig(*json);
}

// Refused with this reason and field, in a message that holds `what`.
void ExpectRefused(const std::string& text, absl::string_view reason, absl::string_view field,
                   absl::string_view what) {
  const auto config = ParseKind(text);
  ASSERT_FALSE(config.ok()) << text;
  const ErrorDetail detail = GetErrorDetail(config.status());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(detail.reason, reason) << config.status();
  EXPECT_EQ(detail.field, field) << config.status();
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(std::string(what)));
}

constexpr char kMolformer[] = R"({"model_type": "molformer", "architectures":
  ["MolformerForCausalLM"], "vocab_size": 52, "hidden_size": 48, "num_hidden_layers": 4,
  "num_attention_heads": 3, "intermediate_size": 40, "num_random_features": 24, "is_decoder": true,
  "linear_attention_eps": 0.25, "deterministic_eval": false, "eos_token_id": 1})";

TEST(BlockSettingsTest, MolformerIsALinearTransformerOfOurOwnFormat) {
  const auto config = ParseKind(kMolformer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_STREQ(config->kind(), "linear");
  EXPECT_FALSE(config->own_format());
  EXPECT_EQ(config->key_features(), 24);
  EXPECT_EQ(config->key_dim, 16);
  EXPECT_EQ(config->ffn_size, 40);
  EXPECT_EQ(config->encoder().normalizer_value, 0.25f);
  EXPECT_EQ(config->encoder().rope.frequencies.size(), 8u);
  EXPECT_TRUE(config->encoder().redrawn_elsewhere);
  EXPECT_EQ(config->eos_token_id, 1);
  const auto defaults = ParseKind(R"({"model_type": "molformer"})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->vocab_size, 2362);
  EXPECT_EQ(defaults->num_heads * defaults->num_layers * defaults->key_features(), 12 * 12 * 32);
  EXPECT_EQ(defaults->norm_eps, 1e-12f);
  EXPECT_EQ(defaults->eos_token_id, 1);
}

TEST(BlockSettingsTest, OtherModelsWithMolformersNamesAreRefused) {
  constexpr char kUnsupported[] = "UNSUPPORTED_MODEL", kInvalid[] = "INVALID_CONFIG";
  const auto with = [](absl::string_view from, absl::string_view to) {
    return absl::StrReplaceAll(kMolformer, {{from, to}});
  };
  ExpectRefused(with("MolformerForCausalLM", "MolformerForMaskedLM"), kUnsupported, "architectures",
                "encoder has no causal form");
  ExpectRefused(with(R"("is_decoder": true)", R"("is_decoder": false)"), kUnsupported, "is_decoder",
                "false");
  ExpectRefused(with(R"("is_decoder": true)", R"("add_cross_attention": true)"), kUnsupported,
                "add_cross_attention", "true");
  ExpectRefused(with(R"("is_decoder": true)", R"("feature_map_kernel": "exp")"), kUnsupported,
                "feature_map_kernel", "exp");
  ExpectRefused(with(R"("is_decoder": true)", R"("hidden_act": "relu")"), kUnsupported,
                "hidden_act", "relu");
  ExpectRefused(with(R"("is_decoder": true)", R"("rope_theta": 500)"), kUnsupported, "rope_theta",
                "500");
  ExpectRefused(with(R"("num_attention_heads": 3)", R"("num_attention_heads": 16)"), kInvalid,
                "num_attention_heads", "even");
}

TEST(BlockSettingsTest, SizesFollowFromTheSettingsOfEachKind) {
  const auto retnet = ParseKind(Fla("retnet"));
  ASSERT_TRUE(retnet.ok()) << retnet.status();
  EXPECT_EQ(retnet->key_dim, 32);
  EXPECT_EQ(retnet->value_dim, 64);  // expand_v is 2 unless told otherwise
  EXPECT_EQ(retnet->ffn_size, 256);  // 256 ceil(64 * 2 * 2/3 / 256)
  const auto gla = ParseKind(Fla("gla", R"("clamp_min": -1.5, "gate_logit_normalizer": 8)"));
  ASSERT_TRUE(gla.ok()) << gla.status();
  EXPECT_EQ(gla->key_dim, 16);  // expand_k is 0.5
  EXPECT_EQ(gla->block().gate_floor, -1.5f);
  EXPECT_EQ(gla->block().gate_normalizer, 8);
  const auto hgrn2 = ParseKind(absl::StrReplaceAll(Fla("hgrn2", R"("expand_ratio": 32)"),
                                                   {{"\"num_heads\": 2", "\"num_heads\": null"}}));
  ASSERT_TRUE(hgrn2.ok()) << hgrn2.status();
  EXPECT_EQ(hgrn2->num_heads, 2);
  EXPECT_EQ(hgrn2->value_dim, 32);
  const auto shared = ParseKind(Fla("gated_deltanet", R"("head_dim": 8, "num_v_heads": 6)"));
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->num_heads, 6);
  EXPECT_EQ(shared->keys(), 16);
  EXPECT_EQ(shared->values(), 6 * 16);
  EXPECT_EQ(shared->block().conv_channels, 2 * 16 + 6 * 16);
  const auto delta = ParseKind(Fla("delta_net", R"("conv_size": 3, "allow_neg_eigval": true)"));
  ASSERT_TRUE(delta.ok()) << delta.status();
  EXPECT_EQ(delta->block().conv_width, 3);
  EXPECT_TRUE(delta->block().negative_eigenvalues);
  EXPECT_FALSE(delta->block().output_gate);
  EXPECT_EQ(delta->block().conv_channels, 3 * 64);
  const auto gated = ParseKind(Fla("gated_deltanet", R"("head_dim": 16, "intermediate_size": 96)"));
  ASSERT_TRUE(gated.ok()) << gated.status();
  EXPECT_EQ(gated->value_dim, 32);
  EXPECT_EQ(gated->ffn_size, 96);
  EXPECT_TRUE(gated->block().output_gate);
  const auto kda = ParseKind(Fla("kda", R"("head_dim": 16)"));
  ASSERT_TRUE(kda.ok()) << kda.status();
  EXPECT_EQ(kda->value_dim, 16);
  const auto mamba2 = ParseKind(kMamba2);
  ASSERT_TRUE(mamba2.ok()) << mamba2.status();
  EXPECT_EQ(mamba2->block().conv_channels, 128 + 2 * 2 * 16);
  EXPECT_EQ(mamba2->ffn_size, 0);
  EXPECT_EQ(mamba2->block().dt_max, std::numeric_limits<float>::infinity());
  const auto rwkv7 = ParseKind(kRwkv7);
  ASSERT_TRUE(rwkv7.ok()) << rwkv7.status();
  EXPECT_EQ(rwkv7->num_heads, 2);
  EXPECT_EQ(rwkv7->ffn_size, 256);
  EXPECT_TRUE(rwkv7->block().first_norm);
}

TEST(BlockSettingsTest, AStateHasItsPartsSideBySide) {
  const BlockState gla(ParseKind(Fla("gla"))->state());
  EXPECT_EQ(gla.floats_per_layer, size_t{2 * 16 * 32});
  const ModelConfig config = *ParseKind(kRwkv7);
  const BlockState rwkv7(config.state());
  EXPECT_EQ(rwkv7.mixer_shift, size_t{2 * 32 * 32});
  EXPECT_EQ(rwkv7.ffn_shift, rwkv7.mixer_shift + 64);
  EXPECT_EQ(rwkv7.floats_per_slot, 2 * (rwkv7.ffn_shift + 64));
  const BlockState mamba2(ParseKind(kMamba2)->state());
  EXPECT_EQ(mamba2.conv, size_t{8 * 16 * 16});
  EXPECT_EQ(mamba2.floats_per_layer, mamba2.conv + size_t{3 * 192});
}

TEST(BlockSettingsTest, OldSpellingsMeanTheSame) {
  const auto bare =
      ParseKind(absl::StrReplaceAll(kMamba2, {{R"({"__float__": "Infinity"})", "Infinity"}}));
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->block().dt_max, std::numeric_limits<float>::infinity());
  const auto fla = ParseKind(absl::StrReplaceAll(
      kMamba2,
      {{"layer_norm_epsilon", "norm_eps"},
       {R"("time_step_limit": [0.0, {"__float__": "Infinity"}])", R"("dt_limit": [0.5, 2])"}}));
  ASSERT_TRUE(fla.ok()) << fla.status();
  EXPECT_EQ(fla->block().dt_min, 0.5f);
  EXPECT_EQ(fla->block().dt_max, 2.0f);
  ExpectRefused(absl::StrReplaceAll(kMamba2, {{"\"expand\"", "\"norm_eps\": 1e-5, \"expand\""}}),
                "INVALID_CONFIG", "norm_eps", "stands beside layer_norm_epsilon");
}

// What released versions of the libraries wrote.
TEST(BlockSettingsTest, SettingsOfEarlierVersionsAreKnown) {
  const auto with = [](absl::string_view config, absl::string_view more) {
    return absl::StrReplaceAll(
        config, {{"\"num_hidden_layers\"", absl::StrCat(more, ", \"num_hidden_layers\"")}});
  };
  const std::string known[] = {
      with(kMamba2, R"("rms_norm": true, "norm_before_gate": true, "time_step_rank": "auto")"),
      absl::StrReplaceAll(
          with(kMamba2, R"("A_init_range": [1, 16], "conv_init": 0.5, "dt_init_floor": 1e-4,
                           "dt_max": 0.1, "dt_min": 0.001, "rmsnorm": true)"),
          {{"layer_norm_epsilon", "norm_eps"}, {"time_step_limit", "dt_limit"}}),
      with(kRwkv7, R"("_attn_implementation_autoset": true, "tokenizer_class": "Rwkv")"),
      Fla("gla", R"("share_conv_kernel": true)"),
      Fla("gla", R"("of_tomorrow": null, "of_the_day_after": false)"),
      Fla("delta_net", R"("share_conv_kernel": false)"),
  };
  for (const std::string& text : known)
    EXPECT_TRUE(ParseKind(text).ok()) << ParseKind(text).status();
  const auto old =
      ParseKind(absl::StrReplaceAll(Fla("gla"), {{"\"norm_eps\": 1e-6", "\"rms_norm_eps\": 0.5"}}));
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->norm_eps, 0.5f);
}

TEST(BlockSettingsTest, WhatChangesTheMathematicsIsRefusedByName) {
  const std::pair<std::string, std::string> refused[] = {
      {Fla("linear_attn"), "feature_map"},  // missing, so that it has parameters
      {Fla("linear_attn", R"("feature_map": "elu")"), "feature_map"},
      {Fla("linear_attn", R"("feature_map": "identity", "norm_k": true)"), "norm_k"},
      {Fla("linear_attn", R"("feature_map": "identity", "norm_q": true)"), "norm_q"},
      {Fla("linear_attn", R"("feature_map": "identity", "norm_feature_map": true)"),
       "norm_feature_map"},
      {Fla("gla", R"("use_gv": true)"), "use_gv"},
      {Fla("gla", R"("use_gk": false)"), "use_gk"},
      {Fla("gla", R"("feature_map": "relu")"), "feature_map"},
      {Fla("gla", R"("num_kv_heads": 1)"), "num_kv_heads"},
      {Fla("gla", R"("use_short_conv": true)"), "use_short_conv"},
      {Fla("gla", R"("use_output_gate": false)"), "use_output_gate"},
      {Fla("gla", R"("elementwise_affine": false)"), "elementwise_affine"},
      {Fla("retnet", R"("attnres_block_size": 4)"), "attnres_block_size"},
      {Fla("hgrn2", R"("expand_ratio": 32, "use_lower_bound": false)"), "use_lower_bound"},
      {Fla("delta_net", R"("use_short_conv": false)"), "use_short_conv"},
      {Fla("delta_net", R"("conv_bias": true)"), "conv_bias"},
      {Fla("delta_net", R"("use_beta": false)"), "use_beta"},
      {Fla("delta_net", R"("share_conv_kernel": true)"), "share_conv_kernel"},
      {Fla("delta_net", R"("use_output_norm": false)"), "use_output_norm"},
      {Fla("delta_net", R"("qk_norm": "sum")"), "qk_norm"},
      {Fla("delta_net", R"("qk_activation": "elu")"), "qk_activation"},
      {Fla("gated_deltanet", R"("output_gate_activation": "sigmoid")"), "output_gate_activation"},
      {Fla("kda", R"("num_v_heads": 4)"), "num_v_heads"},
      {Fla("kda", R"("safe_gate": true)"), "safe_gate"},
      {Fla("kda", R"("lower_bound": -5.0)"), "lower_bound"},
      {Fla("gla", R"("hidden_ratio_of_tomorrow": 3)"), "hidden_ratio_of_tomorrow"},
      {absl::StrReplaceAll(Fla("gla"), {{"swish", "powlu"}}), "hidden_act"},
      {absl::StrReplaceAll(Fla("gla"), {{"\"attn\": null", R"("attn": {"layers": [1]})"}}), "attn"},
      {absl::StrReplaceAll(kMamba2, {{"\"expand\"", "\"rmsnorm\": false, \"expand\""}}), "rmsnorm"},
      {absl::StrReplaceAll(kMamba2, {{"\"expand\"", "\"rms_norm\": false, \"expand\""}}),
       "rms_norm"},
      {absl::StrReplaceAll(kMamba2, {{"\"expand\"", "\"norm_before_gate\": true, \"expand\""},
                                     {"layer_norm_epsilon", "norm_eps"}}),
       "norm_before_gate"},
      {absl::StrReplaceAll(kMamba2, {{"\"expand\"", "\"D_has_hdim\": true, \"expand\""}}),
       "D_has_hdim"},
      {absl::StrReplaceAll(kRwkv7, {{"[64, 64]", "[64, 32]"}}), "value_dim"},
      {Fla("llama"), "model_type"},
  };
  for (const auto& [text, field] : refused) ExpectRefused(text, "UNSUPPORTED_MODEL", field, field);
  ExpectRefused(Fla("gated_deltanet", R"("num_v_heads": 3)"), "INVALID_CONFIG", "num_v_heads",
                "is 3; allowed: a multiple of num_heads, 2");
  ExpectRefused(absl::StrReplaceAll(Fla("gla"), {{"\"attn\": null", R"("attn": {"layers": [1]})"}}),
                "UNSUPPORTED_MODEL", "attn", "softmax attention");
}

TEST(BlockSettingsTest, WhatCannotBeIsNamed) {
  ExpectRefused(Fla("gla", R"("clamp_min": 1)"), "INVALID_CONFIG", "clamp_min", "at most 0");
  ExpectRefused(Fla("gla", R"("expand_v": 0.52)"), "INVALID_CONFIG", "expand_v",
                "do not divide by 2");
  ExpectRefused(Fla("gla", R"("eos_token_id": 50)"), "INVALID_CONFIG", "eos_token_id", "0 to 49");
  ExpectRefused(Fla("gla", R"("hidden_ratio": "wide")"), "INVALID_CONFIG", "hidden_ratio",
                "above 0");
  for (const char* number : {"0", "1e-60", "1e60"}) {
    ExpectRefused(absl::StrReplaceAll(Fla("gla"), {{"1e-6", number}}), "INVALID_CONFIG", "norm_eps",
                  absl::StrCat("is ", number, "; allowed: a number above 0 that float32 can hold"));
  }
  ExpectRefused(absl::StrReplaceAll(kMamba2, {{"time_step_limit", "dt_limit"}, {"0.0", "-1"}}),
                "INVALID_CONFIG", "dt_limit", "holds -1");
  ExpectRefused(Fla("delta_net", R"("conv_size": 9)"), "INVALID_CONFIG", "conv_size", "1 to 8");
  ExpectRefused(absl::StrReplaceAll(Fla("gla"), {{"\"hidden_size\": 64, ", ""}}), "INVALID_CONFIG",
                "hidden_size", "is missing");
  ExpectRefused(absl::StrReplaceAll(kMamba2, {{"\"n_groups\": 2", "\"n_groups\": 3"}}),
                "INVALID_CONFIG", "n_groups", "does not divide");
  ExpectRefused(absl::StrReplaceAll(kMamba2, {{"\"expand\": 2", "\"expand\": 3"}}),
                "INVALID_CONFIG", "expand", "are not num_heads");
  ExpectRefused(absl::StrReplaceAll(kMamba2, {{"[0.0, {\"__float__\": \"Infinity\"}]", "[2, 1]"}}),
                "INVALID_CONFIG", "time_step_limit", "minimum above its maximum");
  ExpectRefused(absl::StrReplaceAll(kRwkv7, {{"\"head_dim\": 32", "\"head_dim\": 48"}}),
                "INVALID_CONFIG", "head_dim", "does not divide");
  ExpectRefused(
      absl::StrReplaceAll(Fla("gla"), {{"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4096"},
                                       {"\"hidden_size\": 64", "\"hidden_size\": 65536"}}),
      "INVALID_CONFIG", "num_hidden_layers", "larger than 16 GiB");
}

TEST(BlockSettingsTest, GenerationMayEndAtSeveralTokens) {
  EXPECT_FALSE(ParseKind(Fla("gla"))->eos_token_id.has_value());
  const auto one = ParseKind(Fla("gla", R"("eos_token_id": 7)"));
  EXPECT_EQ(one->eos_token_id, 7);
  EXPECT_TRUE(one->more_eos_token_ids.empty());
  const auto two = ParseKind(Fla("gla", R"("eos_token_id": [7, 3])"));
  EXPECT_EQ(two->eos_token_id, 7);
  EXPECT_EQ(two->more_eos_token_ids, std::vector<int32_t>{3});
  ExpectRefused(Fla("gla", R"("eos_token_id": [7, -1])"), "INVALID_CONFIG", "eos_token_id",
                "is -1");
}

}  // namespace
}  // namespace rivulet
