// SPDX-License-Identifier: Apache-2.0
#include "model/block_settings.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/json_reader.h"
#include "model/hybrid_settings.h"
#include "model/mamba2_settings.h"
#include "model/molformer_settings.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

// null counts as missing. An unknown setting that is off changes nothing.
constexpr JsonRules kSettingsRules = {
    .invalid = "INVALID_CONFIG", .unsupported = "UNSUPPORTED_MODEL", .unknown_may_be_off = true};
constexpr int64_t kMaxSize = int64_t{1} << 24;                 // largest dimension or vocabulary
constexpr double kMaxStateFloats = double{uint64_t{4} << 30};  // 16 GiB

// `text` with bare words Infinity spelled as an object.
std::string WithInfinitySpelled(absl::string_view text) {
  constexpr absl::string_view kWord = "Infinity";
  std::string spelled;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!in_string && text.substr(i, kWord.size()) == kWord) {
      spelled += "{\"__float__\": \"Infinity\"}";
      i += kWord.size() - 1;
      continue;
    }
    spelled += c;
    if (in_string && c == '\\' && i + 1 < text.size()) {
      spelled += text[++i];
    } else if (c == '"') {
      in_string = !in_string;
    }
  }
  return spelled;
}

// The model_type, if there is one, for messages, with the architectures.
std::string DescribeModelType(const JsonValue& config) {
  const std::string architectures = ArchitecturesOf(config);
  return absl::StrCat(Describe(*config.Find("model_type")),
                      architectures.empty() ? "" : " (architectures ", architectures,
                      architectures.empty() ? "" : ")");
}

// Their text models are a qwen3_5_text and a qwen3_5_moe_text.
constexpr const char* kWithVisionTower[] = {"qwen3_5", "qwen3_5_moe"};

absl::StatusOr<const BlockKind*> KindOf(const JsonValue& config, JsonReader* settings) {
  const JsonValue* type = settings->Find("model_type");
  const std::string name = type != nullptr && type->kind == Kind::kString ? type->text : "";
  std::vector<std::string> known;
  for (const BlockKind& kind : BlockKinds()) {
    if (kind.model_type == name) return &kind;
    known.emplace_back(kind.model_type);
  }
  known.insert(known.end(), std::begin(kWithVisionTower), std::end(kWithVisionTower));
  known.emplace_back(kMolformer);
  return settings->Unsupported("model_type", "is ",
                               type == nullptr ? "missing" : DescribeModelType(config),
                               "; supported: ", absl::StrJoin(known, ", "), " (docs/models.md)");
}

// Softmax layers between the recurrent ones: `attn` of flash-linear-attention.
absl::Status CheckNoSoftmaxLayers(JsonReader* settings) {
  const JsonValue* attn = settings->Find("attn");
  if (attn == nullptr) return absl::OkStatus();
  return settings->Unsupported("attn", "is ", Describe(*attn),
                               ": layers with softmax attention are not supported");
}

