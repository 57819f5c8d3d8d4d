// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_weights.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "model/decoded_weights.h"

namespace rivulet {
namespace {

using kernels::WeightType;

size_t Bytes(const std::vector<float>& v) { return v.size() * sizeof(float); }
size_t Bytes(const CpuMatrix& m) { return m.panels.bytes() + Bytes(m.bias); }
size_t Bytes(const CpuNorm& n) { return Bytes(n.weight) + Bytes(n.bias); }

absl::Status Pack(const DecodedMatrix& decoded, WeightType type, CpuMatrix* m) {
  m->panels = AlignedBuffer(kernels::PackedSize(type, decoded.k, decoded.n));
  if (m->panels.empty()) return absl::ResourceExhaustedError("no memory for the weights");
  m->bias = decoded.bias;
  m->bias.resize(size_t(kernels::PaddedColumns(decoded.n)));
  m->packed = {type, decoded.k, decoded.n, m->panels.data()};
  for (const DecodedMatrix::Part& part : decoded.parts) {
    const float* rows = decoded.weight.data() + size_t(part.first_row) * size_t(decoded.k);
    if (!kernels::PackWeights(type, rows, part.rows, decoded.k, part.first_row, m->panels.data())) {
      return WeightTooLarge(part.name);
    }
  }
  return absl::OkStatus();
}

CpuNorm ToNorm(DecodedNorm decoded) { return {std::move(decoded.weight), std::move(decoded.bias)}; }

absl::Status LoadLayer(const Model& model, int index, WeightType type, CpuLayer* layer) {
  const ModelConfig& config = model.config();
  RIVULET_ASSIGN_OR_RETURN(DecodedLayer decoded, DecodeLayer(model, index));
  RIVULET_RETURN_IF_ERROR(Pack(decoded.qkv, type, &layer->qkv));
  RIVULET_RETURN_IF_ERROR(Pack(decoded.out, type, &layer->out));
  RIVULET_RETURN_IF_ERROR(Pack(decoded.ffn1, type, &layer->ffn1));
  RIVULET_RETURN_IF_ERROR(Pack(decoded.ffn2, type, &layer->ffn2));
  layer->norm1 = ToNorm(std::move(decoded.norm1));
  layer->norm2 = ToNorm(std::move(decoded.norm2));
  layer->omega = std::move(decoded.omega);
  kernels::FeatureMapArgs args = FeatureMapOf(config);
  const size_t per_head = args.kind == kernels::FeatureMapKind::kRfa
                              ? size_t(config.key_dim) * size_t(args.columns)
                              : 0;
  for (int h = 0; h < config.num_heads; ++h) {
    args.omega = layer->omega.data() + size_t(h) * per_head;
    layer->maps.push_back(args);
  }
  return absl::OkStatus();
}

absl::Status LoadAll(const Model& model, WeightType type, CpuWeights* w) {
  RIVULET_ASSIGN_OR_RETURN(DecodedTables tables, DecodeTables(model));
  w->embedding = std::move(tables.embedding);
  w->positions = std::move(tables.positions);
  w->position_rows = tables.position_rows;
  w->layers.resize(size_t(model.config().num_layers));
  for (int i = 0; i < model.config().num_layers; ++i) {
    RIVULET_RETURN_IF_ERROR(LoadLayer(model, i, type, &w->layers[size_t(i)]));
  }
  if (model.config().encoder().final_norm) {
    RIVULET_ASSIGN_OR_RETURN(DecodedNorm norm, DecodeFinalNorm(model));
    w->final_norm = ToNorm(std::move(norm));
  }
  RIVULET_ASSIGN_OR_RETURN(const DecodedMatrix head, DecodeHead(model));
  return Pack(head, type, &w->head);
}

// The dtypes of the tensors that become packed matrices.
std::vector<DType> MatrixTypes(const Model& model) {
  std::vector<DType> types;
  for (const TensorSpec& spec : ExpectedTensors(model.config())) {
    const bool is_table = spec.name == "embedding.weight" || spec.name == "position.weight";
    if (spec.shape.size() == 2 && !is_table && spec.name.find("omega") == std::string::npos &&
        spec.name.find("sigma") == std::string::npos) {
      types.push_back(model.tensors().Find(spec.name)->dtype);
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
  RIVULET_RETURN_IF_ERROR(LoadAll(model, weights->type, weights.get()));
  return weights;
}

}  // namespace rivulet
