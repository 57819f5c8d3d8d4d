// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numbers>
#include <utility>
#include <variant>

#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/cuda/rows/embed_cuda.h"
#include "kernels/half.h"
#include "kernels/mixer_rows.h"
#include "model/base/error.h"
#include "model/loading/encoder_weights.h"
#include "model/loading/load_pieces.h"
#include "model/loading/tensor_packer.h"

namespace rivulet {
namespace {

using kernels::WeightType;

// Columns first .. first + count - 1 of a matrix, and their first column `to` on the device.
struct ColumnRange {
  int first, count, to;
};

// The places of the columns of LayerWeights::in and, with `small`, of LayerWeights::in_small.
struct InputRanges {
  std::vector<ColumnRange> in, small;
};

// Products read the first halves of the low-rank products, so these are aligned; q, k, v stay side
// by side. `in_columns`: of LayerWeights::in. `align_small`: in_small begins aligned, too, because
// a product of many rows writes it.
InputRanges PlaceColumns(const InputColumns& host, int in_columns, bool align_small,
                         InputColumns* device) {
  *device = host;
  std::vector<int*> parts;
  for (int* part : {&device->q, &device->k, &device->v, &device->gate, &device->low,
                    &device->low_gate, &device->beta, &device->dt}) {
    if (*part >= 0) parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end(), [](const int* a, const int* b) { return *a < *b; });
  InputRanges ranges;
  int to = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    constexpr int kAligned = 4;  // floats
    const int first = *parts[i], next = i + 1 < parts.size() ? *parts[i + 1] : host.n;
    const bool small = host.small > 0 && first >= host.small;
    const int end = small ? next : std::min(next, in_columns);  // before in_small there is a gap
    const bool begins_small = small && ranges.small.empty();
    const bool low = parts[i] == &device->low || parts[i] == &device->low_gate;
    if (low || (begins_small && align_small)) to = (to + kAligned - 1) / kAligned * kAligned;
    if (begins_small) device->small = to;
    if (small) {
      ranges.small.push_back({first - host.small, end - first, to - device->small});
    } else {
      ranges.in.push_back({first, end - first, to});
    }
    *parts[i] = to;
    to += end - first;
  }
  device->n = to;
  return ranges;
}

// Calls take(first column of m, count, first column on the device) for all columns of `ranges`, on
// all cores, a few at a time. `take` returns whether the weights fit the type; an error names the
// tensor of the first column that does not.
template <class Take>
absl::Status ForEachPiece(const MatrixWeights& m, const std::vector<ColumnRange>& ranges,
                          const Take& take) {
  constexpr int kColumns = 32;
  for (const ColumnRange& range : ranges) {
    RIVULET_RETURN_IF_ERROR(
        ForEachLoadPiece((range.count + kColumns - 1) / kColumns, [&](int piece) {
          const int begin = piece * kColumns, end = std::min(begin + kColumns, range.count);
          if (take(range.first + begin, end - begin, range.to + begin)) return absl::OkStatus();
          int bad = begin;
          while (take(range.first + bad, 1, range.to + bad)) ++bad;
          return Annotate(WeightTooLarge(m.TensorOf(range.first + bad)), "precision \"default\"");
        }));
  }
  return absl::OkStatus();
}

// `values`, which were widened from `type`, rounded to that type again.
void Narrow(WeightType type, const std::vector<float>& values, char* out) {
  if (type == WeightType::kF32) {
    std::memcpy(out, values.data(), values.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits =
        type == WeightType::kF16 ? kernels::F32ToF16(values[i]) : kernels::F32ToBf16(values[i]);
    std::memcpy(out + i * sizeof bits, &bits, sizeof bits);
  }
}

bool HasLatePositions(const ModelConfig& config) {
  return config.encoder().position == PositionType::kSinusoidal &&
         PositionTableRows(config) < config.max_positions;
}

}  // namespace

WeightType CudaLayerType(CudaPrecision precision) {
  return precision == CudaPrecision::kFloat32 ? WeightType::kF32 : WeightType::kF16;
}

// Uploads one PackedWeights; without a queue it only counts the bytes.
class CudaWeightsLoader {
 public:
  CudaWeightsLoader(const ModelConfig& config, CudaPrecision precision, bool for_library,
                    CudaQueue* queue)
      : config_(config),
        encoder_(std::holds_alternative<EncoderConfig>(config.network)),
        type_(CudaLayerType(precision)),
        for_library_(for_library),
        queue_(queue) {}

