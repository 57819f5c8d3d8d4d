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

constexpr int64_t kMostBlocks = 1024;  // config.json lists layers

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

// The one value of the `layers`, which is above 0; 1 if there are none.
absl::Status OneOf(const GgufSettings& settings, absl::string_view key,
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
absl::Status ReadOne(GgufSettings* settings, absl::string_view key, const GgufSizes& sizes,
                     const std::vector<bool>& layers, int64_t* out) {
  std::vector<int64_t> values;
  RIVULET_RETURN_IF_ERROR(settings->PerLayer(key, sizes.blocks, &values));
  return OneOf(*settings, key, values, layers, out);
}

std::vector<bool> AllLayers(const GgufSizes& sizes) {
  return std::vector<bool>(size_t(sizes.layers), true);
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
  RIVULET_RETURN_IF_ERROR(OneOf(*settings, kHeads, heads, attention->layers, &attention->heads));
  RIVULET_RETURN_IF_ERROR(OneOf(*settings, kKeys, keys, attention->layers, &attention->kv_heads));
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

// rope.scaling as transformers has it; "null" without. `context`: the length before scaling, if the
// file does not say another; 0: unknown.
absl::Status ReadRopeScaling(GgufSettings* settings, int64_t context, std::string* json) {
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
    const auto missing = context > 0 ? std::optional<int64_t>(context) : std::nullopt;
    RIVULET_RETURN_IF_ERROR(
        settings->Int("rope.scaling.original_context_length", 1, INT32_MAX, &trained, missing));
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
  RIVULET_RETURN_IF_ERROR(settings->Int("context_length", 0, INT32_MAX, &trained, 0));
  RIVULET_RETURN_IF_ERROR(
      settings->Int(kTurned, 2, attention.head_dim, &turned, attention.head_dim));
  RIVULET_RETURN_IF_ERROR(settings->Positive("rope.freq_base", &theta, 10000.0f));
  RIVULET_RETURN_IF_ERROR(ReadRopeScaling(settings, trained, &scaling));
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
absl::Status ReadCommon(GgufSettings* settings, const char* eps_name, bool divided,
                        const GgufSizes& sizes, Attention* attention, std::string* text,
                        const char* eps_key = "attention.layer_norm_rms_epsilon") {
  float eps = 0;
  bool causal = true;
  if (sizes.blocks > kMostBlocks) {
    return settings->Invalid("block_count",
                             absl::StrCat("is ", sizes.blocks, "; allowed: up to ", kMostBlocks));
  }
  RIVULET_RETURN_IF_ERROR(ReadAttention(settings, sizes, divided, attention));
  RIVULET_RETURN_IF_ERROR(settings->Positive(eps_key, &eps));
  RIVULET_RETURN_IF_ERROR(settings->Only("attention.sliding_window", 0));
  RIVULET_RETURN_IF_ERROR(settings->Bool("attention.causal", &causal, true));
  if (!causal) return settings->Unsupported("attention.causal", "is false; supported: true");
  *text = absl::StrFormat(R"("num_attention_heads": %d, "num_key_value_heads": %d, "%s": %.9g, )",
                          attention->heads, attention->kv_heads, eps_name, eps);
  return absl::OkStatus();
}

// The feed-forwards of a file without experts, all alike.
absl::Status ReadDenseFfn(GgufSettings* settings, GgufSizes* sizes) {
  settings->Known({"expert_used_count", "expert_shared_feed_forward_length"});
  RIVULET_RETURN_IF_ERROR(settings->Only("expert_count", 0));
  return ReadOne(settings, "feed_forward_length", *sizes, AllLayers(*sizes), &sizes->ffn);
}

// The members of config.json under which a kind has the sizes of its experts; the last may be null.
struct ExpertMembers {
  const char *count, *size, *shared;
};
// The experts of `layers`. `size_key`: of the columns of an expert, which may be missing if
// `missing_size` is not 0.
absl::Status ReadExperts(GgufSettings* settings, const GgufSizes& sizes,
                         const std::vector<bool>& layers, const char* size_key,
                         const ExpertMembers& members, std::string* text, int64_t* shared,
                         int64_t missing_size = 0) {
  constexpr char kUsed[] = "expert_used_count";
  int64_t count = 0, used = 0, size = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("expert_count", 1, 4096, &count));
  RIVULET_RETURN_IF_ERROR(ReadOne(settings, kUsed, sizes, layers, &used));
  if (missing_size > 0 && settings->Find(size_key) == nullptr) {
    size = missing_size;
  } else {
    RIVULET_RETURN_IF_ERROR(ReadOne(settings, size_key, sizes, layers, &size));
  }
  if (used > count) {
    return settings->Invalid(kUsed,
                             absl::StrCat("is ", used, "; allowed: up to expert_count, ", count));
  }
  *text = absl::StrFormat(R"("%s": %d, "num_experts_per_tok": %d, "%s": %d, )", members.count,
                          count, used, members.size, size);
  if (members.shared == nullptr) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(
      settings->Int("expert_shared_feed_forward_length", 1, kMostGgufSize, shared));
  absl::StrAppendFormat(text, R"("%s": %d, )", members.shared, *shared);
  return absl::OkStatus();
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

// The scales, of which Bamba has none. `turned`: attention has positions.
absl::Status ReadGraniteScales(GgufSettings* settings, const Attention& attention, bool turned,
                               std::string* text) {
  constexpr const char* kKeys[] = {"embedding_scale", "residual_scale", "attention.scale",
                                   "logit_scale"};
  constexpr const char* kMembers[] = {"embedding_multiplier", "residual_multiplier",
                                      "attention_multiplier", "logits_scaling"};
  const float missing[] = {1, 1, 1 / std::sqrt(static_cast<float>(attention.head_dim)), 1};
  bool scaled = false;
  for (size_t i = 0; i < std::size(kKeys); ++i) {
    float scale = 0;
    RIVULET_RETURN_IF_ERROR(settings->Positive(kKeys[i], &scale, missing[i]));
    scaled = scaled || settings->Find(kKeys[i]) != nullptr;
    absl::StrAppendFormat(text, R"("%s": %.9g, )", kMembers[i], scale);
  }
  if (turned && !scaled) {  // the converter gives a hybrid positions only if it is Bamba
    return settings->Unsupported(
        "embedding_scale",
        "is missing, and so are residual_scale, attention.scale and logit_scale: this is Bamba, "
        "which is not supported; supported: Granite");
  }
  // llama.cpp turns neighbouring values, and the converter moved rows of q and k there.
  absl::StrAppendFormat(text, R"("position_embedding_type": %s, "rope_interleaved": true, )",
                        turned ? R"("rope")" : "null");
  return absl::OkStatus();
}

absl::StatusOr<std::string> GraniteSettings(GgufSettings* settings, const GgufTensors& tensors,
                                            GgufSizes* sizes) {
  Attention attention;
  GgufSsm ssm;
  std::string text, rope, scales, experts = R"("num_local_experts": 0, )";
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "rms_norm_eps", true, *sizes, &attention, &text));
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  bool turned = true;
  RIVULET_RETURN_IF_ERROR(settings->Bool("rope.scaling.finetuned", &turned, true));
  RIVULET_RETURN_IF_ERROR(ReadGraniteScales(settings, attention, turned, &scales));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, attention, !turned, &rope));
  settings->Known({"deepstack_mapping"});  // of images
  constexpr char kShared[] = "shared_intermediate_size";
  int64_t count = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("expert_count", 0, 4096, &count, 0));
  if (count > 0) {
    RIVULET_RETURN_IF_ERROR(ReadExperts(settings, *sizes, AllLayers(*sizes), "feed_forward_length",
                                        {"num_local_experts", "intermediate_size", kShared},
                                        &experts, &sizes->ffn));
  } else {
    RIVULET_RETURN_IF_ERROR(ReadDenseFfn(settings, sizes));
    absl::StrAppendFormat(&experts, R"("%s": %d, )", kShared, sizes->ffn);
  }
  if (ssm.inner % sizes->hidden != 0) {
    return settings->Unsupported("ssm.inner_size",
                                 absl::StrCat("is ", ssm.inner, "; supported: a multiple of the ",
                                              "embedding_length, ", sizes->hidden));
  }
  return absl::StrCat(text, MambaText(ssm, tensors, *sizes), rope, scales, experts,
                      R"("mamba_expand": )", ssm.inner / sizes->hidden, R"(, "layer_types": )",
                      attention.LayerTypes("mamba", "attention"), ", ");
}

