// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/block_settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/blocks/settings_reader.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

constexpr double kMaxStateFloats = double{uint64_t{4} << 30};  // 16 GiB

absl::StatusOr<const BlockKind*> KindOf(const JsonValue& config, SettingsReader* settings) {
  const JsonValue* type = settings->Find("model_type");
  const std::string name = type != nullptr && type->kind == Kind::kString ? type->text : "";
  std::vector<std::string> known;
  for (const BlockKind& kind : BlockKinds()) {
    if (kind.model_type == name) return &kind;
    known.emplace_back(kind.model_type);
  }
  return UnsupportedSetting(
      "model_type", absl::StrCat("is ", type == nullptr ? "missing" : DescribeModelType(config),
                                 "; supported: ", absl::StrJoin(known, ", "), " (docs/models.md)"));
}

// Softmax layers between the others: `attn` of flash-linear-attention.
absl::Status CheckNoSoftmaxLayers(SettingsReader* settings) {
  const JsonValue* attn = settings->Find("attn");
  if (attn == nullptr) return absl::OkStatus();
  return UnsupportedSetting(
      "attn",
      absl::StrCat("is ", Describe(*attn), ": layers with softmax attention are not supported"));
}

// One of two spellings of a setting; an error where both are there.
absl::StatusOr<absl::string_view> Spelling(SettingsReader* settings, absl::string_view name,
                                           absl::string_view other) {
  const bool first = settings->Find(name) != nullptr, second = settings->Find(other) != nullptr;
  if (first && second) return InvalidSetting(other, absl::StrCat("stands beside ", name));
  return second ? other : name;
}

// What all kinds have.
absl::Status ParseCommon(SettingsReader* settings, ModelConfig* config) {
  settings->Harmless({"architectures",
                      "auto_map",
                      "attn_mode",
                      "bos_token_id",
                      "chunk_size",
                      "chunk_size_feed_forward",
                      "dtype",
                      "fuse_cross_entropy",
                      "fuse_linear_cross_entropy",
                      "fuse_norm",
                      "fuse_swiglu",
                      "id2label",
                      "initializer_range",
                      "label2id",
                      "max_position_embeddings",
                      "pad_token_id",
                      "residual_in_fp32",
                      "rescale_prenorm_residual",
                      "return_dict",
                      "tokenizer_class",
                      "torch_dtype",
                      "transformers_version",
                      "use_cache",
                      "use_l2warp",
                      "_attn_implementation_autoset",
                      "_name_or_path"});
  RIVULET_RETURN_IF_ERROR(settings->Count("vocab_size", 0, &config->vocab_size));
  RIVULET_RETURN_IF_ERROR(settings->Count("hidden_size", 0, &config->hidden_size));
  RIVULET_RETURN_IF_ERROR(settings->Count("num_hidden_layers", 0, &config->num_layers, 4096));
  RIVULET_RETURN_IF_ERROR(settings->Bool("tie_word_embeddings", false, &config->block().tied_head));
  RIVULET_RETURN_IF_ERROR(CheckNoSoftmaxLayers(settings));
  settings->Harmless({"eos_token_id"});  // read by ParseBlockConfig
  return absl::OkStatus();
}

absl::Status ParseEps(SettingsReader* settings, absl::string_view name, double eps,
                      ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Positive(name, eps, &eps));
  config->norm_eps = static_cast<float>(eps);
  return absl::OkStatus();
}

// intermediate_size, or what hidden_ratio makes of it: a multiple of `unit`, of `share` of the
// product.
absl::Status ParseFfn(SettingsReader* settings, double ratio, double share, int unit,
                      ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Positive("hidden_ratio", ratio, &ratio));
  const double size = std::floor(config->hidden_size * ratio * share);
  const double derived = unit * std::ceil(size / unit);
  if (!(derived <= double{kMaxDimension})) {
    return InvalidSetting("hidden_ratio",
                          absl::StrCat("is ", ratio, ": the feed-forward is too wide"));
  }
  return settings->Count("intermediate_size", static_cast<int>(derived), &config->ffn_size);
}

// A size a head: hidden_size times the setting, shared by the heads.
absl::Status ParseExpanded(SettingsReader* settings, absl::string_view name, double fallback,
                           const ModelConfig& config, int* out) {
  double expand = fallback;
  RIVULET_RETURN_IF_ERROR(settings->Positive(name, fallback, &expand));
  const double all = std::floor(config.hidden_size * expand);
  if (!(all >= 1 && all <= double{kMaxDimension}) || int64_t(all) % config.num_heads != 0) {
    return InvalidSetting(name, absl::StrCat("is ", expand, ": ", all, " columns do not divide by ",
                                             config.num_heads, " heads"));
  }
  *out = static_cast<int>(int64_t(all) / config.num_heads);
  return absl::OkStatus();
}