  absl::Status Load(PackedWeights& host);
  size_t bytes() const { return bytes_; }
  CudaWeights Take() { return std::move(weights_); }

 private:
  // A head in float32 stays float32, and integers stay integers.
  WeightType TypeOf(const MatrixWeights& m, bool head) const {
    if (m.packed.type == WeightType::kInt8) return WeightType::kInt8;
    return head && (encoder_ || m.packed.type == WeightType::kF32) ? WeightType::kF32 : type_;
  }
  absl::StatusOr<void*> Upload(const void* from, size_t bytes) {
    bytes_ += bytes;
    if (queue_ == nullptr) return nullptr;
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(bytes));
    RIVULET_RETURN_IF_ERROR(queue_->CopyIn(memory.data(), from, bytes));
    weights_.memory_.push_back(std::move(memory));
    return weights_.memory_.back().data();
  }
  template <typename T>
  absl::Status Upload(const std::vector<T>& values, const T** device) {
    if (values.empty()) return absl::OkStatus();
    RIVULET_ASSIGN_OR_RETURN(void* const memory, Upload(values.data(), values.size() * sizeof(T)));
    *device = static_cast<const T*>(memory);
    return absl::OkStatus();
  }
  // `ranges`: of the columns of m; device->n of them.
  absl::Status Upload(MatrixWeights& m, const std::vector<ColumnRange>& ranges,
                      CudaWeightMatrix* device);
  absl::Status UploadPacked(const MatrixWeights& m, const std::vector<ColumnRange>& ranges,
                            CudaWeightMatrix* device);
  absl::Status UploadRows(const MatrixWeights& m, const std::vector<ColumnRange>& ranges,
                          const std::vector<float>& bias, CudaWeightMatrix* device);
  // All columns, in order.
  absl::Status Upload(MatrixWeights& m, CudaWeightMatrix* device) {
    device->n = m.packed.n;
    return Upload(m, {{0, m.packed.n, 0}}, device);
  }
  // Of a large product.
  absl::Status Upload(MatrixWeights& m, CudaProduct product, CudaWeightMatrix* device) {
    device->product = product;
    return Upload(m, device);
  }
  absl::Status Upload(LowRank& low, CudaLowRank* device) {
    RIVULET_RETURN_IF_ERROR(Upload(low.first, &device->first));
    return Upload(low.second, &device->second);
  }
  absl::Status Upload(const NormWeights& norm, CudaNorm* device) {
    RIVULET_RETURN_IF_ERROR(Upload(norm.weight, &device->weight));
    return Upload(norm.bias, &device->bias);
  }
  absl::Status LoadTables(const PackedWeights& host);
  absl::Status LoadEmbedding(const MatrixWeights& table);
  absl::Status LoadConstants(const PackedWeights& host);
  absl::Status LoadLayer(LayerWeights& layer, const InputRanges& columns);
  absl::Status LoadSoftmax(LayerWeights& layer, CudaSoftmaxLayer* device);
  absl::Status LoadRwkv7(Rwkv7Layer& layer, CudaRwkv7Layer* device);
  absl::Status LoadRotation(const PackedWeights& host);
  absl::Status LoadInputScales();

