// SPDX-License-Identifier: Apache-2.0
#include "model/loading/encoder_weights.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/embed.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using kernels::FeatureMapKind;

// Loading builds a sinusoidal table up to this size; later positions are computed when needed.
constexpr size_t kMaxPositionTableFloats = size_t{16} << 20;

// The tensor that this format calls `name`, in the model's file. MoLFormer's names are those of
// transformers' BERT.
std::string NameInFile(const ModelConfig& config, const std::string& name) {
  if (!config.encoder().molformer) return name;
  if (name == "predictor.weight" && config.encoder().tied_head) {
    return NameInFile(config, "embedding.weight");
  }
  return absl::StrReplaceAll(
      name, {{"embedding.", "molformer.embeddings.word_embeddings."},
             {"transformer.layers.", "molformer.encoder.layer."},
             {"attention.query_projection.", "attention.self.query."},
             {"attention.key_projection.", "attention.self.key."},
             {"attention.value_projection.", "attention.self.value."},
             {"attention.inner_attention.feature_map.omega", "attention.self.feature_map.weight"},
             {"attention.out_projection.", "attention.output.dense."},
             {"norm1.", "attention.output.LayerNorm."},
             {"linear1.", "intermediate.dense."},
             {"linear2.", "output.dense."},
             {"norm2.", "output.LayerNorm."},
             {"transformer.norm.", "molformer.LayerNorm."},
             {"transform.linear.", "lm_head.transform.dense."},
             {"transform.norm.", "lm_head.transform.LayerNorm."},
             {"predictor.", "lm_head.decoder."}});
}

absl::Status ReadValues(TensorPacker* reader, const std::string& name,
                        const TensorPacker::Shape& shape, std::vector<float>* out) {
  return reader->Values(NameInFile(reader->config, name), shape, out);
}

// y = x W^T + b; a part is NAME.weight and NAME.bias.
absl::Status ReadAffine(TensorPacker* reader, const std::vector<TensorRows>& parts, int k,
                        MatrixWeights* m, MatrixUse use = MatrixUse::kLayer) {
  std::vector<TensorRows> weights;
  std::vector<float> bias;
  for (const TensorRows& part : parts) {
    std::vector<float> one;
    RIVULET_RETURN_IF_ERROR(ReadValues(reader, part.name + ".bias", {part.rows}, &one));
    bias.insert(bias.end(), one.begin(), one.end());
    weights.push_back({NameInFile(reader->config, part.name + ".weight"), part.rows});
  }
  return reader->Matrix(weights, k, m, bias, use);
}

absl::Status ReadLayerNorm(TensorPacker* reader, const std::string& name, NormWeights* norm) {
  const int hidden = reader->config.hidden_size;
  RIVULET_RETURN_IF_ERROR(ReadValues(reader, name + ".weight", {hidden}, &norm->weight));
  return ReadValues(reader, name + ".bias", {hidden}, &norm->bias);
}

absl::Status ReadTables(TensorPacker* reader, PackedWeights* weights) {
  const ModelConfig& c = reader->config;
  const int columns = c.embedding_columns();
  RIVULET_RETURN_IF_ERROR(
      ReadValues(reader, "embedding.weight", {c.vocab_size, columns}, &weights->tokens));
  weights->position_rows = PositionTableRows(c);
  if (c.encoder().position == PositionType::kLearned) {
    return ReadValues(reader, "position.weight", {weights->position_rows, columns},
                      &weights->positions);
  }
  const auto rows = size_t(weights->position_rows), row = size_t(columns);
  if (!reader->Keep(rows * row)) return absl::OkStatus();
  weights->positions.resize(rows * row);
  for (size_t p = 0; p < rows; ++p) {
    kernels::SinusoidalPosition(int64_t(p), columns, &weights->positions[p * row]);
  }
  return absl::OkStatus();
}

absl::Status ReadOmega(TensorPacker* reader, const std::string& attention,
                       std::vector<float>* omega) {
  const ModelConfig& c = reader->config;
  const FeatureMapConfig& map = c.encoder().feature_map;
  if (map.kind == FeatureMapKind::kElu) return absl::OkStatus();
  if (map.kind != FeatureMapKind::kRfa) {
    return ReadValues(reader, attention + "inner_attention.feature_map.omega",
                      {c.key_dim, map.columns}, omega);
  }
  RIVULET_RETURN_IF_ERROR(
      ReadValues(reader, attention + "omega", {c.num_heads, c.key_dim, map.columns}, omega));
  std::vector<float> sigma;
  RIVULET_RETURN_IF_ERROR(
      ReadValues(reader, attention + "sigma", {c.num_heads, c.key_dim}, &sigma));
  for (size_t i = 0; i < omega->size(); ++i) (*omega)[i] *= sigma[i / size_t(map.columns)];
  return absl::OkStatus();
}

