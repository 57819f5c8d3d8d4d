// SPDX-License-Identifier: Apache-2.0
#include "model/hybrid_settings.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/hybrid_parts.h"
#include "model/mamba2_settings.h"
#include "model/rope.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

// Heads that make up the hidden size.
absl::Status SetHeadDim(const JsonReader& settings, const ModelConfig& config,
                        SoftmaxConfig* softmax) {
  softmax->head_dim = config.hidden_size / softmax->num_heads;
  if (softmax->queries() == config.hidden_size) return absl::OkStatus();
  return settings.Invalid("num_attention_heads", "is ", softmax->num_heads, "; hidden_size, ",
                          config.hidden_size, ", does not divide by it");
}

// Mamba-2 within Granite and Falcon-H1. `own_width`: the setting that may give the width of all
// heads together; else it is mamba_expand * hidden_size.
absl::Status ParseMamba(JsonReader* settings, const char* own_width, ModelConfig* config) {
  BlockConfig& block = config->block();
  RIVULET_RETURN_IF_ERROR(settings->Int("mamba_n_heads", 1, kMostColumns, &config->num_heads, 128));
  RIVULET_RETURN_IF_ERROR(settings->Int("mamba_d_state", 1, kMostColumns, &config->key_dim, 256));
  RIVULET_RETURN_IF_ERROR(settings->Int("mamba_n_groups", 1, kMostColumns, &block.num_groups, 1));
  RIVULET_RETURN_IF_ERROR(settings->Int("mamba_d_conv", 1, 8, &block.conv_width, 4));
  RIVULET_RETURN_IF_ERROR(settings->Bool("mamba_conv_bias", &block.conv_bias, true));
  RIVULET_RETURN_IF_ERROR(settings->Bool("mamba_proj_bias", &block.projection_bias, false));
  int expand = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("mamba_expand", 1, 1024, &expand, 2));
  int64_t values = int64_t{expand} * config->hidden_size;
  const bool own = own_width != nullptr && settings->Find(own_width) != nullptr;
  if (own) {
    int width = 0;
    RIVULET_RETURN_IF_ERROR(settings->Int(own_width, 1, kMostColumns, &width));
    values = width;
  }
  const JsonValue* head = settings->Find("mamba_d_head");
  if (head == nullptr || head->text == "auto") {
    config->value_dim = static_cast<int>(values / config->num_heads);
  } else {
    RIVULET_RETURN_IF_ERROR(settings->Int("mamba_d_head", 1, kMostColumns, &config->value_dim));
  }
  if (int64_t{config->num_heads} * config->value_dim != values) {
    return settings->Invalid(
        "mamba_n_heads", "is ", config->num_heads, ", of ", config->value_dim,
        " values each; allowed: ", own ? own_width : "mamba_expand * hidden_size", " = ", values,
        " values");
  }
  return FinishMamba2(settings, "mamba_n_groups", "mamba_n_heads", config);
}

// Every layer from `first` on has these experts.
void UseExperts(const ExpertsConfig& experts, int first, ModelConfig* config) {
  std::vector<LayerParts>& layers = config->block().layers;
  if (size_t(first) < layers.size()) config->block().experts = experts;
  for (size_t i = size_t(first); i < layers.size(); ++i) layers[i].ffn = FeedForward::kExperts;
}