  const ModelConfig& config_;
  const bool encoder_;  // kinds "linear" and "softmax"
  const WeightType type_;
  const bool for_library_;
  CudaQueue* const queue_;
  CudaWeights weights_;
  size_t bytes_ = 0;
};

absl::Status CudaWeightsLoader::Upload(MatrixWeights& m, const std::vector<ColumnRange>& ranges,
                                       CudaWeightMatrix* device) {
  if (m.packed.panels == nullptr) return absl::OkStatus();
  device->type = TypeOf(m, device->product == CudaProduct::kHead);
  device->k = m.packed.k;
  std::vector<float> bias(size_t(device->n));
  for (const ColumnRange& range : ranges) {
    std::copy_n(m.bias.begin() + range.first, range.count, bias.begin() + range.to);
  }
  RIVULET_RETURN_IF_ERROR(Upload(bias, &device->bias));
  RIVULET_RETURN_IF_ERROR(UploadPacked(m, ranges, device));
  const bool suits = device->type != WeightType::kInt8 &&
                     (encoder_ || (device->type == WeightType::kF16 && device->k % 8 == 0));
  if (for_library_ && device->product.has_value() && suits) {
    RIVULET_RETURN_IF_ERROR(UploadRows(m, ranges, bias, device));
  }
  if (queue_ != nullptr) m = MatrixWeights();
  return absl::OkStatus();
}

absl::Status CudaWeightsLoader::UploadPacked(const MatrixWeights& m,
                                             const std::vector<ColumnRange>& ranges,
                                             CudaWeightMatrix* device) {
  const size_t bytes = kernels::CudaPackedSize(device->type, device->k, device->n);
  std::vector<char> packed(queue_ == nullptr ? 0 : bytes);
  if (queue_ != nullptr) {
    RIVULET_RETURN_IF_ERROR(ForEachPiece(m, ranges, [&](int from, int count, int to) {
      return kernels::PackForCuda(device->type, m.packed, from, count, to, packed.data());
    }));
  }
  RIVULET_ASSIGN_OR_RETURN(device->packed, Upload(packed.data(), bytes));
  return absl::OkStatus();
}

absl::Status CudaWeightsLoader::UploadRows(const MatrixWeights& m,
                                           const std::vector<ColumnRange>& ranges,
                                           const std::vector<float>& bias,
                                           CudaWeightMatrix* device) {
  const size_t bytes = CudaLibraryWeights::Bytes(device->type, device->k, device->n);
  bytes_ += bytes;
  if (queue_ == nullptr) return absl::OkStatus();
  const CudaProduct product = *device->product;
  const size_t row_bytes = bytes / size_t(device->n);
  std::vector<char> rows(bytes);
  RIVULET_RETURN_IF_ERROR(ForEachPiece(m, ranges, [&](int from, int count, int to) {
    std::vector<float> column(size_t(m.packed.k));
    bool fits = true;
    for (int i = 0; i < count; ++i) {
      kernels::UnpackColumn(m.packed, from + i, column.data());
      fits = kernels::PackProductRows(device->type, column.data(), &m.bias[size_t(from + i)], 1,
                                      device->k, rows.data() + size_t(to + i) * row_bytes) &&
             fits;
    }
    return fits;
  }));
  device->index = int(weights_.library.of(product).size());
  return weights_.library.Add(product, *device, rows, bias, *queue_);
}

// For kinds "linear" and "softmax".
absl::Status CudaWeightsLoader::LoadTables(const PackedWeights& host) {
  const float* tokens = nullptr;
  RIVULET_RETURN_IF_ERROR(Upload(host.tokens, &tokens));
  weights_.embedding = tokens;
  RIVULET_RETURN_IF_ERROR(Upload(host.positions, &weights_.positions));
  weights_.position_rows = host.position_rows;
  if (!host.rope.frequencies.empty()) return LoadRotation(host);
  if (!HasLatePositions(config_)) return absl::OkStatus();
  std::vector<double> late(size_t(config_.embedding_columns()));
  kernels::CudaFrequencies(config_.embedding_columns(), late.data());
  return Upload(late, &weights_.frequencies);
}

