// SPDX-License-Identifier: Apache-2.0
#include "model/decoded_weights.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/embed.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using kernels::FeatureMapKind;

// A sinusoidal table up to this size is built when loading; positions behind it are computed as
// they come.
constexpr size_t kMaxPositionTableFloats = size_t{16} << 20;

absl::StatusOr<std::vector<float>> Read(const Model& model, const std::string& name, size_t count) {
  std::vector<float> values(count);
  RIVULET_RETURN_IF_ERROR(model.tensors().Read(name, values));
  return values;
}

struct Named {
  std::string name;
  int rows;
};

absl::StatusOr<DecodedMatrix> DecodeMatrix(const Model& model, const std::vector<Named>& parts,
                                           int k) {
  DecodedMatrix m;
  m.k = k;
  for (const Named& part : parts) {
    m.parts.push_back({part.name, m.n, part.rows});
    m.n += part.rows;
  }
  m.weight.resize(size_t(m.n) * size_t(k));
  m.bias.resize(size_t(m.n));
  for (const DecodedMatrix::Part& part : m.parts) {
    const auto first = size_t(part.first_row), rows = size_t(part.rows);
    RIVULET_RETURN_IF_ERROR(model.tensors().Read(
        part.name + ".weight", std::span(m.weight).subspan(first * size_t(k), rows * size_t(k))));
    RIVULET_RETURN_IF_ERROR(
        model.tensors().Read(part.name + ".bias", std::span(m.bias).subspan(first, rows)));
  }
  return m;
}

absl::StatusOr<DecodedNorm> DecodeNorm(const Model& model, const std::string& name) {
  const auto hidden = size_t(model.config().hidden_size);
  DecodedNorm norm;
  RIVULET_ASSIGN_OR_RETURN(norm.weight, Read(model, name + ".weight", hidden));
  RIVULET_ASSIGN_OR_RETURN(norm.bias, Read(model, name + ".bias", hidden));
  return norm;
}

absl::StatusOr<std::vector<float>> DecodeOmega(const Model& model, const std::string& attention) {
  const ModelConfig& config = model.config();
  const FeatureMapConfig& map = config.encoder().feature_map;
  const auto columns = size_t(map.columns);
  const size_t per_head = size_t(config.key_dim) * columns;
  if (map.kind == FeatureMapKind::kElu) return std::vector<float>();
  if (map.kind != FeatureMapKind::kRfa) {
    return Read(model, attention + "inner_attention.feature_map.omega", per_head);
  }
  const auto heads = size_t(config.num_heads);
  RIVULET_ASSIGN_OR_RETURN(std::vector<float> omega,
                           Read(model, attention + "omega", heads * per_head));
  RIVULET_ASSIGN_OR_RETURN(const std::vector<float> sigma,
                           Read(model, attention + "sigma", heads * size_t(config.key_dim)));
  for (size_t i = 0; i < omega.size(); ++i) omega[i] *= sigma[i / columns];
  return omega;
}

}  // namespace

int64_t PositionTableRows(const ModelConfig& config) {
  switch (config.encoder().position) {
    case PositionType::kNone:
      return 0;
    case PositionType::kLearned:
      return config.max_positions;
    case PositionType::kSinusoidal:
      return std::min(config.max_positions,
                      int64_t(kMaxPositionTableFloats / size_t(config.embedding_columns())));
  }
  return 0;
}

absl::StatusOr<DecodedTables> DecodeTables(const Model& model) {
  const ModelConfig& config = model.config();
  const auto columns = size_t(config.embedding_columns());
  DecodedTables tables;
  RIVULET_ASSIGN_OR_RETURN(tables.embedding,
                           Read(model, "embedding.weight", size_t(config.vocab_size) * columns));
  tables.position_rows = PositionTableRows(config);
  if (config.encoder().position == PositionType::kLearned) {
    RIVULET_ASSIGN_OR_RETURN(
        tables.positions, Read(model, "position.weight", size_t(tables.position_rows) * columns));
  } else if (config.encoder().position == PositionType::kSinusoidal) {
    tables.positions.resize(size_t(tables.position_rows) * columns);
    for (int64_t p = 0; p < tables.position_rows; ++p) {
      kernels::SinusoidalPosition(p, int(columns), &tables.positions[size_t(p) * columns]);
    }
  }
  return tables;
}

absl::StatusOr<DecodedLayer> DecodeLayer(const Model& model, int layer) {
  const ModelConfig& config = model.config();
  const std::string prefix = absl::StrCat("transformer.layers.", layer, ".");
  const std::string attention = prefix + "attention.";
  const int queries = config.num_heads * config.key_dim;
  const int values = config.num_heads * config.value_dim;
  std::vector<Named> qkv = {{attention + "query_projection", queries},
                            {attention + "key_projection", queries},
                            {attention + "value_projection", values}};
  if (config.encoder().gate == Gate::kRfa)
    qkv.push_back({attention + "gate_projection", config.num_heads});
  DecodedLayer decoded;
  RIVULET_ASSIGN_OR_RETURN(decoded.qkv, DecodeMatrix(model, qkv, config.hidden_size));
  RIVULET_ASSIGN_OR_RETURN(
      decoded.out,
      DecodeMatrix(model, {{attention + "out_projection", config.hidden_size}}, values));
  RIVULET_ASSIGN_OR_RETURN(
      decoded.ffn1,
      DecodeMatrix(model, {{prefix + "linear1", config.ffn_size}}, config.hidden_size));
  RIVULET_ASSIGN_OR_RETURN(
      decoded.ffn2,
      DecodeMatrix(model, {{prefix + "linear2", config.hidden_size}}, config.ffn_size));
  RIVULET_ASSIGN_OR_RETURN(decoded.norm1, DecodeNorm(model, prefix + "norm1"));
  RIVULET_ASSIGN_OR_RETURN(decoded.norm2, DecodeNorm(model, prefix + "norm2"));
  RIVULET_ASSIGN_OR_RETURN(decoded.omega, DecodeOmega(model, attention));
  return decoded;
}

absl::StatusOr<DecodedNorm> DecodeFinalNorm(const Model& model) {
  return DecodeNorm(model, "transformer.norm");
}

absl::StatusOr<DecodedMatrix> DecodeHead(const Model& model) {
  const ModelConfig& config = model.config();
  return DecodeMatrix(model, {{"predictor", config.output_size()}}, config.hidden_size);
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

absl::Status WeightTooLarge(absl::string_view part) {
  return InvalidField(
      "WEIGHT_TOO_LARGE", "weights",
      absl::StrCat("a value of tensor ", part, ".weight is too large for 16-bit weights"));
}

}  // namespace rivulet
