// SPDX-License-Identifier: Apache-2.0
#include "model/loading/tensor_packer.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/quantized.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/hybrid_settings.h"
#include "model/loading/load_pieces.h"
#include "model/weights/safetensors_header.h"

namespace rivulet {
namespace {

using kernels::WeightType;

constexpr int64_t kMaxRows = int64_t{1} << 24;    // so that sums of them stay in range
constexpr size_t kPieceFloats = size_t{1} << 18;  // of a matrix that is being packed

absl::Status BadTensor(absl::string_view name, absl::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("tensor ", Quoted(name), ": ", what),
                   {"CORRUPT_WEIGHTS", "", {}});
}

// The precision that holds a file's weights without loss.
WeightType TypeOf(DType dtype) {
  if (dtype == DType::kF16) return WeightType::kF16;
  if (dtype == DType::kBF16) return WeightType::kBF16;
  return PackedTypeOf(dtype).value_or(WeightType::kF32);
}

// Of a matrix of width `k`, whose own type is `own`. REQUIRES: not kAuto.
WeightType TypeOf(WeightPrecision precision, int k, WeightType own) {
  switch (precision) {
    case WeightPrecision::kF16:
      return WeightType::kF16;
    case WeightPrecision::kBF16:
      return WeightType::kBF16;
    case WeightPrecision::kInt8:
      return WeightType::kInt8;
    case WeightPrecision::kInt4:
      if (kernels::IsQuantized(own) && kernels::FormatOf(own).bits == 4) return own;
      return k % kernels::FormatOf(WeightType::kQ4K).inputs() == 0 ? WeightType::kQ4K
                                                                   : WeightType::kInt4;
    case WeightPrecision::kAuto:
    case WeightPrecision::kF32:
      break;
  }
  return WeightType::kF32;
}

}  // namespace

bool HasBlocks(const CheckpointTensors& tensors) {
  const std::vector<std::string> names = tensors.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return PackedTypeOf(tensors.Find(name)->dtype).has_value();
  });
}

absl::Status WeightTooLarge(absl::string_view tensor) {
  return InvalidField(
      "WEIGHT_TOO_LARGE", "weights",
      absl::StrCat("a value of tensor ", tensor, " is too large for the type of weights"));
}

TensorPacker::TensorPacker(const CheckpointTensors& tensors, const ModelConfig& model,
                           const WeightChoice& choice, WeightFacts* facts, Mode mode)
    : config(model),
      tensors_(tensors),
      choice_(ResolveHead(choice, model)),
      facts_(facts),
      mode_(mode),
      quantizes_(choice.layers >= WeightPrecision::kInt8 ||
                 (choice.layers == WeightPrecision::kAuto && HasBlocks(tensors))) {}

std::string RowsName(const TensorRows& rows) {
  return absl::StrCat(rows.name, ".rows_", rows.first);
}

int TensorPacker::RowsOf(const std::string& name) const {
  const TensorEntry* entry = tensors_.Find(name);
  if (entry == nullptr || entry->shape.size() != 2 || entry->shape[0] > kMaxRows) return 0;
  return static_cast<int>(entry->shape[0]);
}

absl::Status TensorPacker::Values(const std::string& name, const Shape& shape,
                                  std::vector<float>* out) {
  RIVULET_RETURN_IF_ERROR(Check(name, shape));
  size_t count = 1;
  for (const int64_t extent : shape) count *= size_t(extent);
  out->resize(count);
  facts_->bytes += count * sizeof(float);
  return mode_ == Mode::kMeasure ? absl::OkStatus() : tensors_.Read(name, *out);
}

absl::Status TensorPacker::Matrix(const std::vector<TensorRows>& parts, int k, MatrixWeights* m,
                                  const std::vector<float>& bias, MatrixUse use) {
  std::vector<std::pair<TensorRows, int>> placed;
  int n = 0;
  for (const TensorRows& part : parts) {
    placed.emplace_back(part, n);
    n += part.rows;
  }
  return PlacedMatrix(placed, k, n, m, bias, use);
}

TensorRows TensorPacker::Place(const TensorRows& part) const {
  const std::string own = RowsName(part);
  return part.of == 0 || Has(part.name) || !Has(own) ? part : TensorRows{own, part.rows};
}