// Other numbers of heads for keys or values are not supported.
absl::Status CheckSameHeads(SettingsReader* settings, absl::string_view name,
                            const ModelConfig& config) {
  const JsonValue* value = settings->Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (value->kind == Kind::kInteger && value->integer == config.num_heads) return absl::OkStatus();
  return UnsupportedSetting(
      name,
      absl::StrCat("is ", Describe(*value), "; supported: null or num_heads, ", config.num_heads));
}

// What the models of flash-linear-attention share, RWKV-7 apart.
absl::Status ParseFla(SettingsReader* settings, double hidden_ratio, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->OneOf("hidden_act", {"swish", "silu"}));
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view eps,
                           Spelling(settings, "norm_eps", "rms_norm_eps"));
  RIVULET_RETURN_IF_ERROR(ParseEps(settings, eps, 1e-6, config));
  RIVULET_RETURN_IF_ERROR(settings->Only("elementwise_affine", true));
  RIVULET_RETURN_IF_ERROR(settings->Absent("attnres_block_size"));
  return ParseFfn(settings, hidden_ratio, 2.0 / 3, 256, config);
}

// RetNet, GLA: expand_k and expand_v, an output gate, no convolution.
absl::Status ParseGated(SettingsReader* settings, double expand_k, double expand_v,
                        ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Count("num_heads", 0, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_k", expand_k, *config, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(
      ParseExpanded(settings, "expand_v", expand_v, *config, &config->value_dim));
  RIVULET_RETURN_IF_ERROR(CheckSameHeads(settings, "num_kv_heads", *config));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_short_conv", false));
  settings->Harmless({"conv_size", "share_conv_kernel"});  // of the convolution that is off
  RIVULET_RETURN_IF_ERROR(settings->Only("use_output_gate", true));
  config->block().output_gate = true;
  return settings->Absent("feature_map");
}

absl::Status ParseRetNet(SettingsReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 2, config));
  RIVULET_RETURN_IF_ERROR(ParseGated(settings, 1, 2, config));
  if (config->key_dim % 2 == 0) return absl::OkStatus();
  return InvalidSetting("expand_k", absl::StrCat("gives heads of ", config->key_dim,
                                                 " columns; rotary positions need an even number"));
}

absl::Status ParseGla(SettingsReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(ParseGated(settings, 0.5, 1, config));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_gk", true));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_gv", false));
  double normalizer = 16;
  RIVULET_RETURN_IF_ERROR(settings->Positive("gate_logit_normalizer", normalizer, &normalizer));
  config->block().gate_normalizer = static_cast<float>(normalizer);
  settings->Harmless({"gate_low_rank_dim"});  // the tensors say it
  const JsonValue* floor = settings->Find("clamp_min");
  if (floor == nullptr) return absl::OkStatus();
  if (!floor->is_number() || floor->number > 0) {
    return InvalidSetting("clamp_min",
                          absl::StrCat("is ", Describe(*floor), "; allowed: at most 0"));
  }
  config->block().gate_floor = static_cast<float>(floor->number);
  return absl::OkStatus();
}

absl::Status ParseHgrn2(SettingsReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  int expand = 0;
  RIVULET_RETURN_IF_ERROR(settings->Count("expand_ratio", 128, &expand));
  if (settings->Find("num_heads") == nullptr && config->hidden_size % expand != 0) {
    return InvalidSetting("expand_ratio",
                          absl::StrCat("is ", expand, "; hidden_size, ", config->hidden_size,
                                       ", is no multiple of it"));
  }
  RIVULET_RETURN_IF_ERROR(
      settings->Count("num_heads", std::max(1, config->hidden_size / expand), &config->num_heads));
  if (config->hidden_size % config->num_heads != 0) {
    return InvalidSetting(
        "num_heads", absl::StrCat("is ", config->num_heads, "; hidden_size, ", config->hidden_size,
                                  ", does not divide by it"));
  }
  config->key_dim = expand;
  config->value_dim = config->hidden_size / config->num_heads;
  RIVULET_RETURN_IF_ERROR(settings->Only("use_short_conv", false));
  settings->Harmless({"conv_size", "share_conv_kernel"});
  return settings->Only("use_lower_bound", true);
}

