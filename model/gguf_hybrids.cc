// SPDX-License-Identifier: Apache-2.0
// Hybrids in GGUF files. What llama.cpp's converter changes in weights stays as it is in the file,
// because blocks of integers cannot be changed without loss, and the checkpoint is presented so
// that the numbers mean the same: another order of heads or of the pairs of a rotation, and
// multipliers of 1 where the file has the products.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/gguf_settings.h"

namespace rivulet {
namespace {

const char* Json(bool value) { return value ? "true" : "false"; }

// The layers with attention, all alike.
struct Attention {
  std::vector<bool> layers;
  int64_t heads = 1, kv_heads = 1, head_dim = 0;

  std::string LayerTypes(const char* recurrent, const char* attends) const {
    return absl::StrCat("[",
                        absl::StrJoin(layers, ", ",
                                      [&](std::string* out, bool at) {
                                        absl::StrAppend(out, "\"", at ? attends : recurrent, "\"");
                                      }),
                        "]");
  }
};

// One value of the layers with attention.
absl::Status Same(const GgufSettings& settings, absl::string_view key,
                  const std::vector<int64_t>& values, const std::vector<bool>& layers,
                  int64_t* out) {
  std::optional<int64_t> found;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i]) continue;
    if (values[i] == 0) return settings.Invalid(key, absl::StrCat("is 0 in layer ", i));
    if (found && *found != values[i]) {
      return settings.Unsupported(key, absl::StrCat("is ", *found, " and ", values[i],
                                                    "; supported: layers that are alike"));
    }
    found = values[i];
  }
  *out = found.value_or(1);
  return absl::OkStatus();
}

// `attention->layers`: if it is empty, those that have heads of keys. `divided`: the heads make up
// the embedding_length.
absl::Status ReadAttention(GgufSettings* settings, const GgufSizes& sizes, bool divided,
                           Attention* attention) {
  constexpr char kHeads[] = "attention.head_count", kKeys[] = "attention.head_count_kv",
                 kKeyLength[] = "attention.key_length", kValueLength[] = "attention.value_length";
  std::vector<int64_t> heads, keys;
  RIVULET_RETURN_IF_ERROR(settings->PerLayer(kHeads, sizes.blocks, &heads));
  keys = heads;
  if (settings->Find(kKeys) != nullptr) {
    RIVULET_RETURN_IF_ERROR(settings->PerLayer(kKeys, sizes.blocks, &keys));
  }
  if (attention->layers.empty()) {
    for (int64_t i = 0; i < sizes.layers; ++i) attention->layers.push_back(keys[size_t(i)] > 0);
  }
  RIVULET_RETURN_IF_ERROR(Same(*settings, kHeads, heads, attention->layers, &attention->heads));
  RIVULET_RETURN_IF_ERROR(Same(*settings, kKeys, keys, attention->layers, &attention->kv_heads));
  const int64_t own = sizes.hidden / attention->heads;
  int64_t values = 0;
  RIVULET_RETURN_IF_ERROR(
      settings->Int(kKeyLength, 1, kMostGgufSize, &attention->head_dim, std::max<int64_t>(own, 1)));
  RIVULET_RETURN_IF_ERROR(
      settings->Int(kValueLength, 1, kMostGgufSize, &values, attention->head_dim));
  if (values != attention->head_dim) {
    return settings->Unsupported(
        kValueLength,
        absl::StrCat("is ", values, "; supported: ", kKeyLength, ", ", attention->head_dim));
  }
  if (!divided || attention->head_dim * attention->heads == sizes.hidden) return absl::OkStatus();
  return settings->Unsupported(
      kKeyLength,
      absl::StrCat("is ", attention->head_dim, " for ", attention->heads,
                   " heads; supported: heads that make up the embedding_length, ", sizes.hidden));
}