// The settings of all kinds.
absl::Status ParseCommon(JsonReader* settings, ModelConfig* config) {
  settings->Known({"architectures",
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
  RIVULET_RETURN_IF_ERROR(settings->Int("vocab_size", 1, kMaxSize, &config->vocab_size));
  RIVULET_RETURN_IF_ERROR(settings->Int("hidden_size", 1, kMaxSize, &config->hidden_size));
  const auto missing = config->block().kind->counts_layers ? std::optional<int>(0) : std::nullopt;
  RIVULET_RETURN_IF_ERROR(
      settings->Int("num_hidden_layers", 1, 4096, &config->num_layers, missing));
  RIVULET_RETURN_IF_ERROR(settings->Bool("tie_word_embeddings", &config->block().tied_head, false));
  RIVULET_RETURN_IF_ERROR(CheckNoSoftmaxLayers(settings));
  settings->Known({"eos_token_id"});  // read by ParseBlockConfig
  return absl::OkStatus();
}

// intermediate_size, or hidden_ratio * hidden_size * `share`, rounded to a multiple of `unit`.
absl::Status ParseFfn(JsonReader* settings, double ratio, double share, int unit,
                      ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Positive("hidden_ratio", &ratio, ratio));
  const double size = std::floor(config->hidden_size * ratio * share);
  const double derived = unit * std::ceil(size / unit);
  if (!(derived <= double{kMaxSize})) {
    return settings->Invalid("hidden_ratio", "is ", ratio, ": the feed-forward is too wide");
  }
  return settings->Int("intermediate_size", 1, kMaxSize, &config->ffn_size,
                       static_cast<int>(derived));
}

// A size per head: hidden_size times the setting, divided by the number of heads.
absl::Status ParseExpanded(JsonReader* settings, absl::string_view name, double fallback,
                           const ModelConfig& config, int* out) {
  double expand = fallback;
  RIVULET_RETURN_IF_ERROR(settings->Positive(name, &expand, fallback));
  const double all = std::floor(config.hidden_size * expand);
  if (!(all >= 1 && all <= double{kMaxSize}) || int64_t(all) % config.num_heads != 0) {
    return settings->Invalid(name, "is ", expand, ": ", all, " columns do not divide by ",
                             config.num_heads, " heads");
  }
  *out = static_cast<int>(int64_t(all) / config.num_heads);
  return absl::OkStatus();
}

// Other numbers of heads for keys or values are not supported.
absl::Status CheckSameHeads(JsonReader* settings, absl::string_view name,
                            const ModelConfig& config) {
  const JsonValue* value = settings->Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (value->kind == Kind::kInteger && value->integer == config.num_heads) return absl::OkStatus();
  return settings->Unsupported(name, "is ", Describe(*value), "; supported: null or num_heads, ",
                               config.num_heads);
}

// The common settings of flash-linear-attention's models except RWKV-7.
absl::Status ParseFla(JsonReader* settings, double hidden_ratio, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Only("hidden_act", R"("swish", "silu")"));
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view eps,
                           settings->Spelling("norm_eps", "rms_norm_eps"));
  RIVULET_RETURN_IF_ERROR(settings->Positive(eps, &config->norm_eps, 1e-6f));
  RIVULET_RETURN_IF_ERROR(settings->Only("elementwise_affine", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("attnres_block_size", "null"));
  return ParseFfn(settings, hidden_ratio, 2.0 / 3, 256, config);
}

// RetNet, GLA: expand_k and expand_v, an output gate, no convolution.
absl::Status ParseGated(JsonReader* settings, double expand_k, double expand_v,
                        ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Int("num_heads", 1, kMaxSize, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_k", expand_k, *config, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(
      ParseExpanded(settings, "expand_v", expand_v, *config, &config->value_dim));
  RIVULET_RETURN_IF_ERROR(CheckSameHeads(settings, "num_kv_heads", *config));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_short_conv", "false"));
  settings->Known({"conv_size", "share_conv_kernel"});  // of the convolution, which is off
  RIVULET_RETURN_IF_ERROR(settings->Only("use_output_gate", "true"));
  config->block().output_gate = true;
  return settings->Only("feature_map", "null");
}

absl::Status ParseRetNet(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 2, config));
  RIVULET_RETURN_IF_ERROR(ParseGated(settings, 1, 2, config));
  if (config->key_dim % 2 == 0) return absl::OkStatus();
  return settings->Invalid("expand_k", "gives heads of ", config->key_dim,
                           " columns; rotary positions need an even number");
}

absl::Status ParseGla(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(ParseGated(settings, 0.5, 1, config));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_gk", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_gv", "false"));
  RIVULET_RETURN_IF_ERROR(
      settings->Positive("gate_logit_normalizer", &config->block().gate_normalizer, 16));
  settings->Known({"gate_low_rank_dim"});  // read from the tensors
  const JsonValue* floor = settings->Find("clamp_min");
  if (floor == nullptr) return absl::OkStatus();
  if (!floor->is_number() || floor->number > 0) {
    return settings->Invalid("clamp_min", "is ", Describe(*floor), "; allowed: at most 0");
  }
  config->block().gate_floor = static_cast<float>(floor->number);
  return absl::OkStatus();
}

