// SPDX-License-Identifier: Apache-2.0
// Settings that several hybrids share. For all readers: errors are those of ParseBlockConfig
// (model/block_settings.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/json_reader.h"
#include "model/config.h"

namespace rivulet {

inline constexpr int64_t kMostColumns = int64_t{1} << 24;
inline constexpr int kMostLayers = 4096;

// A name of `layer_types`, and the layers that have it.
struct LayerName {
  absl::string_view name;
  LayerParts parts;
};
inline constexpr LayerParts kRecurrentLayer = {.recurrent = true, .attends = false};
inline constexpr LayerParts kAttentionLayer = {.recurrent = false, .attends = true};

// The list of names `setting`, one for each layer; without it, `fallback`. Unless num_layers
// is 0, the list must have so many.
absl::Status ParseLayerNames(JsonReader* settings, absl::string_view setting,
                             std::initializer_list<LayerName> names,
                             std::vector<LayerParts> fallback, ModelConfig* config);

// Heads of queries, and of the keys and values that they share; attention_bias.
absl::Status ParseHeads(JsonReader* settings, SoftmaxConfig* softmax);
float InverseRoot(int n);

// The positions that the model was trained for: the default context, but no limit; 0: unknown.
absl::StatusOr<int> ParsePositions(JsonReader* settings, ModelConfig* config);

// Checks the sizes of a slot for few tokens, and of the outputs of products. Call it when softmax
// and layers are set.
absl::Status CheckSoftmaxSizes(const JsonReader& settings, const ModelConfig& config);

// The names of the settings of a mixture of experts; null: the model has no such setting.
struct ExpertNames {
  const char *experts, *size;
  int default_experts, default_chosen;
  int default_size;  // 0: the setting may not miss; likewise default_shared
  const char* shared_size = nullptr;
  int default_shared = 0;
};
// Reads numbers and sizes of experts. Errors also: more chosen experts than there are.
absl::Status ParseExperts(JsonReader* settings, const ExpertNames& names, ExpertsConfig* experts);
// The settings of kSigmoid: norm_topk_prob, routed_scaling_factor.
absl::Status ParseSigmoidRouter(JsonReader* settings, double epsilon, ExpertsConfig* experts);

}  // namespace rivulet
