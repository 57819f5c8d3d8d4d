// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/softmax_attention.h"
#include "model/base/error.h"
#include "model/base/json_reader.h"
#include "model/base/strict_json.h"
#include "model/model_name.h"
#include "model/text/char_tokenizer.h"

namespace rivulet {
namespace {

using kernels::FeatureMapKind;

// Our own format: every field is required, and no other field is allowed.
constexpr JsonRules kFormatRules = {
    .invalid = "INVALID_CONFIG", .unsupported = "", .null_is_missing = false};

// Bounds that keep every product below in range: products of two dimensions in int64, a state's
// bytes in uint64.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxInt32 = INT32_MAX;
constexpr int64_t kMaxLayers = 4096;

absl::Status ParseFormat(JsonReader* root) {
  RIVULET_RETURN_IF_ERROR(root->Choice<int>("format", {{"rivulet-model", 0}}, nullptr));
  int version = 0;
  return root->Int("format_version", 1, 1, &version);
}

absl::Status ParseName(JsonReader* root, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(root->Text("name", &config->name));
  if (IsModelName(config->name)) return absl::OkStatus();
  return root->Invalid("name", "is ", Quoted(config->name), "; allowed: ", kModelNamePattern);
}

absl::Status ParseDimensions(JsonReader* root, ModelConfig* config) {
  EncoderConfig& encoder = config->encoder();
  RIVULET_RETURN_IF_ERROR(root->Int("vocab_size", 1, kMaxInt32, &config->vocab_size));
  const int64_t last_id = config->vocab_size - 1;
  RIVULET_RETURN_IF_ERROR(root->Int("bos_token_id", 0, last_id, &config->bos_token_id));
  RIVULET_RETURN_IF_ERROR(root->Int("eos_token_id", 0, last_id, &config->eos_token_id));
  RIVULET_RETURN_IF_ERROR(root->Int("hidden_size", 1, kMaxDimension, &config->hidden_size));
  RIVULET_RETURN_IF_ERROR(root->Int("num_layers", 1, kMaxLayers, &config->num_layers));
  RIVULET_RETURN_IF_ERROR(root->Int("num_heads", 1, kMaxDimension, &config->num_heads));
  RIVULET_RETURN_IF_ERROR(root->Int("key_dim", 1, kMaxDimension, &config->key_dim));
  RIVULET_RETURN_IF_ERROR(root->Int("value_dim", 1, kMaxDimension, &config->value_dim));
  RIVULET_RETURN_IF_ERROR(root->Int("ffn_size", 1, kMaxDimension, &config->ffn_size));
  RIVULET_RETURN_IF_ERROR(root->Choice<Activation>(
      "activation", {{"relu", Activation::kRelu}, {"gelu", Activation::kGelu}},
      &encoder.activation));
  RIVULET_RETURN_IF_ERROR(root->Positive("layer_norm_eps", &config->norm_eps));
  return root->Bool("final_norm", &encoder.final_norm);
}

// {"type": "rotary", "base": b, "pairs": "halves" or "interleaved"}; key_dim is parsed.
absl::Status ParseRotary(const JsonReader& root, JsonReader* object, ModelConfig* config) {
  double base = 0;
  RopeConfig& rope = config->encoder().rope;
  RIVULET_RETURN_IF_ERROR(object->Positive("base", &base));
  if (base < 1) return object->Invalid("base", "is ", base, "; allowed: at least 1");
  RIVULET_RETURN_IF_ERROR(
      object->Choice<bool>("pairs", {{"halves", false}, {"interleaved", true}}, &rope.interleaved));
  if (config->key_dim % 2 != 0) {
    return root.Invalid("key_dim", "is ", config->key_dim,
                        "; allowed: an even number, because position.type is \"rotary\"");
  }
  rope.frequencies = RopeFrequencies(base, config->key_dim);
  return object->CheckNoOthers();
}

absl::Status ParsePosition(JsonReader* root, ModelConfig* config) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader object, root->Object("position"));
  EncoderConfig& encoder = config->encoder();
  RIVULET_RETURN_IF_ERROR(object.Choice<PositionType>("type",
                                                      {{"none", PositionType::kNone},
                                                       {"learned", PositionType::kLearned},
                                                       {"sinusoidal", PositionType::kSinusoidal},
                                                       {"rotary", PositionType::kRotary}},
                                                      &encoder.position));
  if (encoder.position == PositionType::kNone) return object.CheckNoOthers();
  if (encoder.position == PositionType::kRotary) return ParseRotary(*root, &object, config);
  RIVULET_RETURN_IF_ERROR(object.Choice<PositionCombine>(
      "combine", {{"add", PositionCombine::kAdd}, {"concat", PositionCombine::kConcat}},
      &encoder.combine));
  int max_length = 0;
  RIVULET_RETURN_IF_ERROR(object.Int("max_length", 1, kMaxInt32, &max_length));
  config->max_positions = max_length;
  if (encoder.combine == PositionCombine::kConcat && config->hidden_size % 2 != 0) {
    return root->Invalid("hidden_size", "is ", config->hidden_size,
                         "; allowed: an even number, because position.combine is \"concat\"");
  }
  return object.CheckNoOthers();
}

