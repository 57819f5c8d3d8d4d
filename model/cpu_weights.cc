// SPDX-License-Identifier: Apache-2.0
#include "model/cpu_weights.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/embed.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using kernels::FeatureMapKind;
using kernels::WeightType;

// A sinusoidal table up to this size is built when loading; positions behind it are computed as
// they come.
constexpr size_t kMaxPositionTableFloats = size_t{16} << 20;

size_t Bytes(const std::vector<float>& v) { return v.size() * sizeof(float); }
size_t Bytes(const CpuMatrix& m) { return m.panels.bytes() + Bytes(m.bias); }
size_t Bytes(const CpuNorm& n) { return Bytes(n.weight) + Bytes(n.bias); }

// Reads tensors of one model into their places.
class Loader {
 public:
  Loader(const Model& model, WeightType type)
      : model_(model), config_(model.config()), type_(type) {}

  absl::Status Load(CpuWeights* w) {
    const size_t columns = size_t(config_.embedding_columns());
    RIVULET_ASSIGN_OR_RETURN(w->embedding,
                             Read("embedding.weight", size_t(config_.vocab_size) * columns));
    RIVULET_RETURN_IF_ERROR(LoadPositions(w));
    w->layers.resize(size_t(config_.num_layers));
    for (int i = 0; i < config_.num_layers; ++i) {
      RIVULET_RETURN_IF_ERROR(
          LoadLayer(absl::StrCat("transformer.layers.", i, "."), &w->layers[size_t(i)]));
    }
    if (config_.final_norm) RIVULET_RETURN_IF_ERROR(LoadNorm("transformer.norm", &w->final_norm));
    RIVULET_RETURN_IF_ERROR(
        LoadMatrix({{"predictor", config_.output_size()}}, config_.hidden_size, &w->head));
    return absl::OkStatus();
  }

 private:
  struct Part {
    std::string name;  // tensors name.weight and name.bias
    int rows;          // outputs
  };

  absl::StatusOr<std::vector<float>> Read(const std::string& name, size_t count) const {
    std::vector<float> values(count);
    RIVULET_RETURN_IF_ERROR(model_.weights().Read(name, values));
    return values;
  }

  // Several matrices of the same input, side by side in one packed matrix.
  absl::Status LoadMatrix(const std::vector<Part>& parts, int k, CpuMatrix* m) const {
    int n = 0;
    for (const Part& part : parts) n += part.rows;
    m->panels = AlignedBuffer(kernels::PackedSize(type_, k, n));
    if (m->panels.empty()) return absl::ResourceExhaustedError("no memory for the weights");
    m->bias.assign(size_t(kernels::PaddedColumns(n)), 0.0f);
    m->packed = {type_, k, n, m->panels.data()};
    int column = 0;
    for (const Part& part : parts) {
      const std::string weight = part.name + ".weight";
      RIVULET_ASSIGN_OR_RETURN(const std::vector<float> values,
                               Read(weight, size_t(part.rows) * size_t(k)));
      if (!kernels::PackWeights(type_, values.data(), part.rows, k, column, m->panels.data())) {
        return InvalidField(
            "WEIGHT_TOO_LARGE", "weights",
            absl::StrCat("a value of tensor ", weight, " is too large for 16-bit weights"));
      }
      RIVULET_ASSIGN_OR_RETURN(const std::vector<float> bias,
                               Read(part.name + ".bias", size_t(part.rows)));
      std::copy(bias.begin(), bias.end(), m->bias.begin() + column);
      column += part.rows;
    }
    return absl::OkStatus();
  }

  absl::Status LoadNorm(const std::string& name, CpuNorm* norm) const {
    RIVULET_ASSIGN_OR_RETURN(norm->weight, Read(name + ".weight", size_t(config_.hidden_size)));
    RIVULET_ASSIGN_OR_RETURN(norm->bias, Read(name + ".bias", size_t(config_.hidden_size)));
    return absl::OkStatus();
  }

  absl::Status LoadPositions(CpuWeights* w) const {
    if (config_.position.type == PositionType::kNone) return absl::OkStatus();
    const size_t columns = size_t(config_.embedding_columns());
    if (config_.position.type == PositionType::kLearned) {
      w->position_rows = config_.position.max_length;
      RIVULET_ASSIGN_OR_RETURN(w->positions,
                               Read("position.weight", size_t(w->position_rows) * columns));
      return absl::OkStatus();
    }
    w->position_rows =
        std::min(config_.position.max_length, int64_t(kMaxPositionTableFloats / columns));
    w->positions.resize(size_t(w->position_rows) * columns);
    for (int64_t p = 0; p < w->position_rows; ++p) {
      kernels::SinusoidalPosition(p, int(columns), &w->positions[size_t(p) * columns]);
    }
    return absl::OkStatus();
  }

