// SPDX-License-Identifier: Apache-2.0
// The settings of Nemotron-H, whose layers are one mixer or one feed-forward each.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/hybrid_parts.h"
#include "model/hybrid_settings.h"
#include "model/mamba2_settings.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

constexpr LayerParts kMixer = {.recurrent = true, .attends = false, .ffn = FeedForward::kNone};
constexpr LayerParts kAttention = {.recurrent = false, .attends = true, .ffn = FeedForward::kNone};
constexpr LayerParts kDense = {.recurrent = false, .attends = false, .ffn = FeedForward::kDense};
constexpr LayerParts kExperts = {
    .recurrent = false, .attends = false, .ffn = FeedForward::kExperts};

bool Same(const LayerParts& a, const LayerParts& b) {
  return a.recurrent == b.recurrent && a.attends == b.attends && a.ffn == b.ffn;
}

// A letter for each layer.
absl::Status ParsePattern(const JsonReader& settings, const JsonValue& pattern,
                          std::vector<LayerParts>* layers) {
  constexpr std::pair<char, LayerParts> kLetters[] = {
      {'M', kMixer}, {'*', kAttention}, {'-', kDense}, {'E', kExperts}};
  for (const char letter : pattern.text) {
    const auto* const found = std::find_if(std::begin(kLetters), std::end(kLetters),
                                           [&](const auto& of) { return of.first == letter; });
    if (found == std::end(kLetters)) {
      return settings.Unsupported("hybrid_override_pattern", "holds ",
                                  Quoted(std::string(1, letter)), "; supported: M, *, -, E");
    }
    layers->push_back(found->second);
  }
  return absl::OkStatus();
}

// hybrid_override_pattern, layers_block_type or layer_types. num_hidden_layers repeats the number.
absl::Status ParseLayers(JsonReader* settings, ModelConfig* config) {
  constexpr char kPattern[] = "hybrid_override_pattern";
  const int stated = std::exchange(config->num_layers, 0);
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view list,
                           settings->Spelling("layers_block_type", "layer_types"));
  RIVULET_RETURN_IF_ERROR(ParseLayerNames(settings, list,
                                          {{"linear_attention", kMixer},
                                           {"mamba", kMixer},
                                           {"full_attention", kAttention},
                                           {"attention", kAttention},
                                           {"mlp", kDense},
                                           {"moe", kExperts}},
                                          {}, config));
  std::vector<LayerParts>& layers = config->block().layers;
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* pattern,
                           settings->Get(kPattern, Kind::kString, /*may_miss=*/!layers.empty()));
  if (pattern != nullptr) {
    std::vector<LayerParts> named = std::exchange(layers, {});
    RIVULET_RETURN_IF_ERROR(ParsePattern(*settings, *pattern, &layers));
    if (!named.empty() &&
        !std::equal(named.begin(), named.end(), layers.begin(), layers.end(), Same)) {
      return settings->Invalid(kPattern, "is ", Describe(*pattern), ", but ", list,
                               " names other layers");
    }
  }
  if (layers.empty() || layers.size() > kMostLayers ||
      (stated != 0 && std::ssize(layers) != stated)) {
    return settings->Invalid(pattern != nullptr ? kPattern : list, "has ", layers.size(),
                             " layers; allowed: 1 to ", kMostLayers,
                             ", and num_hidden_layers where that is given");
  }
  config->num_layers = static_cast<int>(layers.size());
  return absl::OkStatus();
}

absl::Status ParseMamba(JsonReader* settings, ModelConfig* config) {
  BlockConfig& block = config->block();
  settings->Known({"expand", "mamba_proj_bias", "mamba_ssm_cache_dtype", "time_step_floor",
                   "time_step_max", "time_step_min", "time_step_rank", "use_mamba_kernels"});
  RIVULET_RETURN_IF_ERROR(settings->Only("mamba_hidden_act", R"("silu", "swish")"));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("mamba_num_heads", 1, kMostColumns, &config->num_heads, 128));
  RIVULET_RETURN_IF_ERROR(settings->Int("mamba_head_dim", 1, kMostColumns, &config->value_dim, 64));
  RIVULET_RETURN_IF_ERROR(settings->Int("ssm_state_size", 1, kMostColumns, &config->key_dim, 128));
  RIVULET_RETURN_IF_ERROR(settings->Int("n_groups", 1, kMostColumns, &block.num_groups, 8));
  RIVULET_RETURN_IF_ERROR(settings->Int("conv_kernel", 1, 8, &block.conv_width, 4));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_conv_bias", &block.conv_bias, true));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_bias", &block.projection_bias, false));
  block.out_bias = block.projection_bias;
  return FinishMamba2(settings, "n_groups", "mamba_num_heads", config);
}