// Qwen3.5 but its feed-forward.
absl::Status ReadQwen35(GgufSettings* settings, GgufSizes* sizes, std::string* text) {
  constexpr char kRecurrent[] = "attention.recurrent_layers";
  Attention attention;
  GgufSsm ssm;
  std::string rope;
  int64_t unused = 0, interval = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("nextn_predict_layers", 0, sizes->blocks - 1, &unused, 0));
  sizes->layers -= unused;
  RIVULET_RETURN_IF_ERROR(settings->Int("full_attention_interval", 1, kMostGgufSize, &interval, 4));
  std::vector<bool>& layers = attention.layers;
  for (int64_t i = 0; i < sizes->layers; ++i) layers.push_back((i + 1) % interval == 0);
  if (settings->Find(kRecurrent) != nullptr) {
    std::vector<bool> recurrent;
    RIVULET_RETURN_IF_ERROR(settings->PerLayer(kRecurrent, sizes->blocks, &recurrent));
    for (size_t i = 0; i < layers.size(); ++i) layers[i] = !recurrent[i];
  }
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "rms_norm_eps", false, *sizes, &attention, text));
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, attention, true, &rope));
  settings->Known({"rope.dimension_sections"});  // for text all positions are equal
  absl::StrAppend(
      text, rope,
      absl::StrFormat(
          R"("head_dim": %d, "linear_num_value_heads": %d, "linear_num_key_heads": %d, )"
          R"("linear_key_head_dim": %d, "linear_value_head_dim": %d, )"
          R"("linear_conv_kernel_dim": %d, "linear_value_heads_tiled": true, "layer_types": %s, )",
          attention.head_dim, ssm.heads, ssm.groups, ssm.state, ssm.inner / ssm.heads, ssm.width,
          attention.LayerTypes("linear_attention", "full_attention")));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Qwen35Settings(GgufSettings* settings, const GgufTensors&,
                                           GgufSizes* sizes) {
  std::string text;
  RIVULET_RETURN_IF_ERROR(ReadQwen35(settings, sizes, &text));
  RIVULET_RETURN_IF_ERROR(ReadDenseFfn(settings, sizes));
  return absl::StrCat(text, R"("intermediate_size": )", sizes->ffn, ", ");
}

