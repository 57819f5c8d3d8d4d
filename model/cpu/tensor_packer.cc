// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/tensor_packer.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

using kernels::WeightType;

constexpr int64_t kMaxRows = int64_t{1} << 24;       // so that sums of them stay in range
constexpr size_t kMaxPieceFloats = size_t{4} << 20;  // of a matrix that is being packed

absl::Status BadTensor(absl::string_view name, absl::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("tensor ", Quoted(name), ": ", what),
                   {"CORRUPT_WEIGHTS", "", {}});
}

std::string ShapeText(const TensorPacker::Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

WeightType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return WeightType::kF16;
    case DType::kBF16:
      return WeightType::kBF16;
    default:  // blocks are decoded
      return WeightType::kF32;
  }
}

}  // namespace

absl::Status WeightTooLarge(absl::string_view tensor) {
  return InvalidField(
      "WEIGHT_TOO_LARGE", "weights",
      absl::StrCat("a value of tensor ", tensor, " is too large for 16-bit weights"));
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

absl::Status TensorPacker::Matrix(const std::vector<TensorRows>& parts, int k, CpuMatrix* m,
                                  const std::vector<float>& bias) {
  std::vector<std::pair<TensorRows, int>> placed;
  int n = 0;
  for (const TensorRows& part : parts) {
    placed.emplace_back(part, n);
    n += part.rows;
  }
  return PlacedMatrix(placed, k, n, m, bias);
}

absl::Status TensorPacker::PlacedMatrix(const std::vector<std::pair<TensorRows, int>>& parts, int k,
                                        int n, CpuMatrix* m, const std::vector<float>& bias) {
  for (const auto& [part, column] : parts) {
    RIVULET_RETURN_IF_ERROR(Check(part.name, {part.rows, k}));
    m->tensors.emplace_back(part.name, column);
  }
  const WeightType type = Choose(parts);
  m->bias = bias;
  m->bias.resize(size_t(kernels::PaddedColumns(n)));
  const size_t bytes = kernels::PackedSize(type, k, n);
  // Of the bias alone what Values has not counted.
  facts_->bytes += bytes + (m->bias.size() - bias.size()) * sizeof(float);
  if (mode_ == Mode::kMeasure) return absl::OkStatus();
  m->panels = AlignedBuffer(bytes);
  if (m->panels.empty()) return absl::ResourceExhaustedError("no memory for the weights");
  m->packed = {type, k, n, m->panels.data()};
  for (const auto& [part, column] : parts) RIVULET_RETURN_IF_ERROR(Pack(part, column, m));
  return absl::OkStatus();
}

bool TensorPacker::Keep(size_t floats) {
  facts_->bytes += floats * sizeof(float);
  return mode_ == Mode::kRead;
}

absl::Status TensorPacker::CheckNoOthers() const {
  for (const std::string& name : tensors_.names()) {
    if (used_.find(name) == used_.end()) {
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
  if (squeezed(entry->shape) == squeezed(shape)) return absl::OkStatus();
  return BadTensor(name, absl::StrCat("shape is ", ShapeText(entry->shape),
                                      "; the configuration needs ", ShapeText(shape)));
}

WeightType TensorPacker::Choose(const std::vector<std::pair<TensorRows, int>>& parts) {
  const auto type_of = [this](const std::pair<TensorRows, int>& part) {
    return TypeOf(tensors_.Find(part.first.name)->dtype);
  };
  const WeightType first = type_of(parts.front());
  const bool same = std::all_of(parts.begin(), parts.end(),
                                [&](const auto& part) { return type_of(part) == first; });
  WeightType type = same ? first : WeightType::kF32;
  if (precision_ == WeightPrecision::kF32) type = WeightType::kF32;
  if (precision_ == WeightPrecision::kF16) type = WeightType::kF16;
  if (precision_ == WeightPrecision::kBF16) type = WeightType::kBF16;
  if (type != WeightType::kF32 && !(same && type == first)) facts_->lossless = false;
  return type;
}

absl::Status TensorPacker::Pack(const TensorRows& part, int column, CpuMatrix* m) const {
  const auto k = size_t(m->packed.k);
  const int piece = int(std::clamp<size_t>(kMaxPieceFloats / k, 1, size_t(part.rows)));
  std::vector<float> rows(size_t(piece) * k);
  for (int first = 0; first < part.rows; first += piece) {
    const int count = std::min(piece, part.rows - first);
    const std::span<float> values(rows.data(), size_t(count) * k);
    RIVULET_RETURN_IF_ERROR(tensors_.ReadFrom(part.name, size_t(first) * k, values));
    if (!kernels::PackWeights(m->packed.type, rows.data(), count, m->packed.k, column + first,
                              m->panels.data())) {
      return WeightTooLarge(part.name);
    }
  }
  return absl::OkStatus();
}

}  // namespace rivulet
