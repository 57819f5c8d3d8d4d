// SPDX-License-Identifier: Apache-2.0
// ModelConfig: what config.json says, validated. model/FORMAT.md is the contract.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/feature_map.h"
#include "kernels/state_layout.h"
#include "model/blocks/block_config.h"

namespace rivulet {

enum class Activation : uint8_t { kRelu, kGelu };
enum class PositionType : uint8_t { kNone, kLearned, kSinusoidal };
enum class PositionCombine : uint8_t { kAdd, kConcat };
enum class Gate : uint8_t { kNone, kRfa };
enum class Normalizer : uint8_t { kAddEps, kClampMin };
enum class OutputType : uint8_t { kCategorical, kMixtureOfLogistics };
enum class MixtureScale : uint8_t { kExp, kElu };
enum class ContentType : uint8_t { kTokens, kImage, kText };

struct PositionConfig {
  PositionType type = PositionType::kNone;
  PositionCombine combine = PositionCombine::kAdd;
  int64_t max_length = 0;  // 0 where type is kNone: no limit
};

struct FeatureMapConfig {
  kernels::FeatureMapKind kind = kernels::FeatureMapKind::kElu;
  int n_dims = 0;          // n_dims, or num_features of rfa, as in the file; 0 for elu
  float softmax_temp = 1;  // t
  float smoothing = 0;     // s of smoothed_random_fourier
  int columns = 0;         // columns of omega, derived
};

struct OutputConfig {
  OutputType type = OutputType::kCategorical;
  int num_mixtures = 0;  // K; 0 for categorical
  int num_levels = 0;    // L; 0 for categorical
  MixtureScale scale = MixtureScale::kExp;
};

struct ContentConfig {
  ContentType type = ContentType::kTokens;
  int height = 0, width = 0, channels = 0;  // image
  std::string alphabet;  // text of our own format: UTF-8; id = index of the code point
};

// Immutable once parsed. Every dimension is at least 1 and every derived size fits its type.
struct ModelConfig {
  std::string name;
  int vocab_size = 0;
  std::optional<int32_t> bos_token_id, eos_token_id;
  std::vector<int32_t> more_eos_token_ids;  // beside eos_token_id; a checkpoint may name several
  int hidden_size = 0, num_layers = 0, num_heads = 0;
  int key_dim = 0, value_dim = 0;  // a head
  int ffn_size = 0;
  Activation activation = Activation::kGelu;
  float layer_norm_eps = 1e-5f;
  bool final_norm = false;
  PositionConfig position;
  FeatureMapConfig feature_map;
  Gate gate = Gate::kNone;
  Normalizer normalizer = Normalizer::kAddEps;
  float normalizer_value = 1e-6f;  // eps or min
  OutputConfig output;
  ContentConfig content;
  // A model of the family: what its checkpoint says. Then the members above hold what these models
  // share with ours (vocab_size, eos, sizes, a categorical head, no positions); feature_map, gate,
  // normalizer and state_layout() mean nothing. Null: a model of model/FORMAT.md.
  std::shared_ptr<const BlockConfig> blocks = nullptr;

  bool has_bos() const { return bos_token_id.has_value(); }
  int key_features() const {
    return kernels::KeyFeatures(feature_map.kind, key_dim, feature_map.columns);
  }
  int embedding_columns() const {
    return position.type != PositionType::kNone && position.combine == PositionCombine::kConcat
               ? hidden_size / 2
               : hidden_size;
  }
  // Width of the head's raw output: vocab_size logits, or 3 * num_mixtures.
  int output_size() const {
    return output.type == OutputType::kCategorical ? vocab_size : 3 * output.num_mixtures;
  }
  // Tokens that can be scored or sampled are below this: vocab_size, or num_levels.
  int num_output_tokens() const {
    return output.type == OutputType::kCategorical ? vocab_size : output.num_levels;
  }
  size_t bytes_per_slot() const {
    return blocks == nullptr ? state_layout().bytes_per_slot()
                             : blocks->state().floats_per_slot * sizeof(float);
  }
  // REQUIRES: blocks == nullptr.
  kernels::StateLayout state_layout() const {
    return {num_layers, num_heads, key_features(), value_dim};
  }
  // Most tokens that can be given or generated in one sequence, the implied bos not counted
  // (position.max_length with a bos, one more without); nullopt: no limit.
  std::optional<int64_t> max_tokens() const {
    if (position.type == PositionType::kNone) return std::nullopt;
    return position.max_length + (has_bos() ? 0 : 1);
  }
};

// Parses and validates the text of a config.json. Errors: INVALID_ARGUMENT with the field's path,
// what it held and what is allowed (unknown, missing, duplicate or mistyped fields, impossible
// values). Throws nothing.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json_text);

// A tensor that model.safetensors must hold, and nothing else may stand in the file.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<TensorSpec> ExpectedTensors(const ModelConfig& config);

}  // namespace rivulet