// n_dims of the maps that have it, and the resulting columns of omega.
absl::Status ParseDims(JsonReader* object, FeatureMapConfig* map) {
  const bool smoothed = map->kind == FeatureMapKind::kSmoothedRandomFourier;
  const bool paired =
      map->kind == FeatureMapKind::kRandomFourier || map->kind == FeatureMapKind::kFavor;
  const int least = smoothed ? 3 : paired ? 2 : 1;
  RIVULET_RETURN_IF_ERROR(object->Int("n_dims", least, kMaxDimension, &map->n_dims));
  if (paired && map->n_dims % 2 != 0) {
    return object->Invalid("n_dims", "is ", map->n_dims, "; allowed: an even number");
  }
  map->columns = smoothed ? (map->n_dims - 1) / 2 : paired ? map->n_dims / 2 : map->n_dims;
  RIVULET_RETURN_IF_ERROR(object->Positive("softmax_temp", &map->softmax_temp));
  if (smoothed) return object->NotNegative("smoothing", &map->smoothing);
  if (paired) return absl::OkStatus();
  return object->Choice<int>("kernel", {{"relu", 0}}, nullptr);
}

absl::Status ParseFeatureMap(JsonReader* attention, FeatureMapConfig* map) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader object, attention->Object("feature_map"));
  RIVULET_RETURN_IF_ERROR(object.Choice<FeatureMapKind>(
      "type",
      {{"elu", FeatureMapKind::kElu},
       {"random_fourier", FeatureMapKind::kRandomFourier},
       {"smoothed_random_fourier", FeatureMapKind::kSmoothedRandomFourier},
       {"favor", FeatureMapKind::kFavor},
       {"generalized_random", FeatureMapKind::kGeneralizedRandomRelu},
       {"rfa", FeatureMapKind::kRfa}},
      &map->kind));
  if (map->kind == FeatureMapKind::kRfa) {
    RIVULET_RETURN_IF_ERROR(object.Int("num_features", 1, kMaxDimension, &map->n_dims));
    map->columns = map->n_dims;
  } else if (map->kind != FeatureMapKind::kElu) {
    RIVULET_RETURN_IF_ERROR(ParseDims(&object, map));
  }
  return object.CheckNoOthers();
}

// {"type": "softmax"} or {"type": "softmax", "window": w}.
absl::Status ParseSoftmax(JsonReader* attention, EncoderConfig* config) {
  RIVULET_RETURN_IF_ERROR(attention->Choice<int>("type", {{"softmax", 0}}, nullptr));
  if (config->position == PositionType::kRotary) {
    return attention->Invalid("type",
                              "is \"softmax\", and position.type is \"rotary\"; allowed: "
                              "rotary positions with linear attention");
  }
  config->softmax = true;
  if (attention->Find("window") != nullptr) {
    RIVULET_RETURN_IF_ERROR(attention->Int("window", 1, kMaxDimension, &config->window));
  }
  return attention->CheckNoOthers();
}