absl::Status ReadAttention(TensorPacker* reader, const std::string& attention,
                           LayerWeights* layer) {
  const ModelConfig& c = reader->config;
  std::vector<TensorRows> inputs = {{attention + "query_projection", c.keys()},
                                    {attention + "key_projection", c.keys()},
                                    {attention + "value_projection", c.values()}};
  const TensorRows gate = {attention + "gate_projection", c.num_heads};
  const bool gated = c.encoder().gate == Gate::kRfa;
  if (gated && !reader->quantizes()) inputs.push_back(gate);
  RIVULET_RETURN_IF_ERROR(ReadAffine(reader, inputs, c.hidden_size, &layer->in));
  if (gated && reader->quantizes()) {
    RIVULET_RETURN_IF_ERROR(
        ReadAffine(reader, {gate}, c.hidden_size, &layer->in_small, MatrixUse::kExact));
  }
  RIVULET_RETURN_IF_ERROR(ReadOmega(reader, attention, &layer->omega));
  return ReadAffine(reader, {{attention + "out_projection", c.hidden_size}}, c.values(),
                    &layer->out);
}

absl::Status ReadLayer(TensorPacker* reader, int index, LayerWeights* layer) {
  const ModelConfig& c = reader->config;
  const std::string prefix = absl::StrCat("transformer.layers.", index, ".");
  RIVULET_RETURN_IF_ERROR(ReadAttention(reader, prefix + "attention.", layer));
  RIVULET_RETURN_IF_ERROR(ReadLayerNorm(reader, prefix + "norm1", &layer->norm1));
  RIVULET_RETURN_IF_ERROR(
      ReadAffine(reader, {{prefix + "linear1", c.ffn_size}}, c.hidden_size, &layer->up));
  RIVULET_RETURN_IF_ERROR(
      ReadAffine(reader, {{prefix + "linear2", c.hidden_size}}, c.ffn_size, &layer->down));
  return ReadLayerNorm(reader, prefix + "norm2", &layer->norm2);
}

absl::Status ReadHead(TensorPacker* reader, PackedWeights* weights) {
  const ModelConfig& c = reader->config;
  if (c.encoder().transform) {
    RIVULET_RETURN_IF_ERROR(ReadAffine(reader, {{"transform.linear", c.hidden_size}}, c.hidden_size,
                                       &weights->transform));
    RIVULET_RETURN_IF_ERROR(ReadLayerNorm(reader, "transform.norm", &weights->transform_norm));
  }
  const TensorRows head = {"predictor", c.output_size()};
  if (!c.encoder().molformer) {
    return ReadAffine(reader, {head}, c.hidden_size, &weights->head, MatrixUse::kEnd);
  }
  return reader->Matrix({{NameInFile(c, "predictor.weight"), head.rows}}, c.hidden_size,
                        &weights->head, {}, MatrixUse::kEnd);
}

}  // namespace

absl::Status ReadEncoderWeights(TensorPacker* reader, PackedWeights* weights) {
  const ModelConfig& c = reader->config;
  RIVULET_RETURN_IF_ERROR(ReadTables(reader, weights));
  weights->feature_map = FeatureMapOf(c);
  weights->rope = c.encoder().rope;
  InputColumns& columns = weights->columns;
  columns.q = 0;
  columns.k = c.keys();
  columns.v = 2 * c.keys();
  columns.n = columns.v + c.values();
  if (c.encoder().gate == Gate::kRfa) {
    if (reader->quantizes()) columns.n = columns.small = kernels::PaddedColumns(columns.n);
    columns.gate = columns.n;
    columns.n += c.num_heads;
  }
  weights->layers.resize(size_t(c.num_layers));
  for (int i = 0; i < c.num_layers; ++i) {
    RIVULET_RETURN_IF_ERROR(ReadLayer(reader, i, &weights->layers[size_t(i)]));
  }
  if (c.encoder().final_norm) {
    RIVULET_RETURN_IF_ERROR(ReadLayerNorm(reader, "transformer.norm", &weights->final_norm));
  }
  return ReadHead(reader, weights);
}

int64_t PositionTableRows(const ModelConfig& config) {
  switch (config.encoder().position) {
    case PositionType::kNone:
    case PositionType::kRotary:
      return 0;
    case PositionType::kLearned:
      return config.max_positions;
    case PositionType::kSinusoidal:
      return std::min(config.max_positions,
                      int64_t(kMaxPositionTableFloats / size_t(config.embedding_columns())));
  }
  return 0;
}

kernels::FeatureMapArgs FeatureMapOf(const ModelConfig& config) {
  const FeatureMapConfig& map = config.encoder().feature_map;
  kernels::FeatureMapArgs args;
  args.kind = map.kind;
  args.key_dim = config.key_dim;
  args.columns = map.columns;
  args.x_scale = std::sqrt(map.softmax_temp);
  args.smoothing = map.smoothing;
  switch (map.kind) {
    case FeatureMapKind::kElu:
    case FeatureMapKind::kGeneralizedRandomRelu:
      break;
    case FeatureMapKind::kRandomFourier:
      args.out_scale = float(std::sqrt(2.0 / map.n_dims));
      break;
    case FeatureMapKind::kSmoothedRandomFourier:
      args.out_scale = float(std::sqrt(2.0 / (map.n_dims - 1)));
      break;
    case FeatureMapKind::kFavor:
      args.out_scale = float(std::log(double(map.n_dims)) / 2);
      break;
    case FeatureMapKind::kRfa:
      args.out_scale = float(1 / std::sqrt(double(map.columns)));
      break;
  }
  return args;
}

size_t OmegaFloatsPerHead(const ModelConfig& config) {
  const FeatureMapConfig& map = config.encoder().feature_map;
  return map.kind == FeatureMapKind::kRfa ? size_t(config.key_dim) * size_t(map.columns) : 0;
}

}  // namespace rivulet
