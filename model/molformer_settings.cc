// SPDX-License-Identifier: Apache-2.0
#include "model/molformer_settings.h"

#include <string>

#include "absl/strings/match.h"
#include "model/base/error.h"
#include "model/block_settings.h"

namespace rivulet {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 20;  // of a dimension or vocabulary

// Only the decoder has a causal form. The encoder has the same names of tensors, and no is_decoder.
absl::Status CheckDecoder(const JsonValue& json, JsonReader* settings) {
  const std::string names = ArchitecturesOf(json);
  if (!names.empty() && !absl::StrContains(names, "\"MolformerForCausalLM\"")) {
    return settings->Unsupported("architectures", "is ", names,
                                 ": MoLFormer's encoder has no causal form; supported: "
                                 "MolformerForCausalLM (GP-MoLFormer)");
  }
  RIVULET_RETURN_IF_ERROR(settings->Only("is_decoder", "true"));
  return settings->Only("add_cross_attention", "false");
}

absl::Status ParseSizes(JsonReader* settings, ModelConfig* config) {
  RIVULET_RETURN_IF_ERROR(settings->Int("vocab_size", 2, kMostSize, &config->vocab_size, 2362));
  RIVULET_RETURN_IF_ERROR(settings->Int("hidden_size", 1, kMostSize, &config->hidden_size, 768));
  RIVULET_RETURN_IF_ERROR(settings->Int("num_hidden_layers", 1, 4096, &config->num_layers, 12));
  RIVULET_RETURN_IF_ERROR(
      settings->Int("num_attention_heads", 1, kMostSize, &config->num_heads, 12));
  RIVULET_RETURN_IF_ERROR(settings->Int("intermediate_size", 1, kMostSize, &config->ffn_size, 768));
  FeatureMapConfig& map = config->encoder().feature_map;
  RIVULET_RETURN_IF_ERROR(settings->Int("num_random_features", 1, kMostSize, &map.n_dims, 32));
  if (config->hidden_size % (2 * config->num_heads) != 0) {
    return settings->Invalid("num_attention_heads", "is ", config->num_heads,
                             "; allowed: a number of heads whose size, hidden_size (",
                             config->hidden_size, ") divided by it, is a whole even number");
  }
  config->key_dim = config->value_dim = config->hidden_size / config->num_heads;
  map.kind = kernels::FeatureMapKind::kGeneralizedRandomRelu;
  map.columns = map.n_dims;
  if (config->state_layout().bytes_per_slot() <= kMaxStateBytes) return absl::OkStatus();
  return settings->Invalid("num_hidden_layers", "is ", config->num_layers,
                           ": a state would be larger than ", kMaxStateBytes, " bytes");
}

}  // namespace

absl::StatusOr<ModelConfig> ParseMolformer(const JsonValue& json, JsonReader* settings) {
  ModelConfig config;
  EncoderConfig& encoder = config.encoder();
  // For training, for other programs, or read elsewhere.
  settings->Known({"architectures", "auto_map", "bos_token_id", "chunk_size_feed_forward",
                   "eos_token_id", "max_position_embeddings", "model_type", "pad_token_id"});
  settings->Known({"classifier_dropout_prob", "classifier_skip_connection", "dtype",
                   "embedding_dropout_prob", "hidden_dropout_prob", "initializer_range"});
  settings->Known({"id2label", "label2id", "return_dict", "tokenizer_class"});
  settings->Known({"torch_dtype", "transformers_version", "use_cache",
                   "_attn_implementation_autoset", "_name_or_path"});
  RIVULET_RETURN_IF_ERROR(CheckDecoder(json, settings));
  RIVULET_RETURN_IF_ERROR(ParseSizes(settings, &config));
  RIVULET_RETURN_IF_ERROR(settings->Only("hidden_act", R"("gelu")"));
  RIVULET_RETURN_IF_ERROR(settings->Only("feature_map_kernel", R"("relu")"));
  RIVULET_RETURN_IF_ERROR(settings->Positive("layer_norm_eps", &config.norm_eps, 1e-12f));
  RIVULET_RETURN_IF_ERROR(
      settings->Positive("linear_attention_eps", &encoder.normalizer_value, 1e-6f));
  bool kept = false;
  RIVULET_RETURN_IF_ERROR(settings->Bool("deterministic_eval", &kept, false));
  RIVULET_RETURN_IF_ERROR(settings->Bool("tie_word_embeddings", &encoder.tied_head, false));
  RIVULET_RETURN_IF_ERROR(settings->CheckNoOthers());
  config.eos_token_id = 1;  // unless the file names another
  encoder.molformer = encoder.transform = encoder.final_norm = true;
  encoder.redrawn_elsewhere = !kept;
  encoder.normalizer = Normalizer::kClampMin;
  encoder.position = PositionType::kRotary;
  encoder.rope.frequencies = RopeFrequencies(10000, config.key_dim);
  return config;
}

}  // namespace rivulet