absl::Status ParseAttention(JsonReader* root, EncoderConfig* config) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader attention, root->Object("attention"));
  if (attention.Find("type") != nullptr) return ParseSoftmax(&attention, config);
  RIVULET_RETURN_IF_ERROR(ParseFeatureMap(&attention, &config->feature_map));
  RIVULET_RETURN_IF_ERROR(
      attention.Choice<Gate>("gate", {{"none", Gate::kNone}, {"rfa", Gate::kRfa}}, &config->gate));
  RIVULET_ASSIGN_OR_RETURN(JsonReader normalizer, attention.Object("normalizer"));
  RIVULET_RETURN_IF_ERROR(normalizer.Choice<Normalizer>(
      "type", {{"add_eps", Normalizer::kAddEps}, {"clamp_min", Normalizer::kClampMin}},
      &config->normalizer));
  const char* const value = config->normalizer == Normalizer::kAddEps ? "eps" : "min";
  RIVULET_RETURN_IF_ERROR(normalizer.Positive(value, &config->normalizer_value));
  RIVULET_RETURN_IF_ERROR(normalizer.CheckNoOthers());
  return attention.CheckNoOthers();
}

absl::Status ParseOutput(JsonReader* root, ModelConfig* config) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader object, root->Object("output"));
  OutputConfig& output = config->output;
  RIVULET_RETURN_IF_ERROR(
      object.Choice<OutputType>("type",
                                {{"categorical", OutputType::kCategorical},
                                 {"mixture_of_logistics", OutputType::kMixtureOfLogistics}},
                                &output.type));
  if (object.Find("transform") != nullptr) {
    RIVULET_RETURN_IF_ERROR(object.Choice<int>("transform", {{"gelu", 0}}, nullptr));
    config->encoder().transform = true;
  }
  if (output.type == OutputType::kCategorical) {
    if (config->vocab_size == 1 && config->has_bos()) {
      return root->Invalid("vocab_size",
                           "is 1, and its only token is the bos, which is never sampled; "
                           "allowed: at least 2 for a categorical head with a bos");
    }
    return object.CheckNoOthers();
  }
  RIVULET_RETURN_IF_ERROR(object.Int("num_mixtures", 1, kMaxDimension, &output.num_mixtures));
  RIVULET_RETURN_IF_ERROR(object.Int("num_levels", 2, kMaxInt32, &output.num_levels));
  if (output.num_levels > config->vocab_size) {
    return object.Invalid("num_levels", "is ", output.num_levels,
                          "; allowed: an integer from 2 to vocab_size, which is ",
                          config->vocab_size);
  }
  RIVULET_RETURN_IF_ERROR(object.Choice<MixtureScale>(
      "scale", {{"exp", MixtureScale::kExp}, {"elu", MixtureScale::kElu}}, &output.scale));
  return object.CheckNoOthers();
}

absl::Status ParseImage(JsonReader* object, ContentConfig* content) {
  RIVULET_RETURN_IF_ERROR(object->Int("height", 1, kMaxDimension, &content->height));
  RIVULET_RETURN_IF_ERROR(object->Int("width", 1, kMaxDimension, &content->width));
  RIVULET_RETURN_IF_ERROR(object->Int("channels", 1, kMaxDimension, &content->channels));
  const int64_t pixels = int64_t{content->height} * content->width;
  if (pixels > kMaxInt32 || pixels * content->channels > kMaxInt32) {
    return object->Invalid("height", "is ", content->height, ", with width ", content->width,
                           " and channels ", content->channels,
                           "; allowed: height * width * channels of at most ", kMaxInt32);
  }
  return absl::OkStatus();
}