absl::StatusOr<std::string> Qwen35MoeSettings(GgufSettings* settings, const GgufTensors&,
                                              GgufSizes* sizes) {
  std::string text, experts;
  RIVULET_RETURN_IF_ERROR(ReadQwen35(settings, sizes, &text));
  settings->Known({"feed_forward_length"});  // of no layer
  RIVULET_RETURN_IF_ERROR(
      ReadExperts(settings, *sizes, AllLayers(*sizes), "expert_feed_forward_length",
                  {"num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"},
                  &experts, &sizes->ffn));
  return text + experts;
}

// LFM2 but its feed-forward.
absl::Status ReadLfm2(GgufSettings* settings, const GgufSizes& sizes, std::string* text) {
  Attention attention;
  std::string rope;
  int64_t width = 0;
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "norm_eps", true, sizes, &attention, text));
  RIVULET_RETURN_IF_ERROR(settings->Int("shortconv.l_cache", 1, 8, &width));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, attention, false, &rope));
  absl::StrAppend(text, rope, R"("conv_L_cache": )", width, R"(, "layer_types": )",
                  attention.LayerTypes("conv", "full_attention"), ", ");
  return absl::OkStatus();
}

absl::StatusOr<std::string> Lfm2Settings(GgufSettings* settings, const GgufTensors&,
                                         GgufSizes* sizes) {
  std::string text;
  RIVULET_RETURN_IF_ERROR(ReadLfm2(settings, *sizes, &text));
  RIVULET_RETURN_IF_ERROR(ReadDenseFfn(settings, sizes));
  return absl::StrCat(text, R"("block_auto_adjust_ff_dim": false, "intermediate_size": )",
                      sizes->ffn, ", ");
}