// In pieces, because a table may be large; all cores share the rows of a piece.
absl::Status CudaWeightsLoader::LoadEmbedding(const MatrixWeights& table) {
  const auto hidden = size_t(config_.hidden_size), vocab = size_t(config_.vocab_size);
  const WeightType type =
      kernels::IsQuantized(table.packed.type) ? WeightType::kF16 : table.packed.type;
  const size_t row_bytes = hidden * kernels::WeightBytes(type);
  bytes_ += vocab * row_bytes;
  if (queue_ == nullptr) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(vocab * row_bytes));
  auto* const device = static_cast<char*>(memory.data());
  constexpr size_t kPiece = 4096, kShare = 64;  // rows of a copy, rows of a thread
  std::vector<char> rows(std::min(kPiece, vocab) * row_bytes);
  for (size_t first = 0; first < vocab; first += kPiece) {
    const size_t count = std::min(kPiece, vocab - first);
    RIVULET_RETURN_IF_ERROR(ForEachLoadPiece(int((count + kShare - 1) / kShare), [&](int share) {
      std::vector<float> row(hidden);
      const size_t begin = size_t(share) * kShare;
      for (size_t i = begin; i < std::min(begin + kShare, count); ++i) {
        kernels::UnpackColumn(table.packed, int(first + i), row.data());
        Narrow(type, row, &rows[i * row_bytes]);
      }
      return absl::OkStatus();
    }));
    RIVULET_RETURN_IF_ERROR(
        queue_->CopyIn(device + first * row_bytes, rows.data(), count * row_bytes));
  }
  weights_.embedding = device;
  weights_.embedding_type = type;
  weights_.memory_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::Status CudaWeightsLoader::LoadRwkv7(Rwkv7Layer& layer, CudaRwkv7Layer* device) {
  RIVULET_RETURN_IF_ERROR(Upload(layer.first_norm, &device->first_norm));
  RIVULET_RETURN_IF_ERROR(Upload(layer.mix, &device->mix));
  RIVULET_RETURN_IF_ERROR(Upload(layer.ffn_mix, &device->ffn_mix));
  RIVULET_RETURN_IF_ERROR(Upload(layer.r, CudaProduct::kQkv, &device->r));
  RIVULET_RETURN_IF_ERROR(Upload(layer.k, CudaProduct::kQkv, &device->k));
  RIVULET_RETURN_IF_ERROR(Upload(layer.v, CudaProduct::kQkv, &device->v));
  RIVULET_RETURN_IF_ERROR(Upload(layer.w, &device->w));
  RIVULET_RETURN_IF_ERROR(Upload(layer.a, &device->a));
  RIVULET_RETURN_IF_ERROR(Upload(layer.v_mix, &device->v_mix));
  RIVULET_RETURN_IF_ERROR(Upload(layer.g, &device->g));
  RIVULET_RETURN_IF_ERROR(Upload(layer.k_k, &device->k_k));
  RIVULET_RETURN_IF_ERROR(Upload(layer.k_a, &device->k_a));
  RIVULET_RETURN_IF_ERROR(Upload(layer.r_k, &device->r_k));
  RIVULET_RETURN_IF_ERROR(Upload(layer.group_norm, &device->group_norm));
  return Upload(layer.group_norm_bias, &device->group_norm_bias);
}

absl::Status CudaWeightsLoader::LoadSoftmax(LayerWeights& layer, CudaSoftmaxLayer* device) {
  device->attends = true;
  RIVULET_RETURN_IF_ERROR(Upload(layer.in, CudaProduct::kQkv, &device->in));
  RIVULET_RETURN_IF_ERROR(Upload(layer.out, CudaProduct::kOut, &device->out));
  RIVULET_RETURN_IF_ERROR(Upload(layer.q_norm, &device->q_norm));
  return Upload(layer.k_norm, &device->k_norm);
}