absl::Status ParseText(JsonReader* object, ModelConfig* config) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader tokenizer, object->Object("tokenizer"));
  bool from_file = false;
  RIVULET_RETURN_IF_ERROR(
      tokenizer.Choice<bool>("type", {{"char", false}, {"tokenizer.json", true}}, &from_file));
  if (from_file) return tokenizer.CheckNoOthers();
  RIVULET_RETURN_IF_ERROR(tokenizer.Text("alphabet", &config->content.alphabet));
  RIVULET_RETURN_IF_ERROR(tokenizer.CheckNoOthers());
  const auto parsed = CreateCharTokenizer(config->content.alphabet);
  if (!parsed.ok()) {
    return tokenizer.Invalid("alphabet", "is ", Quoted(config->content.alphabet),
                             "; allowed: every code point once (", parsed.status().message(), ")");
  }
  const int size = (*parsed)->size();
  const auto is_special = [config](int id) {
    return id == config->bos_token_id || id == config->eos_token_id;
  };
  bool good = size <= config->vocab_size;
  for (int id = size; good && id < config->vocab_size; ++id) good = is_special(id);
  if (good) return absl::OkStatus();
  return tokenizer.Invalid("alphabet", "is ", size, " code points for a vocab_size of ",
                           config->vocab_size,
                           "; allowed: one code point for every token id other than bos and eos");
}

absl::Status ParseContent(JsonReader* root, ModelConfig* config) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader object, root->Object("content"));
  ContentConfig& content = config->content;
  RIVULET_RETURN_IF_ERROR(object.Choice<ContentType>("type",
                                                     {{"tokens", ContentType::kTokens},
                                                      {"image", ContentType::kImage},
                                                      {"text", ContentType::kText}},
                                                     &content.type));
  if (content.type == ContentType::kImage) RIVULET_RETURN_IF_ERROR(ParseImage(&object, &content));
  if (content.type == ContentType::kText) RIVULET_RETURN_IF_ERROR(ParseText(&object, config));
  return object.CheckNoOthers();
}

// With softmax attention: the state of the shortest context, or of a window.
absl::Status CheckKeptSize(const JsonReader& root, const ModelConfig& config) {
  const EncoderConfig& encoder = config.encoder();
  const double positions = encoder.window + 2.0 * kernels::kCacheBlock,
               bytes = positions * config.num_layers * config.num_heads *
                       (double(config.key_dim) + config.value_dim) * sizeof(float);
  if (bytes <= double(kMaxStateBytes)) return absl::OkStatus();
  return root.Invalid("num_layers", "is ", config.num_layers,
                      ", which makes the keys and values of ", positions, " positions ", bytes,
                      " bytes; allowed: at most ", kMaxStateBytes);
}

// Checks products of fields that are each in range.
absl::Status CheckDerivedSizes(const JsonReader& root, const ModelConfig& config) {
  const auto check = [&](absl::string_view field, int64_t value, absl::string_view what) {
    if (config.num_heads * value <= kMaxDimension) return absl::OkStatus();
    return root.Invalid(field, "is ", value, ", with num_heads ", config.num_heads,
                        "; allowed: num_heads * ", what, " of at most ", kMaxDimension);
  };
  RIVULET_RETURN_IF_ERROR(check("key_dim", config.key_dim, "key_dim"));
  RIVULET_RETURN_IF_ERROR(check("value_dim", config.value_dim, "value_dim"));
  RIVULET_RETURN_IF_ERROR(
      check("attention.feature_map", int64_t{config.key_features()}, "features of a key"));
  if (config.encoder().softmax) return CheckKeptSize(root, config);
  const kernels::StateLayout layout = config.state_layout();
  if (layout.bytes_per_slot() <= kMaxStateBytes) return absl::OkStatus();
  return root.Invalid("num_layers", "is ", layout.layers,
                      ", which makes the state of one sequence num_layers * num_heads * features * "
                      "(value_dim + 1) * 4 = ",
                      layout.layers, " * ", layout.heads, " * ", layout.features, " * ",
                      layout.value_dim + 1, " * 4 = ", layout.bytes_per_slot(),
                      " bytes with padding; allowed: a state of at most ", kMaxStateBytes,
                      " bytes");
}

}  // namespace

void ModelConfig::SetEnds(std::span<const int32_t> ids) {
  if (ids.empty()) return;
  eos_token_id = ids.front();
  more_eos_token_ids.assign(ids.begin() + 1, ids.end());
}

void ModelConfig::SetDefaultContext() {
  if (state().size().per_block == 0) return;
  context = AtMost(kDefaultContext);
}