// The feature map has no parameters and changes nothing: phi(x) = x.
absl::Status ParseLinearAttn(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(settings->Int("num_heads", 1, kMaxSize, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_k", 1, *config, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_v", 1, *config, &config->value_dim));
  RIVULET_RETURN_IF_ERROR(CheckSameHeads(settings, "num_kv_heads", *config));
  if (settings->Find("feature_map") == nullptr) {
    return settings->Unsupported("feature_map",
                                 R"(is missing, so "elementwise_product"; supported: "identity")");
  }
  RIVULET_RETURN_IF_ERROR(settings->Only("feature_map", R"("identity")"));
  settings->Known({"tie_feature_map_qk"});  // of maps with parameters
  RIVULET_RETURN_IF_ERROR(settings->Only("norm_q", "false"));
  RIVULET_RETURN_IF_ERROR(settings->Only("norm_k", "false"));
  return settings->Only("norm_feature_map", "false");
}

absl::Status ParseHgrn2(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  int expand = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("expand_ratio", 1, kMaxSize, &expand, 128));
  if (settings->Find("num_heads") == nullptr && config->hidden_size % expand != 0) {
    return settings->Invalid("expand_ratio", "is ", expand, "; hidden_size, ", config->hidden_size,
                             ", is no multiple of it");
  }
  RIVULET_RETURN_IF_ERROR(settings->Int("num_heads", 1, kMaxSize, &config->num_heads,
                                        std::max(1, config->hidden_size / expand)));
  if (config->hidden_size % config->num_heads != 0) {
    return settings->Invalid("num_heads", "is ", config->num_heads, "; hidden_size, ",
                             config->hidden_size, ", does not divide by it");
  }
  config->key_dim = expand;
  config->value_dim = config->hidden_size / config->num_heads;
  RIVULET_RETURN_IF_ERROR(settings->Only("use_short_conv", "false"));
  settings->Known({"conv_size", "share_conv_kernel"});
  return settings->Only("use_lower_bound", "true");
}

// The convolution of the delta rules.
absl::Status ParseShortConv(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Only("use_short_conv", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("conv_bias", "false"));
  RIVULET_RETURN_IF_ERROR(settings->Only("share_conv_kernel", "false"));
  RIVULET_RETURN_IF_ERROR(
      settings->Bool("allow_neg_eigval", &config->block().negative_eigenvalues, false));
  return settings->Int("conv_size", 1, 8, &config->block().conv_width, 4);
}