// rope.scaling as transformers has it; "null" without.
absl::Status ReadRopeScaling(GgufSettings* settings, std::string* json) {
  constexpr char kType[] = "rope.scaling.type", kFactor[] = "rope.scaling.factor";
  const GgufValue* const type = settings->Find(kType);
  const std::string name = type == nullptr ? "linear" : type->Text().value_or("");
  float factor = 1;
  RIVULET_RETURN_IF_ERROR(settings->Positive(
      settings->Find(kFactor) == nullptr ? "rope.scale_linear" : kFactor, &factor, 1));
  settings->Known({"rope.scale_linear", "rope.scaling.finetuned"});
  *json = "null";
  if (name == "none" || (name == "linear" && factor == 1)) return absl::OkStatus();
  if (name != "linear" && name != "yarn") {
    return settings->Unsupported(
        kType, absl::StrCat("is ", type->Describe(), "; supported: none, linear, yarn"));
  }
  *json = absl::StrFormat(R"({"type": "%s", "factor": %.9g)", name, factor);
  if (name == "yarn") {
    int64_t trained = 0;
    float fast = 0, slow = 0;
    RIVULET_RETURN_IF_ERROR(
        settings->Int("rope.scaling.original_context_length", 1, INT32_MAX, &trained));
    RIVULET_RETURN_IF_ERROR(settings->Positive("rope.scaling.yarn_beta_fast", &fast, 32.0f));
    RIVULET_RETURN_IF_ERROR(settings->Positive("rope.scaling.yarn_beta_slow", &slow, 1.0f));
    absl::StrAppendFormat(
        json, R"(, "original_max_position_embeddings": %d, "beta_fast": %.9g, "beta_slow": %.9g)",
        trained, fast, slow);
  }
  *json += "}";
  return absl::OkStatus();
}

// The settings of positions. `partial`: only the first values of a head may be turned.
absl::Status ReadRope(GgufSettings* settings, const Attention& attention, bool partial,
                      std::string* json) {
  constexpr char kTurned[] = "rope.dimension_count";
  int64_t turned = 0, trained = 0;
  float theta = 0;
  std::string scaling;
  RIVULET_RETURN_IF_ERROR(
      settings->Int(kTurned, 2, attention.head_dim, &turned, attention.head_dim));
  RIVULET_RETURN_IF_ERROR(settings->Positive("rope.freq_base", &theta, 10000.0f));
  RIVULET_RETURN_IF_ERROR(ReadRopeScaling(settings, &scaling));
  RIVULET_RETURN_IF_ERROR(settings->Int("context_length", 0, INT32_MAX, &trained, 0));
  if (!partial && turned != attention.head_dim) {
    return settings->Unsupported(kTurned, absl::StrCat("is ", turned, "; supported: all values of ",
                                                       "a head, ", attention.head_dim));
  }
  *json = absl::StrFormat(
      R"("rope_theta": %.17g, "rope_scaling": %s, "partial_rotary_factor": %.17g, )", double{theta},
      scaling, GgufShare(turned, attention.head_dim));
  if (trained > 0) absl::StrAppendFormat(json, R"("max_position_embeddings": %d, )", trained);
  return absl::OkStatus();
}

// What all hybrids have.
struct Common {
  float eps = 0;
  Attention attention;
  std::string text;  // members of config.json
};
absl::Status ReadCommon(GgufSettings* settings, const char* eps_name, bool divided,
                        GgufSizes* sizes, Common* common) {
  std::vector<int64_t> ffn;
  RIVULET_RETURN_IF_ERROR(ReadAttention(settings, *sizes, divided, &common->attention));
  RIVULET_RETURN_IF_ERROR(settings->PerLayer("feed_forward_length", sizes->blocks, &ffn));
  const std::vector<bool> all(size_t(sizes->layers), true);
  RIVULET_RETURN_IF_ERROR(Same(*settings, "feed_forward_length", ffn, all, &sizes->ffn));
  RIVULET_RETURN_IF_ERROR(settings->Positive("attention.layer_norm_rms_epsilon", &common->eps));
  RIVULET_RETURN_IF_ERROR(settings->Only("attention.sliding_window", 0));
  bool causal = true;
  RIVULET_RETURN_IF_ERROR(settings->Bool("attention.causal", &causal, true));
  if (!causal) return settings->Unsupported("attention.causal", "is false; supported: true");
  const Attention& attention = common->attention;
  common->text =
      absl::StrFormat(R"("num_attention_heads": %d, "num_key_value_heads": %d, "%s": %.9g, )",
                      attention.heads, attention.kv_heads, eps_name, common->eps);
  return absl::OkStatus();
}