absl::Status ParseGraniteAttention(JsonReader* settings, int trained, ModelConfig* config) {
  SoftmaxConfig softmax;
  RIVULET_RETURN_IF_ERROR(ParseHeads(settings, &softmax));
  RIVULET_RETURN_IF_ERROR(SetHeadDim(*settings, *config, &softmax));
  softmax.output_scale = config->block().mixer_multiplier;
  RIVULET_RETURN_IF_ERROR(settings->Positive("attention_multiplier", &softmax.scale, 1));
  RIVULET_RETURN_IF_ERROR(settings->Only("position_embedding_type", R"("rope", "nope", null)"));
  const JsonValue* positions = settings->Find("position_embedding_type");
  if (positions != nullptr && positions->text == "rope") {
    RIVULET_RETURN_IF_ERROR(ParseRope(
        settings, {.head_dim = softmax.head_dim, .max_positions = double(trained)}, &softmax.rope));
  } else {
    settings->Known({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"});
  }
  RIVULET_RETURN_IF_ERROR(settings->Bool("rope_interleaved", &softmax.rope.interleaved, false));
  RIVULET_RETURN_IF_ERROR(ParseLayerNames(settings, "layer_types",
                                          {{"mamba", kRecurrentLayer},
                                           {"linear_attention", kRecurrentLayer},
                                           {"attention", kAttentionLayer},
                                           {"full_attention", kAttentionLayer}},
                                          std::vector<LayerParts>(size_t(config->num_layers)),
                                          config));
  config->block().softmax = std::move(softmax);
  return CheckSoftmaxSizes(*settings, *config);
}

// Experts beside the dense feed-forward, or none.
absl::Status ParseGraniteExperts(JsonReader* settings, ModelConfig* config) {
  const JsonValue* count = settings->Find("num_local_experts");
  if (count != nullptr && count->kind == Kind::kInteger && count->integer == 0) {
    settings->Known({"intermediate_size", "num_experts_per_tok"});
    return absl::OkStatus();
  }
  ExpertsConfig experts;
  RIVULET_RETURN_IF_ERROR(
      ParseExperts(settings, {"num_local_experts", "intermediate_size", 8, 2, 0}, &experts));
  experts.shared_size = config->ffn_size;
  experts.router.scale = config->block().ffn_multiplier;
  UseExperts(experts, 0, config);
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseGranite(JsonReader* settings, ModelConfig* config) {
  // Settings of training, of experts, or of how other programs compute the same.
  settings->Known({"attention_dropout", "init_method", "mamba_chunk_size", "output_router_logits",
                   "router_aux_loss_coef"});
  BlockConfig& block = config->block();
  RIVULET_RETURN_IF_ERROR(settings->Only("normalization_function", R"("rmsnorm")"));
  RIVULET_RETURN_IF_ERROR(settings->Only("hidden_act", R"("silu", "swish")"));
  RIVULET_RETURN_IF_ERROR(settings->Positive("rms_norm_eps", &config->norm_eps, 1e-6f));
  RIVULET_RETURN_IF_ERROR(
      settings->Positive("embedding_multiplier", &block.embedding_multiplier, 1.0f));
  float residual = 1;
  RIVULET_RETURN_IF_ERROR(settings->Positive("residual_multiplier", &residual, 1.0f));
  block.mixer_multiplier = block.ffn_multiplier = residual;
  RIVULET_RETURN_IF_ERROR(settings->Positive("logits_scaling", &block.logits_scaling, 1.0f));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("shared_intermediate_size", 1, kMostColumns, &config->ffn_size, 1024));
  RIVULET_ASSIGN_OR_RETURN(const int trained, ParsePositions(settings, config));
  RIVULET_RETURN_IF_ERROR(ParseMamba(settings, nullptr, config));
  block.out_bias = block.projection_bias;
  RIVULET_RETURN_IF_ERROR(ParseGraniteAttention(settings, trained, config));
  return ParseGraniteExperts(settings, config);
}

namespace {

// Gated DeltaNet within Qwen3.5.
absl::Status ParseQwen35Delta(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(
      settings->Int("linear_num_value_heads", 1, kMostColumns, &config->num_heads, 32));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("linear_num_key_heads", 1, kMostColumns, &config->num_key_heads, 16));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("linear_key_head_dim", 1, kMostColumns, &config->key_dim, 128));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("linear_value_head_dim", 1, kMostColumns, &config->value_dim, 128));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("linear_conv_kernel_dim", 1, 8, &config->block().conv_width, 4));
  RIVULET_RETURN_IF_ERROR(
      settings->Bool("linear_value_heads_tiled", &config->block().tiled_heads, false));
  config->block().output_gate = true;
  if (config->num_heads % config->num_key_heads == 0) return absl::OkStatus();
  return settings->Invalid("linear_num_value_heads", "is ", config->num_heads,
                           "; allowed: a multiple of linear_num_key_heads, ",
                           config->num_key_heads);
}