// The converter drops the scale and the norm of the router, so they are 1 and true.
absl::StatusOr<std::string> Lfm2MoeSettings(GgufSettings* settings, const GgufTensors& tensors,
                                            GgufSizes* sizes) {
  std::string text, experts;
  int64_t dense = 0;
  RIVULET_RETURN_IF_ERROR(ReadLfm2(settings, *sizes, &text));
  RIVULET_RETURN_IF_ERROR(settings->Only("expert_gating_func", 2));  // sigmoid
  RIVULET_RETURN_IF_ERROR(settings->Int("leading_dense_block_count", 0, sizes->layers, &dense, 0));
  std::vector<bool> mixtures = AllLayers(*sizes);
  std::fill_n(mixtures.begin(), dense, false);
  std::vector<bool> others = mixtures;
  others.flip();
  RIVULET_RETURN_IF_ERROR(ReadOne(settings, "feed_forward_length", *sizes, others, &sizes->ffn));
  RIVULET_RETURN_IF_ERROR(ReadExperts(settings, *sizes, mixtures, "expert_feed_forward_length",
                                      {"num_experts", "moe_intermediate_size", nullptr}, &experts,
                                      nullptr));
  return absl::StrCat(text, experts, R"("intermediate_size": )", sizes->ffn,
                      R"(, "num_dense_layers": )", dense, R"(, "use_expert_bias": )",
                      Json(AnyLayerHas(tensors, *sizes, "exp_probs_b.bias")), ", ");
}

// The file's weights are products with all multipliers.
absl::StatusOr<std::string> FalconSettings(GgufSettings* settings, const GgufTensors& tensors,
                                           GgufSizes* sizes) {
  Attention attention{.layers = AllLayers(*sizes)};
  GgufSsm ssm;
  std::string text, rope;
  RIVULET_RETURN_IF_ERROR(ReadCommon(settings, "rms_norm_eps", false, *sizes, &attention, &text));
  RIVULET_RETURN_IF_ERROR(ReadDenseFfn(settings, sizes));
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  RIVULET_RETURN_IF_ERROR(ReadRope(settings, attention, false, &rope));
  return absl::StrCat(
      text, MambaText(ssm, tensors, *sizes), rope,
      absl::StrFormat(
          R"("head_dim": %d, "intermediate_size": %d, "mamba_d_ssm": %d, "mamba_rms_norm": %s, )"
          R"("mamba_norm_before_gate": false, "mlp_bias": %s, )",
          attention.head_dim, sizes->ffn, ssm.inner,
          Json(AnyLayerHas(tensors, *sizes, "ssm_norm.weight")),
          Json(AnyLayerHas(tensors, *sizes, "ffn_up.bias"))));
}

// The kinds of Nemotron-H's layers, by their tensors: a dense file may say that it has experts,
// and its lengths are 0 then.
struct NemotronLayers {
  NemotronLayers(const GgufTensors& tensors, const GgufSizes& sizes) {
    const auto has = [&](int64_t layer, const char* name) {
      return tensors.contains(absl::StrCat("blk.", layer, ".", name));
    };
    for (int64_t i = 0; i < sizes.layers; ++i) {
      attention.push_back(has(i, "attn_q.weight"));
      experts.push_back(has(i, "ffn_gate_inp.weight"));
      const auto up = tensors.find(absl::StrCat("blk.", i, ".ffn_up.weight"));
      const bool dense = up != tensors.end();
      if (dense) ffn = up->second.shape[0];
      const auto exps = tensors.find(absl::StrCat("blk.", i, ".ffn_up_exps.weight"));
      if (exps != tensors.end() && exps->second.shape.size() == 3) expert = exps->second.shape[1];
      names.emplace_back(attention.back() ? "\"attention\""
                         : experts.back() ? "\"moe\""
                         : dense          ? "\"mlp\""
                                          : "\"mamba\"");
    }
  }
  std::vector<bool> attention, experts;
  std::vector<const char*> names;
  int64_t ffn = 1, expert = 0;  // columns
};

