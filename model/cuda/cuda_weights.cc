// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_weights.h"

#include <utility>

#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/cuda/rows/embed_cuda.h"
#include "kernels/half.h"

namespace rivulet {
namespace {

using kernels::CudaMatrix;
using kernels::WeightType;

size_t MatrixBytes(WeightType type, const CudaWeightForms& forms, int k, int n) {
  return (forms.packed ? kernels::CudaPackedSize(type, k, n) : 0) +
         (forms.rows ? CudaLibraryWeights::Bytes(type, k, n) : 0) + size_t(n) * sizeof(float);
}

bool HasLatePositions(const ModelConfig& config) {
  return config.encoder().position == PositionType::kSinusoidal &&
         PositionTableRows(config) < config.max_positions;
}

}  // namespace

WeightType CudaLayerType(CudaPrecision precision) {
  return precision == CudaPrecision::kFloat32 ? WeightType::kF32 : WeightType::kF16;
}

size_t CudaWeights::Bytes(const ModelConfig& config, CudaPrecision precision,
                          const CudaWeightForms& forms) {
  const WeightType type = CudaLayerType(precision);
  const int hidden = config.hidden_size, heads = config.num_heads;
  const auto columns = size_t(config.embedding_columns());
  const size_t norm = 2 * size_t(hidden) * sizeof(float);
  const int gates = config.encoder().gate == Gate::kRfa ? heads : 0;
  const bool per_head = config.encoder().feature_map.kind == kernels::FeatureMapKind::kRfa;
  const size_t omega = size_t(config.key_dim) * size_t(config.encoder().feature_map.columns) *
                       size_t(per_head ? heads : 1) * sizeof(float);
  const size_t layer =
      MatrixBytes(type, forms, hidden, heads * (2 * config.key_dim + config.value_dim) + gates) +
      MatrixBytes(type, forms, heads * config.value_dim, hidden) +
      MatrixBytes(type, forms, hidden, config.ffn_size) +
      MatrixBytes(type, forms, config.ffn_size, hidden) + 2 * norm + omega;
  const auto positions = size_t(PositionTableRows(config));
  return size_t(config.num_layers) * layer +
         (size_t(config.vocab_size) + positions) * columns * sizeof(float) +
         (HasLatePositions(config) ? columns * sizeof(double) : 0) +
         (config.encoder().final_norm ? norm : 0) +
         MatrixBytes(WeightType::kF32, forms, hidden, config.output_size());
}

// Fills one CudaWeights.
class CudaWeightsLoader {
 public:
  CudaWeightsLoader(const Model& model, WeightType type, const CudaWeightForms& forms,
                    CudaQueue& queue, CudaWeights* weights)
      : model_(model), type_(type), forms_(forms), queue_(queue), weights_(*weights) {}

  absl::Status Load() {
    const ModelConfig& config = model_.config();
    RIVULET_RETURN_IF_ERROR(LoadTables());
    for (int i = 0; i < config.num_layers; ++i) RIVULET_RETURN_IF_ERROR(LoadLayer(i));
    if (config.encoder().final_norm) {
      RIVULET_ASSIGN_OR_RETURN(const DecodedNorm norm, DecodeFinalNorm(model_));
      RIVULET_RETURN_IF_ERROR(Upload(norm, &weights_.final_norm));
    }
    RIVULET_ASSIGN_OR_RETURN(const DecodedMatrix head, DecodeHead(model_));
    return Upload(head, CudaProduct::kHead, WeightType::kF32, &weights_.head);
  }