absl::Status TensorPacker::PlacedMatrix(const std::vector<std::pair<TensorRows, int>>& given, int k,
                                        int n, MatrixWeights* m, const std::vector<float>& bias,
                                        MatrixUse use) {
  std::vector<float> padded = bias;
  padded.resize(size_t(kernels::PaddedColumns(n)));
  Keep(padded.size() - bias.size());  // Values has counted the others
  for (size_t i = 0, count = 0; i < given.size(); i += count) {
    count = CountAlike(std::span(given).subspan(i), use);
    const int first = given[i].second, end = i + count < given.size() ? given[i + count].second : n;
    MatrixWeights& to = i == 0 ? *m : m->more.emplace_back();
    to.first = first;
    const auto at = padded.begin() + first;
    to.bias.assign(at, at + kernels::PaddedColumns(end - first));
    std::vector<std::pair<TensorRows, int>> own(given.begin() + ptrdiff_t(i),
                                                given.begin() + ptrdiff_t(i + count));
    for (auto& [rows, column] : own) column -= first;
    RIVULET_RETURN_IF_ERROR(Panels(own, k, end - first, use, &to));
  }
  return absl::OkStatus();
}

size_t TensorPacker::CountAlike(std::span<const std::pair<TensorRows, int>> parts,
                                MatrixUse use) const {
  if (use != MatrixUse::kLayer || choice_.layers != WeightPrecision::kAuto || !quantizes()) {
    return parts.size();
  }
  const auto type_of = [this](const std::pair<TensorRows, int>& part) {
    const TensorEntry* const entry = tensors_.Find(Place(part.first).name);
    return entry == nullptr ? WeightType::kF32 : TypeOf(entry->dtype);
  };
  for (size_t i = 1; i < parts.size(); ++i) {
    if (type_of(parts[i]) == type_of(parts[0])) continue;
    if (parts[i].second % kernels::kPanelColumns == 0) return i;
  }
  return parts.size();
}

absl::Status TensorPacker::Experts(const std::vector<std::pair<TensorRows, int>>& parts, int k,
                                   int n, int experts, MatrixWeights* m) {
  m->bias.resize(size_t(n));
  Keep(m->bias.size());
  return Panels(parts, k, n * experts, MatrixUse::kLayer, m);
}

absl::Status TensorPacker::Panels(const std::vector<std::pair<TensorRows, int>>& given, int k,
                                  int n, MatrixUse use, MatrixWeights* m) {
  std::vector<std::pair<TensorRows, int>> parts;
  for (const auto& [part, column] : given) {
    parts.emplace_back(Place(part), column);
    const TensorRows& rows = parts.back().first;
    RIVULET_RETURN_IF_ERROR(CheckRows(rows, k));
    m->tensors.emplace_back(rows.name, column);
  }
  const WeightType type = Choose(parts, k, use);
  for (const auto& [part, column] : parts) packed_.push_back({part, type});
  if (kernels::IsQuantized(type)) facts_->widest_quantized = std::max(facts_->widest_quantized, k);
  const size_t bytes = kernels::PackedSize(type, k, n);
  facts_->bytes += bytes;
  m->packed = {type, k, n, nullptr};
  if (mode_ == Mode::kMeasure) return absl::OkStatus();
  m->panels = AlignedBuffer(bytes);
  if (m->panels.empty()) return absl::ResourceExhaustedError("no memory for the weights");
  m->packed.panels = m->panels.data();
  for (const auto& [part, column] : parts) RIVULET_RETURN_IF_ERROR(Pack(part, column, m));
  return absl::OkStatus();
}

bool TensorPacker::Keep(size_t floats) {
  facts_->bytes += floats * sizeof(float);
  return mode_ == Mode::kRead;
}

absl::Status TensorPacker::CheckNoOthers() const {
  for (const std::string& name : tensors_.names()) {
    if (used_.find(name) == used_.end() && !IsSkippedTensor(config, name)) {
      return BadTensor(name, "the configuration has no such tensor");
    }
  }
  return absl::OkStatus();
}

absl::Status TensorPacker::Check(const std::string& name, const Shape& shape) {
  const TensorEntry* entry = tensors_.Find(name);
  if (entry == nullptr) return BadTensor(name, "the checkpoint lacks it");
  used_.insert(name);
  const auto squeezed = [](Shape s) {
    std::erase(s, 1);
    return s;
  };
  // Rows of blocks are whole blocks, also where a dimension of 1 does not count.
  const bool rows = !PackedTypeOf(entry->dtype).has_value() ||
                    (!entry->shape.empty() && entry->shape.back() == shape.back());
  if (rows && squeezed(entry->shape) == squeezed(shape)) return absl::OkStatus();
  return BadTensor(name, absl::StrCat("shape is ", ShapeText(entry->shape),
                                      "; the configuration needs ", ShapeText(shape)));
}