// The router of experts, and the projection of their rows.
absl::Status ReadNemotronRouter(GgufSettings* settings, std::string* text) {
  int64_t groups = 0, kept = 0, latent = 0;
  bool normalized = false;
  RIVULET_RETURN_IF_ERROR(settings->Int("expert_group_count", 0, 4096, &groups, 0));
  RIVULET_RETURN_IF_ERROR(settings->Int("expert_group_used_count", 0, 4096, &kept, 0));
  RIVULET_RETURN_IF_ERROR(settings->Int("moe_latent_size", 0, kMostGgufSize, &latent, 0));
  RIVULET_RETURN_IF_ERROR(settings->Bool("expert_weights_norm", &normalized, false));
  constexpr char kScale[] = "expert_weights_scale";
  const GgufValue* const given = settings->Find(kScale);
  float scale = 1;
  if (given != nullptr && given->Number() != 0) {  // 0: none
    RIVULET_RETURN_IF_ERROR(settings->Positive(kScale, &scale));
  }
  absl::StrAppendFormat(
      text,
      R"("n_group": %d, "topk_group": %d, "norm_topk_prob": %s, "routed_scaling_factor": %.9g, )",
      std::max<int64_t>(groups, 1), groups > 1 ? kept : 1, Json(normalized), scale);
  if (latent > 0) absl::StrAppendFormat(text, R"("moe_latent_size": %d, )", latent);
  return absl::OkStatus();
}

absl::StatusOr<std::string> NemotronSettings(GgufSettings* settings, const GgufTensors& tensors,
                                             GgufSizes* sizes) {
  GgufSsm ssm;
  std::string text, experts;
  int64_t unused = 0, shared = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("nextn_predict_layers", 0, sizes->blocks - 1, &unused, 0));
  sizes->layers -= unused;
  const NemotronLayers layers(tensors, *sizes);
  Attention attention{.layers = layers.attention};
  // There are no positions.
  settings->Known({"attention.layer_norm_epsilon", "context_length", "rope.dimension_count",
                   "rope.freq_base", "rope.scaling.finetuned", "feed_forward_length",
                   "expert_shared_count"});
  constexpr char kEps[] = "attention.layer_norm_rms_epsilon";
  RIVULET_RETURN_IF_ERROR(
      ReadCommon(settings, "layer_norm_epsilon", false, *sizes, &attention, &text,
                 settings->Find(kEps) != nullptr ? kEps : "attention.layer_norm_epsilon"));
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  if (AnyLayerHas(tensors, *sizes, "ffn_gate_inp.weight")) {
    RIVULET_RETURN_IF_ERROR(ReadExperts(
        settings, *sizes, layers.experts, "expert_feed_forward_length",
        {"n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"},
        &experts, &shared, layers.expert));
    RIVULET_RETURN_IF_ERROR(ReadNemotronRouter(settings, &experts));
  } else {
    settings->Known({"expert_count", "expert_used_count", "expert_feed_forward_length",
                     "expert_shared_feed_forward_length", "expert_weights_norm",
                     "expert_weights_scale", "expert_group_count", "expert_group_used_count",
                     "moe_latent_size"});
  }
  sizes->ffn = layers.ffn;
  return absl::StrCat(
      text, experts,
      absl::StrFormat(
          R"("head_dim": %d, "intermediate_size": %d, "mamba_num_heads": %d, )"
          R"("mamba_head_dim": %d, "ssm_state_size": %d, "n_groups": %d, "conv_kernel": %d, )"
          R"("use_conv_bias": %s, "use_bias": false, "attention_bias": %s, "mlp_bias": %s, )"
          R"("layers_block_type": [%s], )",
          attention.head_dim, sizes->ffn, ssm.heads, ssm.inner / ssm.heads, ssm.state, ssm.groups,
          ssm.width, Json(AnyLayerHas(tensors, *sizes, "ssm_conv1d.bias")),
          Json(AnyLayerHas(tensors, *sizes, "attn_q.bias")),
          Json(AnyLayerHas(tensors, *sizes, "ffn_up.bias")), absl::StrJoin(layers.names, ", ")));
}