absl::Status ParseQwen35Attention(JsonReader* settings, int trained, ModelConfig* config) {
  SoftmaxConfig softmax;
  RIVULET_RETURN_IF_ERROR(ParseHeads(settings, &softmax));
  RIVULET_RETURN_IF_ERROR(settings->Int("head_dim", 1, kMostColumns, &softmax.head_dim, 256));
  softmax.scale = InverseRoot(softmax.head_dim);
  softmax.head_norm = softmax.gate = true;
  RIVULET_RETURN_IF_ERROR(ParseRope(
      settings, {.head_dim = softmax.head_dim, .max_positions = double(trained), .partial = 0.25},
      &softmax.rope));
  // If both are present, transformers reads only layer_types.
  int interval = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("full_attention_interval", 1, kMostColumns, &interval, 4));
  std::vector<LayerParts> every(size_t(config->num_layers));
  for (size_t i = 0; i < every.size(); ++i) {
    if ((i + 1) % size_t(interval) == 0) every[i] = kAttentionLayer;
  }
  RIVULET_RETURN_IF_ERROR(
      ParseLayerNames(settings, "layer_types",
                      {{"linear_attention", kRecurrentLayer}, {"full_attention", kAttentionLayer}},
                      std::move(every), config));
  config->block().softmax = std::move(softmax);
  return CheckSoftmaxSizes(*settings, *config);
}

}  // namespace

namespace {

// Qwen3.5 but its feed-forward.
absl::Status ParseQwen35Rest(JsonReader* settings, ModelConfig* config) {
  // Of multi-token prediction the tensors tell (PackedWeights::predictor).
  settings->Known({"attention_dropout", "mamba_ssm_dtype", "mtp_num_hidden_layers",
                   "mtp_use_dedicated_embeddings"});
  RIVULET_RETURN_IF_ERROR(settings->Only("hidden_act", R"("silu", "swish")"));
  RIVULET_RETURN_IF_ERROR(settings->Only("attn_output_gate", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Positive("rms_norm_eps", &config->norm_eps, 1e-6f));
  const JsonValue* mlp_only = settings->Find("mlp_only_layers");
  if (mlp_only != nullptr && (mlp_only->kind != Kind::kArray || !mlp_only->items.empty())) {
    return settings->Unsupported("mlp_only_layers", "is ", Describe(*mlp_only), "; supported: []");
  }
  config->block().norm_around_one = true;
  RIVULET_ASSIGN_OR_RETURN(const int trained, ParsePositions(settings, config));
  RIVULET_RETURN_IF_ERROR(ParseQwen35Delta(settings, config));
  return ParseQwen35Attention(settings, trained, config);
}

}  // namespace

absl::Status ParseQwen35(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Int("intermediate_size", 1, kMostColumns, &config->ffn_size));
  return ParseQwen35Rest(settings, config);
}

absl::Status ParseQwen35Moe(JsonReader* settings, ModelConfig* config) {
  // No layer has a feed-forward of intermediate_size.
  settings->Known({"intermediate_size", "output_router_logits", "router_aux_loss_coef"});
  RIVULET_RETURN_IF_ERROR(ParseQwen35Rest(settings, config));
  ExpertsConfig experts;
  RIVULET_RETURN_IF_ERROR(ParseExperts(
      settings,
      {"num_experts", "moe_intermediate_size", 256, 8, 512, "shared_expert_intermediate_size", 512},
      &experts));
  RIVULET_RETURN_IF_ERROR(settings->Only("norm_topk_prob", "true"));
  config->ffn_size = experts.shared_size;
  experts.shared_gate = true;
  UseExperts(experts, 0, config);
  return absl::OkStatus();
}