const char* ModelConfig::kind() const {
  const auto* family = std::get_if<BlockConfig>(&network);
  if (family != nullptr) return family->kind->model_type;
  return encoder().softmax ? "softmax" : "linear";
}

const char* ModelConfig::feature_map_name() const {
  const auto* encoder = std::get_if<EncoderConfig>(&network);
  if (encoder == nullptr || encoder->softmax) return "";
  switch (encoder->feature_map.kind) {
    case FeatureMapKind::kElu:
      return "elu";
    case FeatureMapKind::kRandomFourier:
      return "random_fourier";
    case FeatureMapKind::kSmoothedRandomFourier:
      return "smoothed_random_fourier";
    case FeatureMapKind::kFavor:
      return "favor";
    case FeatureMapKind::kGeneralizedRandomRelu:
      return "generalized_random";
    case FeatureMapKind::kRfa:
      return "rfa";
  }
  return "";
}

int ModelConfig::key_features() const {
  const auto* encoder = std::get_if<EncoderConfig>(&network);
  if (encoder == nullptr || encoder->softmax) return 0;
  return kernels::KeyFeatures(encoder->feature_map.kind, key_dim, encoder->feature_map.columns);
}

StateParts ModelConfig::state() const {
  if (const auto* family = std::get_if<BlockConfig>(&network)) {
    if (!family->softmax) return StateParts(num_layers, family->kind->state(*this));
    const SoftmaxConfig& softmax = *family->softmax;
    LayerMix mix;
    for (const LayerParts& layer : family->layers) {
      mix.recurrent.push_back(layer.recurrent);
      mix.attends.push_back(layer.attends);
    }
    return StateParts(mix, family->kind->state(*this),
                      {softmax.num_kv_heads, softmax.head_dim, softmax.head_dim, 0, cache});
  }
  if (encoder().softmax) {
    const std::vector<bool> all(size_t(num_layers), true), none(size_t(num_layers), false);
    return StateParts({none, all}, {}, {num_heads, key_dim, value_dim, encoder().window, cache});
  }
  const auto heads = size_t(num_heads), features = size_t(key_features());
  return StateParts(num_layers,
                    {{"S", {heads, features, size_t(value_dim)}}, {"z", {heads, features}}});
}

namespace {

// The identity of a state with keys and values.
std::string KeptIdentity(const ModelConfig& config, const StateParts& parts) {
  const AttentionPart& kept = *parts.attention;
  std::string text = absl::StrCat(config.kind(), " layers ", config.num_layers);
  for (const StatePart& part : parts.parts) {
    absl::StrAppend(&text, " ", part.name, " ", absl::StrJoin(part.shape, " x "), " of ",
                    sizeof(float), " bytes at ", part.offset);
  }
  return absl::StrCat(text, " keys ", kept.heads, " x ", kept.key_dim, " values ", kept.heads,
                      " x ", kept.value_dim, " window ", kept.window, " float32 in blocks of ",
                      kernels::kCacheBlock, ", ", parts.block_floats, " behind ",
                      parts.fixed_floats);
}

}  // namespace