  absl::Status LoadLayer(const std::string& prefix, CpuLayer* layer) const {
    const int queries = config_.num_heads * config_.key_dim;
    const int values = config_.num_heads * config_.value_dim;
    const std::string attention = prefix + "attention.";
    std::vector<Part> qkv = {{attention + "query_projection", queries},
                             {attention + "key_projection", queries},
                             {attention + "value_projection", values}};
    if (config_.gate == Gate::kRfa)
      qkv.push_back({attention + "gate_projection", config_.num_heads});
    RIVULET_RETURN_IF_ERROR(LoadMatrix(qkv, config_.hidden_size, &layer->qkv));
    RIVULET_RETURN_IF_ERROR(
        LoadMatrix({{attention + "out_projection", config_.hidden_size}}, values, &layer->out));
    RIVULET_RETURN_IF_ERROR(
        LoadMatrix({{prefix + "linear1", config_.ffn_size}}, config_.hidden_size, &layer->ffn1));
    RIVULET_RETURN_IF_ERROR(
        LoadMatrix({{prefix + "linear2", config_.hidden_size}}, config_.ffn_size, &layer->ffn2));
    RIVULET_RETURN_IF_ERROR(LoadNorm(prefix + "norm1", &layer->norm1));
    RIVULET_RETURN_IF_ERROR(LoadNorm(prefix + "norm2", &layer->norm2));
    return LoadFeatureMap(attention, layer);
  }

  absl::Status LoadFeatureMap(const std::string& attention, CpuLayer* layer) const {
    const FeatureMapConfig& map = config_.feature_map;
    const size_t per_head = size_t(config_.key_dim) * size_t(map.columns);
    kernels::FeatureMapArgs args;
    args.kind = map.kind;
    args.key_dim = config_.key_dim;
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
    if (map.kind == FeatureMapKind::kRfa) {
      const size_t heads = size_t(config_.num_heads), columns = size_t(map.columns);
      RIVULET_ASSIGN_OR_RETURN(layer->omega, Read(attention + "omega", heads * per_head));
      RIVULET_ASSIGN_OR_RETURN(const std::vector<float> sigma,
                               Read(attention + "sigma", heads * size_t(config_.key_dim)));
      for (size_t i = 0; i < layer->omega.size(); ++i) layer->omega[i] *= sigma[i / columns];
    } else if (map.kind != FeatureMapKind::kElu) {
      RIVULET_ASSIGN_OR_RETURN(layer->omega,
                               Read(attention + "inner_attention.feature_map.omega", per_head));
    }
    for (int h = 0; h < config_.num_heads; ++h) {
      args.omega =
          layer->omega.data() + (map.kind == FeatureMapKind::kRfa ? size_t(h) * per_head : 0);
      layer->maps.push_back(args);
    }
    return absl::OkStatus();
  }

  const Model& model_;
  const ModelConfig& config_;
  const WeightType type_;
};

// The dtypes of the tensors that become packed matrices.
std::vector<DType> MatrixTypes(const Model& model) {
  std::vector<DType> types;
  for (const TensorSpec& spec : ExpectedTensors(model.config())) {
    const bool is_table = spec.name == "embedding.weight" || spec.name == "position.weight";
    if (spec.shape.size() == 2 && !is_table && spec.name.find("omega") == std::string::npos &&
        spec.name.find("sigma") == std::string::npos) {
      types.push_back(model.weights().dtype(spec.name));
    }
  }
  return types;
}

bool AllAre(const std::vector<DType>& types, DType type) {
  return std::all_of(types.begin(), types.end(), [type](DType t) { return t == type; });
}

}  // namespace

size_t CpuWeights::bytes() const {
  size_t total = Bytes(embedding) + Bytes(positions) + Bytes(final_norm) + Bytes(head);
  for (const CpuLayer& l : layers) {
    total += Bytes(l.qkv) + Bytes(l.out) + Bytes(l.ffn1) + Bytes(l.ffn2) + Bytes(l.norm1) +
             Bytes(l.norm2) + Bytes(l.omega);
  }
  return total;
}

int64_t CpuWeights::multiply_adds() const {
  const auto of = [](const CpuMatrix& m) { return int64_t{m.packed.k} * m.packed.n; };
  int64_t total = of(head);
  for (const CpuLayer& l : layers) total += of(l.qkv) + of(l.out) + of(l.ffn1) + of(l.ffn2);
  return total;
}

absl::StatusOr<std::unique_ptr<CpuWeights>> CpuWeights::Load(const Model& model,
                                                             WeightPrecision precision) {
  auto weights = std::make_unique<CpuWeights>();
  const std::vector<DType> types = MatrixTypes(model);
  switch (precision) {
    case WeightPrecision::kAuto:
      weights->type = AllAre(types, DType::kF16)    ? WeightType::kF16
                      : AllAre(types, DType::kBF16) ? WeightType::kBF16
                                                    : WeightType::kF32;
      break;
    case WeightPrecision::kF32:
      weights->type = WeightType::kF32;
      break;
    case WeightPrecision::kF16:
      weights->type = WeightType::kF16;
      weights->lossless = AllAre(types, DType::kF16);
      break;
    case WeightPrecision::kBF16:
      weights->type = WeightType::kBF16;
      weights->lossless = AllAre(types, DType::kBF16);
      break;
  }
  RIVULET_RETURN_IF_ERROR(Loader(model, weights->type).Load(weights.get()));
  return weights;
}

}  // namespace rivulet