namespace {

// block_ff_dim, or intermediate_size, which may be adjusted.
absl::Status ParseLfm2Ffn(JsonReader* settings, ModelConfig* config) {
  int size = 0, unit = 0;
  bool adjust = true;
  double factor = 1;
  const char* const name =
      settings->Find("block_ff_dim") == nullptr ? "intermediate_size" : "block_ff_dim";
  settings->Known({"intermediate_size"});
  RIVULET_RETURN_IF_ERROR(settings->Int(name, 1, kMostColumns, &size, 12288));
  RIVULET_RETURN_IF_ERROR(settings->Bool("block_auto_adjust_ff_dim", &adjust, true));
  RIVULET_RETURN_IF_ERROR(settings->Positive("block_ffn_dim_multiplier", &factor, 1.0));
  RIVULET_RETURN_IF_ERROR(settings->Int("block_multiple_of", 1, kMostColumns, &unit, 256));
  config->ffn_size = size;
  if (!adjust) return absl::OkStatus();
  const double wanted = std::floor(factor * std::floor(2.0 * size / 3));
  const double rounded = unit * std::ceil(wanted / unit);
  if (!(rounded >= 1 && rounded <= double(kMostColumns))) {
    return settings->Invalid("block_ffn_dim_multiplier", "is ", factor,
                             ": the feed-forward has no size");
  }
  config->ffn_size = static_cast<int>(rounded);
  return absl::OkStatus();
}

// `layer_types`, or in older files the indices of the layers with attention; without either, all
// layers.
absl::Status ParseLfm2Layers(JsonReader* settings, ModelConfig* config) {
  constexpr char kIndices[] = "full_attn_idxs";
  const bool indices = settings->Find(kIndices) != nullptr;
  std::vector<LayerParts> layers(size_t(config->num_layers),
                                 indices ? kRecurrentLayer : kAttentionLayer);
  const auto set = [&](const JsonValue& item, absl::string_view path) {
    if (item.kind != Kind::kInteger || item.integer < 0 || item.integer >= config->num_layers) {
      return settings->Invalid(kIndices, "holds ", Describe(item), " at ", path,
                               "; allowed: layers, 0 to ", config->num_layers - 1);
    }
    layers[size_t(item.integer)] = kAttentionLayer;
    return absl::OkStatus();
  };
  if (indices) RIVULET_RETURN_IF_ERROR(settings->ForEach(kIndices, set));
  return ParseLayerNames(settings, "layer_types",
                         {{"conv", kRecurrentLayer}, {"full_attention", kAttentionLayer}},
                         std::move(layers), config);
}

// LFM2 but its feed-forward.
absl::Status ParseLfm2Rest(JsonReader* settings, ModelConfig* config) {
  // These repeat other settings, or are for training.
  settings->Known({"block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale",
                   "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta"});
  RIVULET_RETURN_IF_ERROR(settings->Only("block_use_swiglu", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("block_use_xavier_init", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_pos_enc", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Positive("norm_eps", &config->norm_eps, 1e-5f));
  BlockConfig& block = config->block();
  const char* const tied =
      settings->Find("tie_embedding") == nullptr ? "tie_word_embeddings" : "tie_embedding";
  RIVULET_RETURN_IF_ERROR(settings->Bool(tied, &block.tied_head, true));
  RIVULET_RETURN_IF_ERROR(settings->Int("conv_L_cache", 1, 8, &block.conv_width, 3));
  RIVULET_RETURN_IF_ERROR(settings->Bool("conv_bias", &block.conv_bias, false));
  block.projection_bias = block.conv_bias;
  RIVULET_ASSIGN_OR_RETURN(const int trained, ParsePositions(settings, config));
  SoftmaxConfig softmax;
  RIVULET_RETURN_IF_ERROR(ParseHeads(settings, &softmax));
  RIVULET_RETURN_IF_ERROR(SetHeadDim(*settings, *config, &softmax));
  softmax.scale = InverseRoot(softmax.head_dim);
  softmax.head_norm = true;
  RIVULET_RETURN_IF_ERROR(ParseRope(
      settings, {.head_dim = softmax.head_dim, .max_positions = double(trained), .theta = 1e6},
      &softmax.rope));
  RIVULET_RETURN_IF_ERROR(ParseLfm2Layers(settings, config));
  // The width of the mixer's rows.
  config->num_heads = softmax.num_heads;
  config->key_dim = config->value_dim = softmax.head_dim;
  block.softmax = std::move(softmax);
  return CheckSoftmaxSizes(*settings, *config);
}

}  // namespace

absl::Status ParseLfm2(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseLfm2Ffn(settings, config));
  return ParseLfm2Rest(settings, config);
}

absl::Status ParseLfm2Moe(JsonReader* settings, ModelConfig* config) {
  settings->Known({"output_router_logits"});
  RIVULET_RETURN_IF_ERROR(ParseLfm2Rest(settings, config));
  int dense = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("num_dense_layers", 0, config->num_layers, &dense, 2));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("intermediate_size", 1, kMostColumns, &config->ffn_size, 7168));
  ExpertsConfig experts;
  RIVULET_RETURN_IF_ERROR(
      ParseExperts(settings, {"num_experts", "moe_intermediate_size", 32, 4, 1792}, &experts));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_expert_bias", &experts.bias, true));
  RIVULET_RETURN_IF_ERROR(ParseSigmoidRouter(settings, 1e-6, &experts));
  UseExperts(experts, dense, config);
  return absl::OkStatus();
}