absl::Status NoExperts(GgufSettings* settings) {
  settings->Known({"expert_used_count", "expert_shared_feed_forward_length"});
  return settings->Only("expert_count", 0);
}

// Whether any layer has this tensor.
bool AnyLayerHas(const GgufTensors& tensors, const GgufSizes& sizes, const char* name) {
  for (int64_t i = 0; i < sizes.layers; ++i) {
    if (tensors.contains(absl::StrCat("blk.", i, ".", name))) return true;
  }
  return false;
}

std::string MambaText(const GgufSsm& ssm, const GgufTensors& tensors, const GgufSizes& sizes) {
  return absl::StrFormat(
      R"("mamba_n_heads": %d, "mamba_d_head": %d, "mamba_d_state": %d, "mamba_n_groups": %d, )"
      R"("mamba_d_conv": %d, "mamba_conv_bias": %s, "attention_bias": %s, )",
      ssm.heads, ssm.inner / ssm.heads, ssm.state, ssm.groups, ssm.width,
      Json(AnyLayerHas(tensors, sizes, "ssm_conv1d.bias")),
      Json(AnyLayerHas(tensors, sizes, "attn_q.bias")));
}

absl::StatusOr<std::string> GraniteSettings(GgufSettings* settings, const GgufTensors& tensors,
                                            GgufSizes* sizes) {
  Common common;
  GgufSsm ssm;
  std::string rope;
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "rms_norm_eps", true, sizes, &common));
  RIVULET_RETURN_IF_ERROR(NoExperts(settings));
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, common.attention, true, &rope));
  settings->Known({"deepstack_mapping"});  // of images
  if (ssm.inner % sizes->hidden != 0) {
    return settings->Unsupported("ssm.inner_size",
                                 absl::StrCat("is ", ssm.inner, "; supported: a multiple of the ",
                                              "embedding_length, ", sizes->hidden));
  }
  bool turned = true;
  RIVULET_RETURN_IF_ERROR(settings->Bool("rope.scaling.finetuned", &turned, true));
  // The converter gives positions to Bamba alone, which has none of these scales.
  constexpr const char* kScales[] = {"embedding_scale", "residual_scale", "attention.scale",
                                     "logit_scale"};
  const bool scaled = std::any_of(std::begin(kScales), std::end(kScales),
                                  [&](const char* key) { return settings->Find(key) != nullptr; });
  if (turned && !scaled) {
    return settings->Unsupported(
        "rope.scaling.finetuned",
        "is true or missing, and there is no embedding_scale, residual_scale, attention.scale or "
        "logit_scale: this is Bamba, which is not supported; supported: Granite");
  }
  float embedding = 0, residual = 0, attention = 0, logits = 0;
  const float own = 1 / std::sqrt(static_cast<float>(common.attention.head_dim));
  RIVULET_RETURN_IF_ERROR(settings->Positive(kScales[0], &embedding, 1.0f));
  RIVULET_RETURN_IF_ERROR(settings->Positive(kScales[1], &residual, 1.0f));
  RIVULET_RETURN_IF_ERROR(settings->Positive(kScales[2], &attention, own));
  RIVULET_RETURN_IF_ERROR(settings->Positive(kScales[3], &logits, 1.0f));
  // llama.cpp turns neighbouring values, and the converter moved rows of q and k there.
  return absl::StrCat(
      common.text, MambaText(ssm, tensors, *sizes), rope,
      absl::StrFormat(
          R"("shared_intermediate_size": %d, "num_local_experts": 0, "mamba_expand": %d, )"
          R"("embedding_multiplier": %.9g, "residual_multiplier": %.9g, )"
          R"("attention_multiplier": %.9g, "logits_scaling": %.9g, "layer_types": %s, )"
          R"("position_embedding_type": %s, "rope_interleaved": true, )",
          sizes->ffn, ssm.inner / sizes->hidden, embedding, residual, attention, logits,
          common.attention.LayerTypes("mamba", "attention"), turned ? R"("rope")" : "null"));
}