ModelConfig::StateIdentity ModelConfig::state_identity() const {
  const auto* family = std::get_if<BlockConfig>(&network);
  const StateParts parts = state();
  if (parts.attention) return {{}, KeptIdentity(*this, parts)};
  if (family == nullptr) return {state_layout(), ""};
  // The text of every kind names these parts, as the first snapshots did. A part that the kind
  // lacks counts as an empty part behind the part before it.
  constexpr std::array<absl::string_view, 4> kNamed = {"S", "conv", "mixer_shift", "ffn_shift"};
  std::array<size_t, kNamed.size()> at{};
  size_t end = 0;
  for (size_t i = 0; i < kNamed.size(); ++i) {
    const StatePart* const part = parts.Find(kNamed[i]);
    at[i] = part == nullptr ? end : part->offset;
    end = at[i] + (part == nullptr ? 0 : part->floats);
  }
  std::string text =
      absl::StrCat(kind(), " layers ", num_layers, " S ", num_heads, " x ", key_dim, " x ",
                   value_dim, " at ", at[0], " conv ", family->conv_width, " x ",
                   family->conv_channels, " at ", at[1], " shift ", hidden_size, " at ", at[2],
                   " and ", at[3], " of ", parts.floats_per_layer, " in ", parts.fixed_floats);
  for (const StatePart& part : parts.parts) {
    if (absl::c_linear_search(kNamed, part.name)) continue;
    absl::StrAppend(&text, " ", part.name, " ", absl::StrJoin(part.shape, " x "), " of ",
                    sizeof(float), " bytes at ", part.offset);
  }
  return {{}, std::move(text)};
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json_text) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue json, ParseStrictJson(json_text, JsonLimits{}));
  RIVULET_ASSIGN_OR_RETURN(JsonReader root, JsonReader::Of(kFormatRules, json, ""));
  ModelConfig config;
  RIVULET_RETURN_IF_ERROR(ParseFormat(&root));
  RIVULET_RETURN_IF_ERROR(ParseName(&root, &config));
  RIVULET_RETURN_IF_ERROR(ParseDimensions(&root, &config));
  RIVULET_RETURN_IF_ERROR(ParsePosition(&root, &config));
  RIVULET_RETURN_IF_ERROR(ParseAttention(&root, &config.encoder()));
  RIVULET_RETURN_IF_ERROR(ParseOutput(&root, &config));
  RIVULET_RETURN_IF_ERROR(ParseContent(&root, &config));
  RIVULET_RETURN_IF_ERROR(root.CheckNoOthers());
  RIVULET_RETURN_IF_ERROR(CheckDerivedSizes(root, config));
  config.SetDefaultContext();
  return config;
}

std::vector<TensorSpec> ExpectedTensors(const ModelConfig& config) {
  const EncoderConfig& encoder = config.encoder();
  std::vector<TensorSpec> out;
  const int64_t hidden = config.hidden_size, heads = config.num_heads, ffn = config.ffn_size;
  const int64_t keys = heads * config.key_dim, values = heads * config.value_dim;
  const int64_t columns = encoder.feature_map.columns;
  const auto add = [&out](std::string name, std::vector<int64_t> shape) {
    out.push_back({std::move(name), std::move(shape)});
  };
  const auto add_linear = [&add](const std::string& name, int64_t outputs, int64_t inputs) {
    add(name + ".weight", {outputs, inputs});
    add(name + ".bias", {outputs});
  };
  const auto add_norm = [&add, hidden](const std::string& name) {
    add(name + ".weight", {hidden});
    add(name + ".bias", {hidden});
  };

  add("embedding.weight", {config.vocab_size, config.embedding_columns()});
  if (encoder.position == PositionType::kLearned) {
    add("position.weight", {config.max_positions, config.embedding_columns()});
  }
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string layer = absl::StrCat("transformer.layers.", i, ".");
    const std::string attention = layer + "attention.";
    add_linear(attention + "query_projection", keys, hidden);
    add_linear(attention + "key_projection", keys, hidden);
    add_linear(attention + "value_projection", values, hidden);
    add_linear(attention + "out_projection", hidden, values);
    if (encoder.feature_map.kind == FeatureMapKind::kRfa) {
      add(attention + "omega", {heads, config.key_dim, columns});
      add(attention + "sigma", {heads, config.key_dim});
    } else if (encoder.feature_map.kind != FeatureMapKind::kElu) {
      add(attention + "inner_attention.feature_map.omega", {config.key_dim, columns});
    }
    if (encoder.gate == Gate::kRfa) add_linear(attention + "gate_projection", heads, hidden);
    add_linear(layer + "linear1", ffn, hidden);
    add_linear(layer + "linear2", hidden, ffn);
    add_norm(layer + "norm1");
    add_norm(layer + "norm2");
  }
  if (encoder.final_norm) add_norm("transformer.norm");
  if (encoder.transform) {
    add_linear("transform.linear", hidden, hidden);
    add_norm("transform.norm");
  }
  add_linear("predictor", config.output_size(), hidden);
  return out;
}

}  // namespace rivulet