absl::Status ParseAttention(JsonReader* settings, ModelConfig* config) {
  SoftmaxConfig softmax;
  settings->Known({"attention_dropout", "partial_rotary_factor", "rope_scaling", "rope_theta"});
  RIVULET_RETURN_IF_ERROR(settings->Only("sliding_window", "null"));
  RIVULET_RETURN_IF_ERROR(ParseHeads(settings, &softmax));
  RIVULET_RETURN_IF_ERROR(settings->Int("head_dim", 1, kMostColumns, &softmax.head_dim, 128));
  softmax.scale = InverseRoot(softmax.head_dim);
  config->block().softmax = std::move(softmax);
  return CheckSoftmaxSizes(*settings, *config);
}

absl::Status ParseGroups(JsonReader* settings, kernels::Router* router) {
  RIVULET_RETURN_IF_ERROR(settings->Int("n_group", 1, router->experts, &router->groups, 1));
  RIVULET_RETURN_IF_ERROR(settings->Int("topk_group", 1, router->groups, &router->kept_groups, 1));
  if (router->experts % router->groups != 0) {
    return settings->Invalid("n_group", "is ", router->groups, "; n_routed_experts, ",
                             router->experts, ", does not divide by it");
  }
  const int left = router->experts / router->groups * router->kept_groups;
  if (router->chosen <= left) return absl::OkStatus();
  return settings->Invalid("topk_group", "is ", router->kept_groups, ": groups of ", left,
                           " experts; allowed: at least num_experts_per_tok, ", router->chosen);
}

absl::Status ParseNemotronExperts(JsonReader* settings, ModelConfig* config) {
  settings->Known({"moe_shared_expert_overlap", "mtp_hybrid_override_pattern",
                   "mtp_layers_block_type", "n_shared_experts", "num_nextn_predict_layers",
                   "output_router_logits"});
  const std::vector<LayerParts>& layers = config->block().layers;
  if (std::none_of(layers.begin(), layers.end(),
                   [](const LayerParts& layer) { return layer.ffn == FeedForward::kExperts; })) {
    settings->Known({"moe_intermediate_size", "moe_latent_size",
                     "moe_shared_expert_intermediate_size", "n_group", "n_routed_experts",
                     "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor",
                     "topk_group"});
    return absl::OkStatus();
  }
  ExpertsConfig experts;
  experts.bias = true;
  RIVULET_RETURN_IF_ERROR(ParseExperts(settings,
                                       {"n_routed_experts", "moe_intermediate_size", 8, 2, 7688,
                                        "moe_shared_expert_intermediate_size", 7688},
                                       &experts));
  RIVULET_RETURN_IF_ERROR(ParseSigmoidRouter(settings, 1e-20, &experts));
  RIVULET_RETURN_IF_ERROR(ParseGroups(settings, &experts.router));
  std::optional<int> latent;
  RIVULET_RETURN_IF_ERROR(settings->Int("moe_latent_size", 1, kMostColumns, &latent));
  experts.latent_size = latent.value_or(0);
  config->block().experts = experts;
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseNemotron(JsonReader* settings, ModelConfig* config) {
  settings->Known({"hidden_dropout", "num_logits_to_keep"});
  BlockConfig& block = config->block();
  block.squared_relu = true;
  RIVULET_RETURN_IF_ERROR(settings->Only("mlp_hidden_act", R"("relu2")"));
  RIVULET_RETURN_IF_ERROR(settings->Bool("mlp_bias", &block.ffn_bias, false));
  RIVULET_RETURN_IF_ERROR(settings->Positive("layer_norm_epsilon", &config->norm_eps, 1e-5f));
  settings->Known({"norm_eps", "rms_norm_eps"});
  RIVULET_RETURN_IF_ERROR(
      settings->Int("intermediate_size", 1, kMostColumns, &config->ffn_size, 21504));
  RIVULET_RETURN_IF_ERROR(ParsePositions(settings, config).status());
  RIVULET_RETURN_IF_ERROR(ParseLayers(settings, config));
  RIVULET_RETURN_IF_ERROR(ParseMamba(settings, config));
  RIVULET_RETURN_IF_ERROR(ParseNemotronExperts(settings, config));
  return ParseAttention(settings, config);
}

}  // namespace rivulet
