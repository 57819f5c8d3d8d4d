// SPDX-License-Identifier: Apache-2.0
// ModelConfig: the validated contents of config.json. model/FORMAT.md is the contract.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/feature_map.h"
#include "kernels/state_layout.h"
#include "model/block_config.h"
#include "model/state_parts.h"

namespace rivulet {

inline constexpr int64_t kDefaultContext = 8192;
// Most bytes of a state; for a state that grows, with one block of keys and values.
inline constexpr uint64_t kMaxStateBytes = uint64_t{16} << 30;

enum class Activation : uint8_t { kRelu, kGelu };
enum class PositionType : uint8_t { kNone, kLearned, kSinusoidal, kRotary };
enum class PositionCombine : uint8_t { kAdd, kConcat };
enum class Gate : uint8_t { kNone, kRfa };
enum class Normalizer : uint8_t { kAddEps, kClampMin };
enum class OutputType : uint8_t { kCategorical, kMixtureOfLogistics };
enum class MixtureScale : uint8_t { kExp, kElu };
enum class ContentType : uint8_t { kTokens, kImage, kText };

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
  // Text of our own format: UTF-8; id = index of the code point. Empty: by tokenizer.json.
  std::string alphabet;
};

// A transformer as model/FORMAT.md describes it, with linear attention: kind "linear"; or with
// softmax attention: kind "softmax".
struct EncoderConfig {
  Activation activation = Activation::kGelu;
  bool final_norm = false;
  PositionType position = PositionType::kNone;
  PositionCombine combine = PositionCombine::kAdd;
  RopeConfig rope;         // of rotary positions: queries and keys are turned
  bool transform = false;  // x = norm(gelu(linear(x))) between the layers and the head
  // The directory is one of transformers with model_type "molformer" (molformer_settings.h): its
  // tensors have that library's names, the head has no bias, and may be the embedding.
  bool molformer = false, tied_head = false;
  // deterministic_eval is false: other programs draw a new omega in each pass. The file's is used.
  bool redrawn_elsewhere = false;
  bool softmax = false;
  int window = 0;  // softmax attention: positions that a token sees, with its own; 0: all
  // Linear attention:
  FeatureMapConfig feature_map;
  Gate gate = Gate::kNone;
  Normalizer normalizer = Normalizer::kAddEps;
  float normalizer_value = 1e-6f;  // eps or min

  // Whether positions are rows that join the embedding.
  bool has_position_rows() const {
    return position == PositionType::kLearned || position == PositionType::kSinusoidal;
  }
};

// The settings of every model, and in `network` the settings of its kind; outside model/ no code
// asks for the kind. Immutable once parsed. Every dimension is at least 1 unless said otherwise,
// and every derived size fits its type.
struct ModelConfig {
  std::string name;
  int vocab_size = 0;
  std::optional<int32_t> bos_token_id, eos_token_id;
  std::vector<int32_t> more_eos_token_ids;  // beside eos_token_id; a checkpoint may name several
  int hidden_size = 0, num_layers = 0, num_heads = 0;
  int key_dim = 0, value_dim = 0;  // a head
  // Heads of q and k; each serves num_heads / num_key_heads neighbouring heads of v and S; 0:
  // num_heads.
  int num_key_heads = 0;
  int ffn_size = 0;  // 0: no feed-forward (Mamba-2)
  float norm_eps = 1e-5f;
  int64_t max_positions = 0;  // 0: no limit
  // Of a hybrid, which may be given more; 0: unknown.
  int64_t trained_positions = 0;
  // The number of positions that a slot holds, if softmax attention caches all positions; 0: no
  // limit. A backend chooses it (BackendLimits::context); until then it is kDefaultContext at most.
  int64_t context = 0;
  // The type in which a backend caches keys and values.
  kernels::CacheType cache = kernels::CacheType::kF32;
  OutputConfig output;
  ContentConfig content;
  std::variant<EncoderConfig, BlockConfig> network;