 private:
  template <typename T>
  absl::Status Upload(const std::vector<T>& values, const T** device) {
    if (values.empty()) return absl::OkStatus();
    RIVULET_ASSIGN_OR_RETURN(void* const memory, Upload(values.data(), values.size() * sizeof(T)));
    *device = static_cast<const T*>(memory);
    return absl::OkStatus();
  }
  absl::StatusOr<void*> Upload(const void* from, size_t bytes) {
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(bytes));
    RIVULET_RETURN_IF_ERROR(queue_.CopyIn(memory.data(), from, bytes));
    weights_.memory_.push_back(std::move(memory));
    return weights_.memory_.back().data();
  }
  absl::Status Upload(const DecodedNorm& norm, CudaNorm* device) {
    RIVULET_RETURN_IF_ERROR(Upload(norm.weight, &device->weight));
    return Upload(norm.bias, &device->bias);
  }
  absl::Status Upload(const DecodedMatrix& m, CudaProduct which, WeightType type,
                      CudaMatrix* device) {
    device->type = type;
    device->k = m.k;
    device->n = m.n;
    if (forms_.packed) RIVULET_RETURN_IF_ERROR(UploadPacked(m, device));
    RIVULET_RETURN_IF_ERROR(Upload(m.bias, &device->bias));
    return forms_.rows ? UploadRows(m, which, *device) : absl::OkStatus();
  }
  absl::Status UploadPacked(const DecodedMatrix& m, CudaMatrix* device) {
    std::vector<char> packed(kernels::CudaPackedSize(device->type, m.k, m.n));
    for (const DecodedMatrix::Part& part : m.parts) {
      const float* from = m.weight.data() + size_t(part.first_row) * size_t(m.k);
      if (!kernels::PackCudaMatrix(device->type, from, part.rows, m.k, part.first_row,
                                   packed.data())) {
        return Annotate(WeightTooLarge(part.name), "precision \"default\"");
      }
    }
    RIVULET_ASSIGN_OR_RETURN(device->packed, Upload(packed.data(), packed.size()));
    return absl::OkStatus();
  }
  absl::Status UploadRows(const DecodedMatrix& m, CudaProduct which, const CudaMatrix& own) {
    std::vector<char> packed(CudaLibraryWeights::Bytes(own.type, m.k, m.n));
    const size_t row = packed.size() / size_t(m.n);
    for (const DecodedMatrix::Part& part : m.parts) {
      const auto first = size_t(part.first_row);
      if (!kernels::PackProductRows(own.type, m.weight.data() + first * size_t(m.k),
                                    m.bias.data() + first, part.rows, m.k,
                                    packed.data() + first * row)) {
        return Annotate(WeightTooLarge(part.name), "precision \"default\"");
      }
    }
    return weights_.library.Add(which, own, packed, m.bias, queue_);
  }

  absl::Status LoadTables() {
    const ModelConfig& config = model_.config();
    RIVULET_ASSIGN_OR_RETURN(const DecodedTables tables, DecodeTables(model_));
    RIVULET_RETURN_IF_ERROR(Upload(tables.embedding, &weights_.embedding));
    RIVULET_RETURN_IF_ERROR(Upload(tables.positions, &weights_.positions));
    weights_.position_rows = tables.position_rows;
    if (!HasLatePositions(config)) return absl::OkStatus();
    std::vector<double> late(size_t(config.embedding_columns()));
    kernels::CudaFrequencies(config.embedding_columns(), late.data());
    return Upload(late, &weights_.frequencies);
  }

  absl::Status LoadLayer(int index) {
    RIVULET_ASSIGN_OR_RETURN(const DecodedLayer decoded, DecodeLayer(model_, index));
    CudaLayer layer;
    RIVULET_RETURN_IF_ERROR(Upload(decoded.qkv, CudaProduct::kQkv, type_, &layer.qkv));
    RIVULET_RETURN_IF_ERROR(Upload(decoded.out, CudaProduct::kOut, type_, &layer.out));
    RIVULET_RETURN_IF_ERROR(Upload(decoded.ffn1, CudaProduct::kFfn1, type_, &layer.ffn1));
    RIVULET_RETURN_IF_ERROR(Upload(decoded.ffn2, CudaProduct::kFfn2, type_, &layer.ffn2));
    RIVULET_RETURN_IF_ERROR(Upload(decoded.norm1, &layer.norm1));
    RIVULET_RETURN_IF_ERROR(Upload(decoded.norm2, &layer.norm2));
    RIVULET_RETURN_IF_ERROR(Upload(decoded.omega, &layer.omega));
    weights_.layers.push_back(layer);
    return absl::OkStatus();
  }

  const Model& model_;
  const WeightType type_;
  const CudaWeightForms forms_;
  CudaQueue& queue_;
  CudaWeights& weights_;
};

absl::StatusOr<CudaWeights> CudaWeights::Load(const Model& model, CudaPrecision precision,
                                              const CudaWeightForms& forms, CudaQueue& queue) {
  CudaWeights weights;
  CudaWeightsLoader loader(model, CudaLayerType(precision), forms, queue, &weights);
  RIVULET_RETURN_IF_ERROR(loader.Load());
  return weights;
}

}  // namespace rivulet