// With biases if the configuration has them.
constexpr GgufTensorName kAttentionNames[] = {
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
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
    {"ffn_gate_shexp.weight", "shared_mlp.input_linear.weight.rows_0"},
    {"ffn_up_shexp.weight", "shared_mlp.input_linear.weight.rows_#"},
    {"ffn_down_shexp.weight", "shared_mlp.output_linear.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"},
    {"ffn_gate_exps.weight", "block_sparse_moe.experts.gate_proj"},
    {"ffn_up_exps.weight", "block_sparse_moe.experts.up_proj"},
    {"ffn_gate_up_exps.weight", "block_sparse_moe.experts.gate_up_proj"},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.down_proj"},
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
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_exps.weight", "mlp.experts.gate_proj"},
    {"ffn_up_exps.weight", "mlp.experts.up_proj"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
    {"ffn_down_exps.weight", "mlp.experts.down_proj"},
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
    {"ffn_gate_inp.weight", "feed_forward.gate.weight"},
    {"exp_probs_b.bias", "feed_forward.expert_bias"},
    {"ffn_gate_exps.weight", "feed_forward.experts.gate_proj"},
    {"ffn_up_exps.weight", "feed_forward.experts.up_proj"},
    {"ffn_gate_up_exps.weight", "feed_forward.experts.gate_up_proj"},
    {"ffn_down_exps.weight", "feed_forward.experts.down_proj"},
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

constexpr GgufTensorName kNemotronOutside[] = {
    {"token_embd.weight", "backbone.embeddings.weight"},
    {"output_norm.weight", "backbone.norm_f.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr GgufTensorName kNemotronInside[] = {
    {"attn_norm.weight", "norm.weight"},
    {"ffn_up.weight", "mixer.up_proj.weight"},
    {"ffn_up.bias", "mixer.up_proj.bias"},
    {"ffn_down.weight", "mixer.down_proj.weight"},
    {"ffn_down.bias", "mixer.down_proj.bias"},
    {"ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight"},
    {"ffn_gate_inp.weight", "mixer.gate.weight"},
    {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias"},
    {"ffn_up_exps.weight", "mixer.experts.up_proj"},
    {"ffn_down_exps.weight", "mixer.experts.down_proj"},
    {"ffn_latent_down.weight", "mixer.fc1_latent_proj.weight"},
    {"ffn_latent_up.weight", "mixer.fc2_latent_proj.weight"},
};

constexpr char kLayers[] = "model.layers.", kBackbone[] = "backbone.layers.";
constexpr GgufArchitecture kHybrids[] = {
    {"qwen35",
     "qwen3_5_text",
     Qwen35Settings,
     kLayers,
     {kQwen35Outside, kQwen35Inside, kAttentionNames}},
    {"qwen35moe",
     "qwen3_5_moe_text",
     Qwen35MoeSettings,
     kLayers,
     {kQwen35Outside, kQwen35Inside, kAttentionNames}},
    {"granitehybrid",
     "granitemoehybrid",
     GraniteSettings,
     kLayers,
     {kGraniteOutside, kGraniteInside, kAttentionNames, kGgufMamba}},
    {"lfm2", "lfm2", Lfm2Settings, kLayers, {kLfm2Outside, kLfm2Inside}},
    {"lfm2moe", "lfm2_moe", Lfm2MoeSettings, kLayers, {kLfm2Outside, kLfm2Inside}},
    {"falcon-h1",
     "falcon_h1",
     FalconSettings,
     kLayers,
     {kFalconOutside, kFalconInside, kAttentionNames, kGgufMamba}},
    {"nemotron_h",
     "nemotron_h",
     NemotronSettings,
     kBackbone,
     {kNemotronOutside, kNemotronInside, kAttentionNames, kGgufMamba},
     "mixer."},
    {"nemotron_h_moe",
     "nemotron_h",
     NemotronSettings,
     kBackbone,
     {kNemotronOutside, kNemotronInside, kAttentionNames, kGgufMamba},
     "mixer."},
};

}  // namespace

std::span<const GgufArchitecture> GgufHybrids() { return kHybrids; }

}  // namespace rivulet