absl::Status TensorPacker::CheckRows(const TensorRows& rows, int k) {
  const int of = rows.of == 0 ? rows.rows : rows.of;
  const TensorEntry* entry = tensors_.Find(rows.name);
  const bool stacked = rows.stacked > 0 && entry != nullptr && entry->shape.size() == 3;
  return Check(rows.name, stacked ? Shape{rows.stacked, of / rows.stacked, k} : Shape{of, k});
}

// The type of the file if all parts have the same, unless the choice says otherwise.
WeightType TensorPacker::Choose(const std::vector<std::pair<TensorRows, int>>& parts, int k,
                                MatrixUse use) {
  if (use == MatrixUse::kRouter) return WeightType::kF32;
  const auto type_of = [this](const std::pair<TensorRows, int>& part) {
    return TypeOf(tensors_.Find(part.first.name)->dtype);
  };
  const WeightType first = type_of(parts.front());
  const bool same = std::all_of(parts.begin(), parts.end(),
                                [&](const auto& part) { return type_of(part) == first; });
  WeightType own = same ? first : WeightType::kF32;
  if (use == MatrixUse::kExact && kernels::IsQuantized(own)) own = WeightType::kF32;
  WeightPrecision precision = use == MatrixUse::kEnd ? *choice_.head : choice_.layers;
  if (use == MatrixUse::kExact && quantizes()) precision = WeightPrecision::kAuto;
  const WeightType type = precision == WeightPrecision::kAuto ? own : TypeOf(precision, k, own);
  if (type != WeightType::kF32 && !(same && type == first)) facts_->lossless = false;
  return type;
}

absl::Status TensorPacker::PackRows(const TensorRows& part, int begin, int end, int column,
                                    MatrixWeights* m) const {
  if (kernels::IsQuantized(m->packed.type) &&
      TypeOf(tensors_.Find(part.name)->dtype) == m->packed.type) {
    return PackBlocks(part, begin, end, column, m);
  }
  const auto k = size_t(m->packed.k);
  std::vector<float> rows(size_t(end - begin) * k);
  RIVULET_RETURN_IF_ERROR(tensors_.ReadFrom(part.name, size_t(part.first + begin) * k, rows));
  if (kernels::PackWeights(m->packed.type, rows.data(), end - begin, m->packed.k, column + begin,
                           m->panels.data())) {
    return absl::OkStatus();
  }
  return WeightTooLarge(part.name);
}

absl::Status TensorPacker::PackBlocks(const TensorRows& part, int begin, int end, int column,
                                      MatrixWeights* m) const {
  const DType dtype = tensors_.Find(part.name)->dtype;
  const DTypeLayout& layout = LayoutOf(dtype);
  const size_t row_blocks = size_t(m->packed.k) / layout.weights;
  const int groups = int(layout.weights) / kernels::kQuantizedInputs;
  std::vector<char> blocks(size_t(end - begin) * row_blocks * layout.bytes);
  RIVULET_RETURN_IF_ERROR(
      tensors_.ReadBlocks(part.name, size_t(part.first + begin) * row_blocks, blocks));
  const char* block = blocks.data();
  for (int row = begin; row < end; ++row) {
    for (int i = 0; i < int(row_blocks); ++i, block += layout.bytes) {
      if (!PackBlock(dtype, block, m->packed.k, column + row, i * groups, m->panels.data())) {
        return WeightTooLarge(part.name);
      }
    }
  }
  return absl::OkStatus();
}

// No two pieces write to the same column.
absl::Status TensorPacker::Pack(const TensorRows& part, int column, MatrixWeights* m) const {
  const int piece =
      int(std::clamp<size_t>(kPieceFloats / size_t(m->packed.k), 1, size_t(part.rows)));
  return ForEachLoadPiece((part.rows + piece - 1) / piece, [&](int i) {
    return PackRows(part, i * piece, std::min((i + 1) * piece, part.rows), column, m);
  });
}

}  // namespace rivulet