absl::Status CudaWeightsLoader::LoadLayer(LayerWeights& layer, const InputRanges& columns) {
  CudaLayer device;
  RIVULET_RETURN_IF_ERROR(Upload(layer.norm1, &device.norm1));
  RIVULET_RETURN_IF_ERROR(Upload(layer.norm2, &device.norm2));
  device.mixes = !layer.attends;
  if (layer.attends || layer.beside != nullptr) {
    RIVULET_RETURN_IF_ERROR(LoadSoftmax(layer.attends ? layer : *layer.beside, &device.softmax));
  }
  device.in.product = CudaProduct::kQkv;
  const bool split = device.mixes && !columns.small.empty();
  device.in.n = split ? weights_.columns.small : weights_.columns.n;
  device.in_small.n = weights_.columns.n - device.in.n;
  if (device.mixes) {
    RIVULET_RETURN_IF_ERROR(Upload(layer.in, columns.in, &device.in));
    RIVULET_RETURN_IF_ERROR(Upload(layer.out, CudaProduct::kOut, &device.out));
  }
  RIVULET_RETURN_IF_ERROR(Upload(layer.in_small, columns.small, &device.in_small));
  RIVULET_RETURN_IF_ERROR(Upload(layer.decay, &device.decay));
  RIVULET_RETURN_IF_ERROR(Upload(layer.gate, &device.gate));
  RIVULET_RETURN_IF_ERROR(Upload(layer.up, CudaProduct::kFfn1, &device.up));
  RIVULET_RETURN_IF_ERROR(Upload(layer.down, CudaProduct::kFfn2, &device.down));
  RIVULET_RETURN_IF_ERROR(Upload(layer.conv, &device.conv));
  RIVULET_RETURN_IF_ERROR(Upload(layer.conv_bias, &device.conv_bias));
  RIVULET_RETURN_IF_ERROR(Upload(layer.decay_scale, &device.decay_scale));
  RIVULET_RETURN_IF_ERROR(Upload(layer.decay_bias, &device.decay_bias));
  RIVULET_RETURN_IF_ERROR(Upload(layer.lower_bound, &device.lower_bound));
  RIVULET_RETURN_IF_ERROR(Upload(layer.skip, &device.skip));
  // The norm of Mamba-2's output includes its scale.
  const float scale = encoder_ ? 1.0f : config_.block().mixer_multiplier;
  std::vector<float> out_norm(layer.out_norm);
  for (float& weight : out_norm) weight *= scale;
  RIVULET_RETURN_IF_ERROR(Upload(out_norm, &device.out_norm));
  RIVULET_RETURN_IF_ERROR(Upload(layer.omega, &device.omega));
  if (layer.rwkv7 != nullptr) RIVULET_RETURN_IF_ERROR(LoadRwkv7(*layer.rwkv7, &device.rwkv7));
  weights_.layers.push_back(device);
  return absl::OkStatus();
}

absl::Status CudaWeightsLoader::LoadRotation(const PackedWeights& host) {
  std::vector<double> frequencies(host.rope.frequencies);
  if (encoder_ || config_.block().kind->hybrid) {
    for (double& frequency : frequencies) frequency /= std::numbers::pi;
  } else {
    frequencies.resize(size_t(config_.key_dim / 2));
    kernels::RotaryFrequencies(config_.key_dim, frequencies.data());
  }
  weights_.rope_pairs = int(frequencies.size());
  weights_.rope_factor = host.rope.factor;
  weights_.rope_interleaved = host.rope.interleaved;
  return Upload(frequencies, &weights_.frequencies);
}