  // REQUIRES: the model is of that kind.
  const EncoderConfig& encoder() const { return *std::get_if<EncoderConfig>(&network); }
  EncoderConfig& encoder() { return *std::get_if<EncoderConfig>(&network); }
  const BlockConfig& block() const { return *std::get_if<BlockConfig>(&network); }
  BlockConfig& block() { return *std::get_if<BlockConfig>(&network); }
  // Null: no layer has experts.
  const ExpertsConfig* experts() const {
    const auto* const family = std::get_if<BlockConfig>(&network);
    return family != nullptr && family->experts ? &*family->experts : nullptr;
  }

  // The first is eos_token_id, the others stand in more_eos_token_ids. None: nothing changes.
  void SetEnds(std::span<const int32_t> ids);

  // `positions`, or the model's limit if that is less.
  int64_t AtMost(int64_t positions) const {
    return max_positions == 0 ? positions : std::min(positions, max_positions);
  }
  // Sets `context` for a model that caches keys and values of all positions, until a backend
  // chooses one.
  void SetDefaultContext();
  // This configuration with slots for `positions` positions; 0: no limit.
  ModelConfig WithContext(int64_t positions) const {
    ModelConfig config = *this;
    config.context = positions;
    return config;
  }

  ModelConfig WithCache(kernels::CacheType type) const {
    ModelConfig config = *this;
    config.cache = type;
    return config;
  }

  // Whether the model's directory has the layout of model/FORMAT.md.
  bool own_format() const {
    const auto* encoder = std::get_if<EncoderConfig>(&network);
    return encoder != nullptr && !encoder->molformer;
  }
  bool has_bos() const { return bos_token_id.has_value(); }
  int key_heads() const { return num_key_heads > 0 ? num_key_heads : num_heads; }
  int keys() const { return key_heads() * key_dim; }
  int values() const { return num_heads * value_dim; }
  // Width of the head's raw output: vocab_size logits, or 3 * num_mixtures.
  int output_size() const {
    return output.type == OutputType::kCategorical ? vocab_size : 3 * output.num_mixtures;
  }
  // Tokens that can be scored or sampled are below this: vocab_size, or num_levels.
  int num_output_tokens() const {
    return output.type == OutputType::kCategorical ? vocab_size : output.num_levels;
  }
  // Most tokens that one sequence can be given or generate, without the implied bos: the number of
  // positions, one more in models without a bos; nullopt: no limit. The first function ignores the
  // size of slots, the second respects it.
  std::optional<int64_t> model_max_tokens() const { return TokensOf(max_positions); }
  std::optional<int64_t> max_tokens() const {
    return TokensOf(max_positions == 0 || context == 0 ? max_positions + context
                                                       : std::min(max_positions, context));
  }

  // "linear", "softmax", or `model_type` of a model of the family.
  const char* kind() const;
  // The layout of a sequence's state.
  StateParts state() const;
  // Identifies that layout in snapshots: kind "linear" by `layout`, all others by `text`.
  struct StateIdentity {
    kernels::StateLayout layout;
    std::string text;
  };
  StateIdentity state_identity() const;
  // Bytes of a state with `context` positions.
  size_t bytes_per_slot() const { return state().size().At(context); }

  // For kind "linear"; 0 and "" for others.
  int key_features() const;
  const char* feature_map_name() const;

  // REQUIRES: encoder().
  int embedding_columns() const {
    return encoder().has_position_rows() && encoder().combine == PositionCombine::kConcat
               ? hidden_size / 2
               : hidden_size;
  }
  kernels::StateLayout state_layout() const {
    return {num_layers, num_heads, key_features(), value_dim};
  }

 private:
  std::optional<int64_t> TokensOf(int64_t positions) const {
    if (positions == 0) return std::nullopt;
    return positions + (has_bos() ? 0 : 1);
  }
};

// Parses and validates the text of a config.json. Errors: INVALID_ARGUMENT with the field's path,
// its value and the allowed values (unknown, missing, duplicate or mistyped fields, impossible
// values). Throws nothing.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json_text);

// A tensor that model.safetensors must hold. The file may hold no other tensor.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<TensorSpec> ExpectedTensors(const ModelConfig& config);

}  // namespace rivulet