// The convolution of the delta rules.
absl::Status ParseShortConv(SettingsReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Only("use_short_conv", true));
  RIVULET_RETURN_IF_ERROR(settings->Only("conv_bias", false));
  RIVULET_RETURN_IF_ERROR(settings->Only("share_conv_kernel", false));
  RIVULET_RETURN_IF_ERROR(
      settings->Bool("allow_neg_eigval", false, &config->block().negative_eigenvalues));
  return settings->Count("conv_size", 4, &config->block().conv_width, 8);
}

absl::Status ParseDeltaNet(SettingsReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(settings->Count("num_heads", 0, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_k", 1, *config, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_v", 1, *config, &config->value_dim));
  RIVULET_RETURN_IF_ERROR(ParseShortConv(settings, config));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_gate", false, &config->block().output_gate));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_beta", true));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_output_norm", true));
  RIVULET_RETURN_IF_ERROR(settings->OneOf("qk_activation", {"silu"}));
  return settings->OneOf("qk_norm", {"l2"});
}

// Gated DeltaNet and KDA: head_dim and expand_v.
absl::Status ParseHeadDim(SettingsReader* settings, int head_dim, double expand_v,
                          ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Count("num_heads", 0, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(settings->Count("head_dim", head_dim, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(settings->Positive("expand_v", expand_v, &expand_v));
  const double value_dim = config->key_dim * expand_v;
  if (value_dim < 1 || value_dim > double{kMaxDimension} || value_dim != std::floor(value_dim)) {
    return InvalidSetting("expand_v",
                          absl::StrCat("is ", expand_v, ": heads of ", value_dim, " values"));
  }
  config->value_dim = static_cast<int>(value_dim);
  return absl::OkStatus();
}

// Each head of q and k may serve several of v.
absl::Status ParseValueHeads(SettingsReader* settings, ModelConfig* config) {
  int value_heads = 0;
  RIVULET_RETURN_IF_ERROR(settings->Count("num_v_heads", config->num_heads, &value_heads));
  if (value_heads % config->num_heads != 0) {
    return InvalidSetting("num_v_heads",
                          absl::StrCat("is ", value_heads, "; allowed: a multiple of num_heads, ",
                                       config->num_heads));
  }
  config->num_key_heads = std::exchange(config->num_heads, value_heads);
  return absl::OkStatus();
}

absl::Status ParseGatedDeltaNet(SettingsReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(ParseHeadDim(settings, 256, 2, config));
  RIVULET_RETURN_IF_ERROR(ParseValueHeads(settings, config));
  RIVULET_RETURN_IF_ERROR(ParseShortConv(settings, config));
  RIVULET_RETURN_IF_ERROR(settings->OneOf("output_gate_activation", {"swish", "silu"}));
  return settings->Bool("use_gate", true, &config->block().output_gate);
}

absl::Status ParseKda(SettingsReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(ParseHeadDim(settings, 128, 1, config));
  RIVULET_RETURN_IF_ERROR(CheckSameHeads(settings, "num_v_heads", *config));
  RIVULET_RETURN_IF_ERROR(ParseShortConv(settings, config));
  config->block().output_gate = true;
  const JsonValue* bound = settings->Find("lower_bound");
  if (bound != nullptr)
    return UnsupportedSetting("lower_bound", absl::StrCat("is ", Describe(*bound)));
  return settings->Only("safe_gate", false);
}

// A number, or {"__float__": "Infinity"}.
absl::StatusOr<float> Limit(const JsonValue& value) {
  const JsonValue* text = value.Find("__float__");
  if (text != nullptr && text->text == "Infinity") return std::numeric_limits<float>::infinity();
  if (value.is_number() && value.number >= 0) return static_cast<float>(value.number);
  return InvalidSetting("time_step_limit", absl::StrCat("holds ", Describe(value),
                                                        "; allowed: numbers from 0, or infinity"));
}

absl::Status ParseTimeStepLimit(SettingsReader* settings, ModelConfig* config) {
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view name,
                           Spelling(settings, "time_step_limit", "dt_limit"));
  config->block().dt_min = 0;
  config->block().dt_max = std::numeric_limits<float>::infinity();
  const JsonValue* limit = settings->Find(name);
  if (limit == nullptr) return absl::OkStatus();
  if (limit->kind != Kind::kArray || limit->items.size() != 2) {
    return InvalidSetting(name, absl::StrCat("is ", Describe(*limit), "; allowed: an array of 2"));
  }
  RIVULET_ASSIGN_OR_RETURN(config->block().dt_min, Limit(limit->items[0]));
  RIVULET_ASSIGN_OR_RETURN(config->block().dt_max, Limit(limit->items[1]));
  if (config->block().dt_min <= config->block().dt_max) return absl::OkStatus();
  return InvalidSetting(name, "has a minimum above its maximum");
}

absl::Status ParseMamba2(SettingsReader* settings, ModelConfig* config) {
  // Of training: how parameters were drawn.
  settings->Harmless({"A_init_range", "conv_init", "dt_init_floor", "dt_max", "dt_min",
                      "time_step_floor", "time_step_max", "time_step_min", "time_step_rank"});
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view eps,
                           Spelling(settings, "layer_norm_epsilon", "norm_eps"));
  RIVULET_RETURN_IF_ERROR(ParseEps(settings, eps, 1e-5, config));
  if (eps == "layer_norm_epsilon") {
    // transformers 4.44 writes true; only its training reads it.
    settings->Harmless({"norm_before_gate"});
  } else {
    RIVULET_RETURN_IF_ERROR(settings->Only("norm_before_gate", false));
  }
  RIVULET_RETURN_IF_ERROR(settings->OneOf("hidden_act", {"silu", "swish"}));
  RIVULET_RETURN_IF_ERROR(settings->Only("rmsnorm", true));
  RIVULET_RETURN_IF_ERROR(settings->Only("rms_norm", true));
  RIVULET_RETURN_IF_ERROR(settings->Only("D_has_hdim", false));
  RIVULET_RETURN_IF_ERROR(settings->Count("num_heads", 128, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(settings->Count("head_dim", 64, &config->value_dim));
  RIVULET_RETURN_IF_ERROR(settings->Count("state_size", 128, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(settings->Count("n_groups", 8, &config->block().num_groups));
  RIVULET_RETURN_IF_ERROR(settings->Count("conv_kernel", 4, &config->block().conv_width, 8));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_conv_bias", true, &config->block().conv_bias));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_bias", false, &config->block().projection_bias));
  double expand = 0;
  RIVULET_RETURN_IF_ERROR(settings->Positive("expand", 2, &expand));
  if (std::floor(config->hidden_size * expand) !=
      double(config->num_heads) * double(config->value_dim)) {
    return InvalidSetting("expand", absl::StrCat("is ", expand, ": ", config->hidden_size * expand,
                                                 " columns are not num_heads, ", config->num_heads,
                                                 ", times head_dim, ", config->value_dim));
  }
  if (config->num_heads % config->block().num_groups != 0) {
    return InvalidSetting("n_groups",
                          absl::StrCat("is ", config->block().num_groups, "; num_heads, ",
                                       config->num_heads, ", does not divide by it"));
  }
  config->block().output_gate = true;
  return ParseTimeStepLimit(settings, config);
}

// An int, or one for each layer: only hidden_size.
absl::Status CheckValueDim(SettingsReader* settings, const ModelConfig& config) {
  const JsonValue* value = settings->Find("value_dim");
  if (value == nullptr) return absl::OkStatus();
  const auto fits = [&](const JsonValue& v) {
    return v.kind == Kind::kInteger && v.integer == config.hidden_size;
  };
  if (fits(*value)) return absl::OkStatus();
  if (value->kind == Kind::kArray && std::all_of(value->items.begin(), value->items.end(), fits)) {
    return absl::OkStatus();
  }
  return UnsupportedSetting(
      "value_dim",
      absl::StrCat("is ", Describe(*value), "; supported: hidden_size, ", config.hidden_size));
}

absl::Status ParseRwkv7(SettingsReader* settings, ModelConfig* config) {
  settings->Harmless({"a_low_rank_dim", "decay_low_rank_dim", "gate_low_rank_dim",
                      "v_low_rank_dim"});  // the tensors say them
  RIVULET_RETURN_IF_ERROR(ParseEps(settings, "norm_eps", 1e-5, config));
  RIVULET_RETURN_IF_ERROR(settings->OneOf("hidden_act", {"sqrelu"}));
  RIVULET_RETURN_IF_ERROR(ParseFfn(settings, 4, 1, 32, config));
  RIVULET_RETURN_IF_ERROR(CheckValueDim(settings, *config));
  RIVULET_RETURN_IF_ERROR(settings->Bool("norm_first", true, &config->block().first_norm));
  RIVULET_RETURN_IF_ERROR(settings->Bool("norm_bias", true, &config->block().norm_bias));
  RIVULET_RETURN_IF_ERROR(settings->Count("head_dim", 64, &config->key_dim));
  if (config->hidden_size % config->key_dim != 0) {
    return InvalidSetting("head_dim", absl::StrCat("is ", config->key_dim, "; hidden_size, ",
                                                   config->hidden_size, ", does not divide by it"));
  }
  config->num_heads = config->hidden_size / config->key_dim;
  config->value_dim = config->key_dim;
  config->block().output_gate = true;
  return CheckSameHeads(settings, "num_heads", *config);
}

// The table of kinds. Columns: BlockKind.
constexpr BlockKind kBlockKinds[] = {
    {.model_type = "retnet",
     .read_settings = ParseRetNet,
     .mixer = Mixer::kGated,
     .decay = DecayForm::kFixed,
     .rotary = true},
    {.model_type = "gla",
     .read_settings = ParseGla,
     .mixer = Mixer::kGated,
     .decay = DecayForm::kLowRank},
    {.model_type = "hgrn2",
     .read_settings = ParseHgrn2,
     .mixer = Mixer::kGated,
     .decay = DecayForm::kLowerBound,
     .norm_all_heads = true},
    {.model_type = "mamba2",
     .read_settings = ParseMamba2,
     .mixer = Mixer::kMamba2,
     .decay = DecayForm::kOfHead},
    {.model_type = "delta_net",
     .read_settings = ParseDeltaNet,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kNone},
    {.model_type = "gated_deltanet",
     .read_settings = ParseGatedDeltaNet,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kOfHead},
    {.model_type = "kda",
     .read_settings = ParseKda,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kLowRank,
     .low_rank_gate = true},
    {.model_type = "rwkv7",
     .read_settings = ParseRwkv7,
     .mixer = Mixer::kRwkv7,
     .decay = DecayForm::kLowRank,
     .low_rank_gate = true},
};

// That every product of sizes stays in range.
absl::Status CheckSizes(const ModelConfig& config) {
  const double heads = config.num_heads, keys = heads * config.key_dim,
               values = heads * config.value_dim;
  if (keys > double{kMaxDimension} || values > double{kMaxDimension}) {
    return InvalidSetting("num_heads", absl::StrCat("is ", config.num_heads, ": too many columns"));
  }
  const double state = config.num_layers *
                       (keys * config.value_dim + 8 * (2 * keys + values) + 2 * config.hidden_size);
  if (state <= kMaxStateFloats) return absl::OkStatus();
  return InvalidSetting("num_hidden_layers", absl::StrCat("is ", config.num_layers,
                                                          ": a state would be larger than 16 GiB"));
}

// Channels that the kind's convolution runs over.
int ConvChannels(const ModelConfig& config) {
  const BlockConfig& block = config.block();
  if (block.conv_width == 0) return 0;
  return block.kind->mixer == Mixer::kMamba2
             ? config.values() + 2 * block.num_groups * config.key_dim
             : 2 * config.keys() + config.values();
}

}  // namespace

std::span<const BlockKind> BlockKinds() { return kBlockKinds; }

bool HasModelType(const JsonValue& config) {
  return config.kind == Kind::kObject && config.Find("model_type") != nullptr;
}

std::string ArchitecturesOf(const JsonValue& config) {
  constexpr size_t kShown = 4;
  std::vector<std::string> names;
  const JsonValue* value = config.Find("architectures");
  if (value == nullptr || value->kind != Kind::kArray) return "";
  for (const JsonValue& name : value->items) {
    if (name.kind == Kind::kString && names.size() < kShown) names.push_back(Quoted(name.text));
  }
  return absl::StrJoin(names, ", ");
}

std::string DescribeModelType(const JsonValue& config) {
  const std::string architectures = ArchitecturesOf(config);
  return absl::StrCat(Describe(*config.Find("model_type")),
                      architectures.empty() ? "" : " (architectures ", architectures,
                      architectures.empty() ? "" : ")");
}

absl::StatusOr<ModelConfig> ParseBlockConfig(const JsonValue& json) {
  if (json.kind != Kind::kObject) {
    return InvalidSetting("config.json", absl::StrCat("is ", Describe(json), ", not an object"));
  }
  SettingsReader settings(json);
  ModelConfig config;
  config.network = BlockConfig();
  RIVULET_ASSIGN_OR_RETURN(config.block().kind, KindOf(json, &settings));
  RIVULET_RETURN_IF_ERROR(ParseCommon(&settings, &config));
  RIVULET_RETURN_IF_ERROR(config.block().kind->read_settings(&settings, &config));
  RIVULET_RETURN_IF_ERROR(settings.CheckNoOthers());
  RIVULET_RETURN_IF_ERROR(CheckSizes(config));
  RIVULET_ASSIGN_OR_RETURN(const auto ends, ParseEosTokenIds(json, config.vocab_size));
  config.SetEnds(ends);
  config.block().conv_channels = ConvChannels(config);
  return config;
}

}  // namespace rivulet