absl::StatusOr<std::string> Qwen35Settings(GgufSettings* settings, const GgufTensors&,
                                           GgufSizes* sizes) {
  constexpr char kRecurrent[] = "attention.recurrent_layers";
  Common common;
  GgufSsm ssm;
  std::string rope;
  int64_t unused = 0, interval = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("nextn_predict_layers", 0, sizes->blocks - 1, &unused, 0));
  sizes->layers -= unused;
  RIVULET_RETURN_IF_ERROR(settings->Int("full_attention_interval", 1, kMostGgufSize, &interval, 4));
  std::vector<bool>& layers = common.attention.layers;
  for (int64_t i = 0; i < sizes->layers; ++i) layers.push_back((i + 1) % interval == 0);
  if (settings->Find(kRecurrent) != nullptr) {
    std::vector<bool> recurrent;
    RIVULET_RETURN_IF_ERROR(settings->PerLayer(kRecurrent, sizes->blocks, &recurrent));
    for (size_t i = 0; i < layers.size(); ++i) layers[i] = !recurrent[i];
  }
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "rms_norm_eps", false, sizes, &common));
  RIVULET_RETURN_IF_ERROR(NoExperts(settings));
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, common.attention, true, &rope));
  settings->Known({"rope.dimension_sections"});  // for text all positions are equal
  return absl::StrCat(
      common.text, rope,
      absl::StrFormat(
          R"("head_dim": %d, "intermediate_size": %d, "linear_num_value_heads": %d, )"
          R"("linear_num_key_heads": %d, "linear_key_head_dim": %d, "linear_value_head_dim": %d, )"
          R"("linear_conv_kernel_dim": %d, "linear_value_heads_tiled": true, "layer_types": %s, )",
          common.attention.head_dim, sizes->ffn, ssm.heads, ssm.groups, ssm.state,
          ssm.inner / ssm.heads, ssm.width,
          common.attention.LayerTypes("linear_attention", "full_attention")));
}

absl::StatusOr<std::string> Lfm2Settings(GgufSettings* settings, const GgufTensors&,
                                         GgufSizes* sizes) {
  Common common;
  std::string rope;
  int64_t width = 0;
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "norm_eps", true, sizes, &common));
  RIVULET_RETURN_IF_ERROR(NoExperts(settings));
  RIVULET_RETURN_IF_ERROR(settings->Int("shortconv.l_cache", 1, 8, &width));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, common.attention, false, &rope));
  return absl::StrCat(
      common.text, rope,
      absl::StrFormat(
          R"("intermediate_size": %d, "block_auto_adjust_ff_dim": false, "conv_L_cache": %d, )"
          R"("layer_types": %s, )",
          sizes->ffn, width, common.attention.LayerTypes("conv", "full_attention")));
}

// The file's weights are products with all multipliers.
absl::StatusOr<std::string> FalconSettings(GgufSettings* settings, const GgufTensors& tensors,
                                           GgufSizes* sizes) {
  Common common;
  GgufSsm ssm;
  std::string rope;
  common.attention.layers.assign(size_t(sizes->layers), true);
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "rms_norm_eps", false, sizes, &common));
  RIVULET_RETURN_IF_ERROR(NoExperts(settings));
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, common.attention, false, &rope));
  return absl::StrCat(
      common.text, MambaText(ssm, tensors, *sizes), rope,
      absl::StrFormat(
          R"("head_dim": %d, "intermediate_size": %d, "mamba_d_ssm": %d, "mamba_rms_norm": %s, )"
          R"("mamba_norm_before_gate": false, "mlp_bias": %s, )",
          common.attention.head_dim, sizes->ffn, ssm.inner,
          Json(AnyLayerHas(tensors, *sizes, "ssm_norm.weight")),
          Json(AnyLayerHas(tensors, *sizes, "ffn_up.bias"))));
}

