// SPDX-License-Identifier: Apache-2.0
#include "model/hybrid_parts.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/gemm.h"
#include "model/base/error.h"

namespace rivulet {

absl::Status ParseLayerNames(JsonReader* settings, absl::string_view setting,
                             std::initializer_list<LayerName> names,
                             std::vector<LayerParts> fallback, ModelConfig* config) {
  std::vector<LayerParts>& layers = config->block().layers;
  layers = std::move(fallback);
  if (settings->Find(setting) == nullptr) return absl::OkStatus();
  layers.clear();
  const auto read = [&](const JsonValue& item, absl::string_view path) {
    const auto named = std::find_if(names.begin(), names.end(), [&](const LayerName& name) {
      return item.kind == JsonValue::Kind::kString && item.text == name.name;
    });
    if (named == names.end()) {
      const auto append = [](std::string* out, const LayerName& name) {
        out->append(name.name.data(), name.name.size());
      };
      return settings->Unsupported(setting, "holds ", Describe(item), " at ", path,
                                   "; supported: ", absl::StrJoin(names, ", ", append));
    }
    layers.push_back(named->parts);
    return absl::OkStatus();
  };
  RIVULET_RETURN_IF_ERROR(settings->ForEach(setting, read));
  if (config->num_layers == 0 || std::ssize(layers) == config->num_layers) return absl::OkStatus();
  return settings->Invalid(setting, "has ", layers.size(), " entries; allowed: num_hidden_layers, ",
                           config->num_layers);
}

// Heads of queries, and of the keys and values that they share.
absl::Status ParseHeads(JsonReader* settings, SoftmaxConfig* softmax) {
  RIVULET_RETURN_IF_ERROR(
      settings->Int("num_attention_heads", 1, kMostColumns, &softmax->num_heads));
  RIVULET_RETURN_IF_ERROR(settings->Int("num_key_value_heads", 1, kMostColumns,
                                        &softmax->num_kv_heads, softmax->num_heads));
  if (softmax->num_heads % softmax->num_kv_heads != 0) {
    return settings->Invalid("num_key_value_heads", "is ", softmax->num_kv_heads,
                             "; num_attention_heads, ", softmax->num_heads,
                             ", does not divide by it");
  }
  return settings->Bool("attention_bias", &softmax->bias, false);
}

float InverseRoot(int n) { return static_cast<float>(1 / std::sqrt(double(n))); }

// The positions that the model was trained for: the default context, but no limit; 0: unknown.
absl::StatusOr<int> ParsePositions(JsonReader* settings, ModelConfig* config) {
  constexpr char kName[] = "max_position_embeddings";
  config->context = kDefaultContext;
  if (settings->Find(kName) == nullptr) return 0;
  int positions = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int(kName, 1, INT32_MAX, &positions));
  config->trained_positions = positions;
  config->context = std::min<int64_t>(positions, kDefaultContext);
  return positions;
}

// Checks the sizes of a slot for few tokens, and of the outputs of products.
absl::Status CheckSoftmaxSizes(const JsonReader& settings, const ModelConfig& config) {
  const SoftmaxConfig& softmax = *config.block().softmax;
  const double queries = double(softmax.num_heads) * softmax.head_dim;
  if (2 * queries > double(kMostColumns)) {
    return settings.Invalid("num_attention_heads", "is ", softmax.num_heads, ", of ",
                            softmax.head_dim, " values each: too many columns");
  }
  const size_t bytes = config.state().size().At(1);
  if (bytes <= kMaxStateBytes) return absl::OkStatus();
  return settings.Invalid("num_hidden_layers", "is ", config.num_layers,
                          ", which makes a state with one block of keys and values ", bytes,
                          " bytes; allowed: at most ", kMaxStateBytes);
}

namespace {

// A size with the default `missing`, if that is not 0.
absl::Status ParseSize(JsonReader* settings, const char* name, int missing, int* size) {
  const auto fallback = missing == 0 ? std::nullopt : std::optional<int>(missing);
  return settings->Int(name, 1, kMostColumns, size, fallback);
}

}  // namespace

absl::Status ParseExperts(JsonReader* settings, const ExpertNames& names, ExpertsConfig* experts) {
  constexpr char kChosen[] = "num_experts_per_tok";
  kernels::Router& router = experts->router;
  RIVULET_RETURN_IF_ERROR(
      settings->Int(names.experts, 1, 4096, &router.experts, names.default_experts));
  RIVULET_RETURN_IF_ERROR(settings->Int(kChosen, 1, 4096, &router.chosen, names.default_chosen));
  if (router.chosen > router.experts) {
    return settings->Invalid(kChosen, "is ", router.chosen, "; allowed: at most ", names.experts,
                             ", ", router.experts);
  }
  RIVULET_RETURN_IF_ERROR(ParseSize(settings, names.size, names.default_size, &experts->size));
  if (int64_t{router.experts} * (experts->size + kernels::kPanelColumns) > kMostColumns) {
    return settings->Invalid(names.size, "is ", experts->size, ", of ", router.experts,
                             " experts: too many columns");
  }
  if (names.shared_size == nullptr) return absl::OkStatus();
  return ParseSize(settings, names.shared_size, names.default_shared, &experts->shared_size);
}

absl::Status ParseSigmoidRouter(JsonReader* settings, double epsilon, ExpertsConfig* experts) {
  kernels::Router& router = experts->router;
  router.form = kernels::RouterForm::kSigmoid;
  router.epsilon = epsilon;
  RIVULET_RETURN_IF_ERROR(settings->Bool("norm_topk_prob", &router.normalized, true));
  return settings->Positive("routed_scaling_factor", &router.scale, 1.0f);
}

}  // namespace rivulet