// Falcon-H1: z, x, B, C and dt have a scale each.
absl::Status CudaWeightsLoader::LoadInputScales() {
  const std::vector<float>& by = config_.block().mamba_multipliers;
  if (by.empty()) return absl::OkStatus();
  const InputColumns& columns = weights_.columns;
  std::vector<float> scales(size_t(columns.n), 1.0f);
  const int values = config_.values(), groups = columns.q - columns.k;
  const std::pair<int, int> parts[] = {{columns.gate, values},
                                       {columns.v, values},
                                       {columns.k, groups},
                                       {columns.q, groups},
                                       {columns.dt, config_.num_heads}};
  for (size_t i = 0; i < std::size(parts); ++i) {
    std::fill_n(scales.begin() + parts[i].first, parts[i].second, by[i]);
  }
  return Upload(scales, &weights_.input_scales);
}

// For the family.
absl::Status CudaWeightsLoader::LoadConstants(const PackedWeights& host) {
  RIVULET_RETURN_IF_ERROR(Upload(host.initial_state, &weights_.initial_state));
  if (config_.block().kind->mixer == Mixer::kDelta) {
    std::vector<float> lengths;
    const int heads = config_.key_heads();  // of q, and of k behind them
    for (int i = 0; i < 2 * heads; ++i) {
      const auto& length = i < heads ? host.scaled_length : host.unit_length;
      lengths.insert(lengths.end(), length.begin(), length.end());
    }
    RIVULET_RETURN_IF_ERROR(Upload(lengths, &weights_.lengths));
  }
  RIVULET_RETURN_IF_ERROR(LoadInputScales());
  const BlockKind& kind = *config_.block().kind;
  return kind.rotary || kind.hybrid ? LoadRotation(host) : absl::OkStatus();
}

absl::Status CudaWeightsLoader::Load(PackedWeights& host) {
  RIVULET_RETURN_IF_ERROR(encoder_ ? LoadTables(host) : LoadEmbedding(host.embedding));
  MatrixWeights& head = host.head.packed.panels == nullptr ? host.embedding : host.head;
  RIVULET_RETURN_IF_ERROR(Upload(head, CudaProduct::kHead, &weights_.head));
  if (queue_ != nullptr) host.embedding = MatrixWeights();
  // The attention of our own format reads the gate right behind the values.
  const auto mixes =
      std::find_if(host.layers.begin(), host.layers.end(), [](auto& l) { return !l.attends; });
  const int in_columns = mixes == host.layers.end() ? 0 : mixes->in.packed.n;
  const InputRanges columns =
      PlaceColumns(host.columns, in_columns, /*align_small=*/!encoder_, &weights_.columns);
  weights_.softmax_columns = host.softmax_columns;
  for (LayerWeights& layer : host.layers) RIVULET_RETURN_IF_ERROR(LoadLayer(layer, columns));
  RIVULET_RETURN_IF_ERROR(Upload(host.final_norm, &weights_.final_norm));
  if (!host.transform_norm.weight.empty()) {
    RIVULET_RETURN_IF_ERROR(Upload(host.transform, &weights_.transform));
    RIVULET_RETURN_IF_ERROR(Upload(host.transform_norm, &weights_.transform_norm));
  }
  return encoder_ ? absl::OkStatus() : LoadConstants(host);
}

size_t CudaWeights::Bytes(const ModelConfig& config, PackedWeights& host, CudaPrecision precision,
                          bool for_library) {
  CudaWeightsLoader loader(config, precision, for_library, nullptr);
  (void)loader.Load(host);  // without a queue it cannot fail
  return loader.bytes();
}

absl::StatusOr<CudaWeights> CudaWeights::Load(const ModelConfig& config,
                                              std::unique_ptr<PackedWeights> host,
                                              CudaPrecision precision, bool for_library,
                                              CudaQueue& queue) {
  CudaWeightsLoader loader(config, precision, for_library, &queue);
  RIVULET_RETURN_IF_ERROR(loader.Load(*host));
  return loader.Take();
}

}  // namespace rivulet