namespace {

// An array of `count` numbers above 0; ones if it is missing.
absl::Status ParseMultipliers(JsonReader* settings, absl::string_view name, size_t count,
                              std::vector<float>* out) {
  out->assign(count, 1);
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* list,
                           settings->Get(name, Kind::kArray, /*may_miss=*/true));
  if (list == nullptr) return absl::OkStatus();
  if (list->items.size() != count) {
    return settings->Invalid(name, "has ", list->items.size(), " entries; allowed: ", count);
  }
  for (size_t i = 0; i < count; ++i) {
    const JsonValue& item = list->items[i];
    if (!item.is_number() || !(item.number > 0)) {
      return settings->Invalid(name, "holds ", Describe(item), " at ", i,
                               "; allowed: numbers above 0");
    }
    (*out)[i] = static_cast<float>(item.number);
  }
  return absl::OkStatus();
}

absl::Status ParseFalconMamba(JsonReader* settings, ModelConfig* config) {
  BlockConfig& block = config->block();
  RIVULET_RETURN_IF_ERROR(ParseMamba(settings, "mamba_d_ssm", config));
  bool norm = false, first = true;
  RIVULET_RETURN_IF_ERROR(settings->Bool("mamba_rms_norm", &norm, false));
  RIVULET_RETURN_IF_ERROR(settings->Bool("mamba_norm_before_gate", &first, true));
  block.mamba_norm = !norm   ? MambaNorm::kNone
                     : first ? MambaNorm::kNormFirst
                             : MambaNorm::kGateFirst;
  RIVULET_RETURN_IF_ERROR(settings->Positive("ssm_in_multiplier", &block.mamba_input_scale, 1.0f));
  RIVULET_RETURN_IF_ERROR(
      ParseMultipliers(settings, "ssm_multipliers", 5, &block.mamba_multipliers));
  for (float& multiplier : block.mamba_multipliers) multiplier *= block.mamba_input_scale;
  return settings->Positive("ssm_out_multiplier", &block.mixer_multiplier, 1.0f);
}