absl::Status ParseDeltaNet(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(settings->Int("num_heads", 1, kMaxSize, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_k", 1, *config, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(ParseExpanded(settings, "expand_v", 1, *config, &config->value_dim));
  RIVULET_RETURN_IF_ERROR(ParseShortConv(settings, config));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_gate", &config->block().output_gate, false));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_beta", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("use_output_norm", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("qk_activation", R"("silu")"));
  return settings->Only("qk_norm", R"("l2")");
}

// Gated DeltaNet and KDA: head_dim and expand_v.
absl::Status ParseHeadDim(JsonReader* settings, int head_dim, double expand_v,
                          ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Int("num_heads", 1, kMaxSize, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(settings->Int("head_dim", 1, kMaxSize, &config->key_dim, head_dim));
  RIVULET_RETURN_IF_ERROR(settings->Positive("expand_v", &expand_v, expand_v));
  const double value_dim = config->key_dim * expand_v;
  if (value_dim < 1 || value_dim > double{kMaxSize} || value_dim != std::floor(value_dim)) {
    return settings->Invalid("expand_v", "is ", expand_v, ": heads of ", value_dim, " values");
  }
  config->value_dim = static_cast<int>(value_dim);
  return absl::OkStatus();
}

// Each head of q and k may serve several of v.
absl::Status ParseValueHeads(JsonReader* settings, ModelConfig* config) {
  int value_heads = 0;
  RIVULET_RETURN_IF_ERROR(
      settings->Int("num_v_heads", 1, kMaxSize, &value_heads, config->num_heads));
  if (value_heads % config->num_heads != 0) {
    return settings->Invalid("num_v_heads", "is ", value_heads,
                             "; allowed: a multiple of num_heads, ", config->num_heads);
  }
  config->num_key_heads = std::exchange(config->num_heads, value_heads);
  return absl::OkStatus();
}

absl::Status ParseGatedDeltaNet(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(ParseHeadDim(settings, 256, 2, config));
  RIVULET_RETURN_IF_ERROR(ParseValueHeads(settings, config));
  RIVULET_RETURN_IF_ERROR(ParseShortConv(settings, config));
  RIVULET_RETURN_IF_ERROR(settings->Only("output_gate_activation", R"("swish", "silu")"));
  return settings->Bool("use_gate", &config->block().output_gate, true);
}

absl::Status ParseKda(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(ParseFla(settings, 4, config));
  RIVULET_RETURN_IF_ERROR(ParseHeadDim(settings, 128, 1, config));
  RIVULET_RETURN_IF_ERROR(CheckSameHeads(settings, "num_v_heads", *config));
  RIVULET_RETURN_IF_ERROR(ParseShortConv(settings, config));
  config->block().output_gate = true;
  RIVULET_RETURN_IF_ERROR(settings->Only("lower_bound", "null"));
  return settings->Only("safe_gate", "false");
}

// An int, or one for each layer: only hidden_size.
absl::Status CheckValueDim(JsonReader* settings, const ModelConfig& config) {
  const JsonValue* value = settings->Find("value_dim");
  if (value == nullptr) return absl::OkStatus();
  const auto fits = [&](const JsonValue& v) {
    return v.kind == Kind::kInteger && v.integer == config.hidden_size;
  };
  if (fits(*value)) return absl::OkStatus();
  if (value->kind == Kind::kArray && std::all_of(value->items.begin(), value->items.end(), fits)) {
    return absl::OkStatus();
  }
  return settings->Unsupported("value_dim", "is ", Describe(*value), "; supported: hidden_size, ",
                               config.hidden_size);
}

absl::Status ParseRwkv7(JsonReader* settings, ModelConfig* config) {
  settings->Known({"a_low_rank_dim", "decay_low_rank_dim", "gate_low_rank_dim",
                   "v_low_rank_dim"});  // read from the tensors
  RIVULET_RETURN_IF_ERROR(settings->Positive("norm_eps", &config->norm_eps, 1e-5f));
  RIVULET_RETURN_IF_ERROR(settings->Only("hidden_act", R"("sqrelu")"));
  RIVULET_RETURN_IF_ERROR(ParseFfn(settings, 4, 1, 32, config));
  RIVULET_RETURN_IF_ERROR(CheckValueDim(settings, *config));
  RIVULET_RETURN_IF_ERROR(settings->Bool("norm_first", &config->block().first_norm, true));
  RIVULET_RETURN_IF_ERROR(settings->Bool("norm_bias", &config->block().norm_bias, true));
  RIVULET_RETURN_IF_ERROR(settings->Int("head_dim", 1, kMaxSize, &config->key_dim, 64));
  if (config->hidden_size % config->key_dim != 0) {
    return settings->Invalid("head_dim", "is ", config->key_dim, "; hidden_size, ",
                             config->hidden_size, ", does not divide by it");
  }
  config->num_heads = config->hidden_size / config->key_dim;
  config->value_dim = config->key_dim;
  config->block().output_gate = true;
  return CheckSameHeads(settings, "num_heads", *config);
}

// The parts of a layer's state.

StatePart MatrixPart(const ModelConfig& c) {
  return {"S", {size_t(c.num_heads), size_t(c.key_dim), size_t(c.value_dim)}};
}

std::vector<StatePart> MatrixState(const ModelConfig& c) { return {MatrixPart(c)}; }

std::vector<StatePart> ConvState(const ModelConfig& c) {
  const auto width = size_t(c.block().conv_width), channels = size_t(c.block().conv_channels);
  return {MatrixPart(c), {"conv", {width - 1, channels}}};
}

// The only part of a convolution's state: its inputs.
std::vector<StatePart> ShortConvState(const ModelConfig& c) {
  return {{"conv", {size_t(c.block().conv_width) - 1, size_t(c.hidden_size)}}};
}

std::vector<StatePart> ShiftState(const ModelConfig& c) {
  const auto hidden = size_t(c.hidden_size);
  return {MatrixPart(c), {"mixer_shift", {hidden}}, {"ffn_shift", {hidden}}};
}

// The table of kinds. Columns: BlockKind.
constexpr BlockKind kBlockKinds[] = {
    {.model_type = "retnet",
     .read_settings = ParseRetNet,
     .state = MatrixState,
     .mixer = Mixer::kGated,
     .decay = DecayForm::kFixed,
     .rotary = true},
    {.model_type = "gla",
     .read_settings = ParseGla,
     .state = MatrixState,
     .mixer = Mixer::kGated,
     .decay = DecayForm::kLowRank},
    {.model_type = "hgrn2",
     .read_settings = ParseHgrn2,
     .state = MatrixState,
     .mixer = Mixer::kGated,
     .decay = DecayForm::kLowerBound,
     .norm_all_heads = true},
    {.model_type = "mamba2",
     .read_settings = ParseMamba2,
     .state = ConvState,
     .mixer = Mixer::kMamba2,
     .decay = DecayForm::kOfHead},
    {.model_type = "delta_net",
     .read_settings = ParseDeltaNet,
     .state = ConvState,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kNone,
     .output_norm = "o_norm"},
    {.model_type = "gated_deltanet",
     .read_settings = ParseGatedDeltaNet,
     .state = ConvState,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kOfHead,
     .output_norm = "o_norm"},
    {.model_type = "kda",
     .read_settings = ParseKda,
     .state = ConvState,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kLowRank,
     .output_norm = "o_norm",
     .low_rank_gate = true},
    {.model_type = "rwkv7",
     .read_settings = ParseRwkv7,
     .state = ShiftState,
     .mixer = Mixer::kRwkv7,
     .decay = DecayForm::kLowRank,
     .low_rank_gate = true},
    {.model_type = "granitemoehybrid",
     .read_settings = ParseGranite,
     .state = ConvState,
     .mixer = Mixer::kMamba2,
     .decay = DecayForm::kOfHead,
     .hybrid = true},
    {.model_type = "qwen3_5_text",
     .read_settings = ParseQwen35,
     .state = ConvState,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kOfHead,
     .hybrid = true},
    {.model_type = "qwen3_5_moe_text",
     .read_settings = ParseQwen35Moe,
     .state = ConvState,
     .mixer = Mixer::kDelta,
     .decay = DecayForm::kOfHead,
     .hybrid = true},
    {.model_type = "lfm2",
     .read_settings = ParseLfm2,
     .state = ShortConvState,
     .mixer = Mixer::kShortConv,
     .decay = DecayForm::kNone,
     .hybrid = true},
    {.model_type = "lfm2_moe",
     .read_settings = ParseLfm2Moe,
     .state = ShortConvState,
     .mixer = Mixer::kShortConv,
     .decay = DecayForm::kNone,
     .hybrid = true},
    {.model_type = "nemotron_h",
     .read_settings = ParseNemotron,
     .state = ConvState,
     .mixer = Mixer::kMamba2,
     .decay = DecayForm::kOfHead,
     .hybrid = true,
     .counts_layers = true},
    {.model_type = "falcon_h1",
     .read_settings = ParseFalconH1,
     .state = ConvState,
     .mixer = Mixer::kMamba2,
     .decay = DecayForm::kOfHead,
     .hybrid = true},
    {.model_type = "linear_attn",
     .read_settings = ParseLinearAttn,
     .state = MatrixState,
     .mixer = Mixer::kGated,
     .decay = DecayForm::kNone,
     .output_norm = "norm"},
};

// Checks that every product of sizes stays in range.
absl::Status CheckSizes(const ModelConfig& config) {
  const double heads = config.num_heads, keys = heads * config.key_dim,
               values = heads * config.value_dim;
  if (keys > double{kMaxSize} || values > double{kMaxSize}) {
    return kSettingsRules.Invalid("num_heads", "is ", config.num_heads, ": too many columns");
  }
  const double state = config.num_layers *
                       (keys * config.value_dim + 8 * (2 * keys + values) + 2 * config.hidden_size);
  if (state <= kMaxStateFloats) return absl::OkStatus();
  return kSettingsRules.Invalid("num_hidden_layers", "is ", config.num_layers,
                                ": a state would be larger than 16 GiB");
}

// The number of channels of the kind's convolution.
int ConvChannels(const ModelConfig& config) {
  const BlockConfig& block = config.block();
  if (block.conv_width == 0) return 0;
  if (block.kind->mixer == Mixer::kShortConv) return config.hidden_size;
  return block.kind->mixer == Mixer::kMamba2
             ? config.values() + 2 * block.num_groups * config.key_dim
             : 2 * config.keys() + config.values();
}

// A model of the table of kinds.
absl::StatusOr<ModelConfig> ParseBlocks(const JsonValue& json, JsonReader* settings) {
  ModelConfig config;
  config.network.emplace<BlockConfig>();
  RIVULET_ASSIGN_OR_RETURN(config.block().kind, KindOf(json, settings));
  RIVULET_RETURN_IF_ERROR(ParseCommon(settings, &config));
  RIVULET_RETURN_IF_ERROR(config.block().kind->read_settings(settings, &config));
  RIVULET_RETURN_IF_ERROR(settings->CheckNoOthers());
  RIVULET_RETURN_IF_ERROR(CheckSizes(config));
  config.block().conv_channels = ConvChannels(config);
  return config;
}

}  // namespace

std::span<const BlockKind> BlockKinds() { return kBlockKinds; }

absl::StatusOr<JsonValue> ParseSettings(absl::string_view text) {
  return ParseStrictJson(WithInfinitySpelled(text), JsonLimits{});
}

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

absl::StatusOr<std::vector<int32_t>> ParseEosTokenIds(const JsonValue& config, int vocab_size) {
  const JsonValue* eos = config.Find("eos_token_id");
  std::vector<int32_t> ids;
  if (eos == nullptr || eos->kind == Kind::kNull) return ids;
  const std::span<const JsonValue> values =
      eos->kind == Kind::kArray ? std::span(eos->items) : std::span(eos, 1);
  for (const JsonValue& id : values) {
    if (id.kind != Kind::kInteger || id.integer < 0 || id.integer >= vocab_size) {
      return kSettingsRules.Invalid("eos_token_id", "is ", Describe(id),
                                    "; allowed: token ids, 0 to ", vocab_size - 1);
    }
    ids.push_back(static_cast<int32_t>(id.integer));
  }
  return ids;
}

absl::StatusOr<ModelConfig> ParseBlockConfig(const JsonValue& given) {
  const JsonValue* type = given.Find("model_type");
  JsonValue json = given;
  if (type != nullptr && std::find(std::begin(kWithVisionTower), std::end(kWithVisionTower),
                                   type->text) != std::end(kWithVisionTower)) {
    RIVULET_ASSIGN_OR_RETURN(json, TextConfigOf(kSettingsRules, given));
  }
  RIVULET_ASSIGN_OR_RETURN(JsonReader settings, JsonReader::Of(kSettingsRules, json, ""));
  const bool molformer = type != nullptr && type->text == kMolformer;
  RIVULET_ASSIGN_OR_RETURN(ModelConfig config, molformer ? ParseMolformer(json, &settings)
                                                         : ParseBlocks(json, &settings));
  RIVULET_ASSIGN_OR_RETURN(const auto ends, ParseEosTokenIds(json, config.vocab_size));
  config.SetEnds(ends);
  return config;
}

}  // namespace rivulet