// With biases if the configuration has them.
constexpr GgufTensorName kAttention[] = {
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
};
constexpr GgufTensorName kMamba[] = {
    {"ssm_in.weight", "mamba.in_proj.weight"}, {"ssm_conv1d.weight", "mamba.conv1d.weight"},
    {"ssm_conv1d.bias", "mamba.conv1d.bias"},  {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_a", "mamba.minus_exp_A_log"},        {"ssm_d", "mamba.D"},
    {"ssm_norm.weight", "mamba.norm.weight"},  {"ssm_out.weight", "mamba.out_proj.weight"},
};
constexpr GgufTensorName kGraniteOutside[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr GgufTensorName kGraniteInside[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "shared_mlp.input_linear.weight.rows_0"},
    {"ffn_up.weight", "shared_mlp.input_linear.weight.rows_#"},
    {"ffn_down.weight", "shared_mlp.output_linear.weight"},
};
// Norms are 1 + weight already; ssm_norm is a weight in the checkpoint, too.
constexpr GgufTensorName kQwen35Outside[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.one_plus_weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr GgufTensorName kQwen35Inside[] = {
    {"attn_norm.weight", "input_layernorm.one_plus_weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.one_plus_weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.one_plus_weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.one_plus_weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {"ssm_a", "linear_attn.minus_exp_A_log"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};
constexpr GgufTensorName kLfm2Outside[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"token_embd_norm.weight", "model.embedding_norm.weight"},  // behind the layers
    {"output.weight", "lm_head.weight"},
};
constexpr GgufTensorName kLfm2Inside[] = {
    {"attn_norm.weight", "operator_norm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.out_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_layernorm.weight"},
    {"attn_k_norm.weight", "self_attn.k_layernorm.weight"},
    {"shortconv.conv.weight", "conv.conv.weight"},
    {"shortconv.in_proj.weight", "conv.in_proj.weight"},
    {"shortconv.out_proj.weight", "conv.out_proj.weight"},
    {"ffn_norm.weight", "ffn_norm.weight"},
    {"ffn_gate.weight", "feed_forward.w1.weight"},
    {"ffn_up.weight", "feed_forward.w3.weight"},
    {"ffn_down.weight", "feed_forward.w2.weight"},
};
constexpr GgufTensorName kFalconOutside[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.final_layernorm.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr GgufTensorName kFalconInside[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm", "pre_ff_layernorm.weight"},  // without a suffix
    {"ffn_gate.weight", "feed_forward.gate_proj.weight"},
    {"ffn_gate.bias", "feed_forward.gate_proj.bias"},
    {"ffn_up.weight", "feed_forward.up_proj.weight"},
    {"ffn_up.bias", "feed_forward.up_proj.bias"},
    {"ffn_down.weight", "feed_forward.down_proj.weight"},
    {"ffn_down.bias", "feed_forward.down_proj.bias"},
};

constexpr char kLayers[] = "model.layers.";
constexpr GgufArchitecture kHybrids[] = {
    {"qwen35",
     "qwen3_5_text",
     Qwen35Settings,
     kLayers,
     {kQwen35Outside, kQwen35Inside, kAttention}},
    {"granitehybrid",
     "granitemoehybrid",
     GraniteSettings,
     kLayers,
     {kGraniteOutside, kGraniteInside, kAttention, kMamba}},
    {"lfm2", "lfm2", Lfm2Settings, kLayers, {kLfm2Outside, kLfm2Inside}},
    {"falcon-h1",
     "falcon_h1",
     FalconSettings,
     kLayers,
     {kFalconOutside, kFalconInside, kAttention, kMamba}},
};

}  // namespace

std::span<const GgufArchitecture> GgufHybrids() { return kHybrids; }

}  // namespace rivulet