absl::Status ParseFalconAttention(JsonReader* settings, int trained, ModelConfig* config) {
  SoftmaxConfig softmax;
  RIVULET_RETURN_IF_ERROR(ParseHeads(settings, &softmax));
  const int divided = config->hidden_size / softmax.num_heads;
  RIVULET_RETURN_IF_ERROR(settings->Int("head_dim", 1, kMostColumns, &softmax.head_dim, divided));
  float key = 1, in = 1, out = 1;
  RIVULET_RETURN_IF_ERROR(settings->Positive("key_multiplier", &key, 1.0f));
  RIVULET_RETURN_IF_ERROR(settings->Positive("attention_in_multiplier", &in, 1.0f));
  RIVULET_RETURN_IF_ERROR(settings->Positive("attention_out_multiplier", &out, 1.0f));
  softmax.scale = InverseRoot(softmax.head_dim) * key * in * in;
  softmax.input_scale = in;
  softmax.output_scale = in * out;
  RIVULET_RETURN_IF_ERROR(ParseRope(
      settings, {.head_dim = softmax.head_dim, .max_positions = double(trained)}, &softmax.rope));
  config->block().layers.assign(size_t(config->num_layers), {.recurrent = true, .attends = true});
  config->block().softmax = std::move(softmax);
  return CheckSoftmaxSizes(*settings, *config);
}

}  // namespace

absl::Status ParseFalconH1(JsonReader* settings, ModelConfig* config) {
  settings->Known({"attention_dropout", "attn_layer_indices", "mamba_chunk_size", "mamba_use_mlp",
                   "mlp_expansion_factor", "num_logits_to_keep", "pad_token_id", "rms_norm"});
  BlockConfig& block = config->block();
  RIVULET_RETURN_IF_ERROR(settings->Only("hidden_act", R"("silu", "swish")"));
  RIVULET_RETURN_IF_ERROR(settings->Positive("rms_norm_eps", &config->norm_eps, 1e-5f));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("intermediate_size", 1, kMostColumns, &config->ffn_size, 14336));
  RIVULET_RETURN_IF_ERROR(settings->Bool("mlp_bias", &block.ffn_bias, false));
  RIVULET_RETURN_IF_ERROR(settings->Bool("projectors_bias", &block.out_bias, false));
  RIVULET_RETURN_IF_ERROR(
      settings->Positive("embedding_multiplier", &block.embedding_multiplier, 1.0f));
  float head = 1;
  RIVULET_RETURN_IF_ERROR(settings->Positive("lm_head_multiplier", &head, 1.0f));
  block.logits_scaling = 1 / head;
  std::vector<float> mlp;
  RIVULET_RETURN_IF_ERROR(ParseMultipliers(settings, "mlp_multipliers", 2, &mlp));
  block.gate_multiplier = mlp[0];
  block.ffn_multiplier = mlp[1];
  RIVULET_ASSIGN_OR_RETURN(const int trained, ParsePositions(settings, config));
  RIVULET_RETURN_IF_ERROR(ParseFalconMamba(settings, config));
  return ParseFalconAttention(settings, trained, config);
}

bool IsSkippedTensor(const ModelConfig& config, absl::string_view name) {
  const auto* const block = std::get_if<BlockConfig>(&config.network);
  if (block == nullptr) return config.encoder().tied_head && name == "lm_head.decoder.weight";
  if (!block->kind->hybrid) return false;
  if (name == "lm_head.weight") return block->tied_head;
  const bool delta = block->kind->mixer == Mixer::kDelta;
  return ((delta || block->squared_relu) && absl::StartsWith(name, "mtp.")) ||
         (delta && absl::StartsWith(name, "model.visual."));
}

absl::StatusOr<JsonValue> TextConfigOf(const JsonRules& rules, const JsonValue& config) {
  const JsonValue* text = config.Find("text_config");
  if (text == nullptr || text->kind != Kind::kObject) {
    return rules.Invalid("text_config",
                         "is missing, or no object; a model of model_type qwen3_5 "
                         "has its settings there");
  }
  JsonValue own = *text;
  constexpr char kTied[] = "tie_word_embeddings";
  const JsonValue* outer = config.Find(kTied);  // this one counts; false if missing
  JsonValue untied;
  untied.kind = Kind::kBool;
  if (outer == nullptr) outer = &untied;
  const auto inner = std::find(own.keys.begin(), own.keys.end(), kTied);
  if (inner != own.keys.end()) {
    own.items[size_t(inner - own.keys.begin())] = *outer;
  } else {
    own.keys.emplace_back(kTied);
    own.items.push_back(*outer);
  }
  return own;
}

}  // namespace rivulet
