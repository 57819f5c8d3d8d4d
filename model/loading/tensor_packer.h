// SPDX-License-Identifier: Apache-2.0
// TensorPacker: reads the tensors of a checkpoint into packed matrices and vectors, and checks
// their shapes and that each tensor is used.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/gemm.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/loading/packed_weights.h"
#include "model/weights/checkpoint_tensors.h"

namespace rivulet {

// The error for a weight that its type in memory, or its scale of 16 bits, cannot hold.
absl::Status WeightTooLarge(absl::string_view tensor);

// The name of some rows of a tensor that are a tensor of their own.
std::string RowsName(const TensorRows& rows);

// Whether any tensor is blocks of integers.
bool HasBlocks(const CheckpointTensors& tensors);

// The use of a matrix, which decides its type in memory.
enum class MatrixUse : uint8_t {
  kLayer,
  kExact,   // for decays, gates of states or low-rank products: never of 8 or 4 bits
  kRouter,  // of experts: float32
  kEnd,     // embedding and head
};

// Errors of all calls: DATA_LOSS (a tensor that is missing, misshapen or damaged, named),
// INVALID_ARGUMENT (a weight too large for the precision), RESOURCE_EXHAUSTED. Thread: one.
class TensorPacker {
 public:
  using Shape = std::vector<int64_t>;

  // kMeasure: checks everything and sums the bytes, but reads no weight. Values are then zeros, and
  // matrices have no panels.
  enum class Mode : uint8_t { kRead, kMeasure };

  // Updates the bytes and `lossless` of `facts`. All arguments are borrowed.
  TensorPacker(const CheckpointTensors& tensors, const ModelConfig& model,
               const WeightChoice& choice, WeightFacts* facts, Mode mode = Mode::kRead);

  const BlockKind& kind() const { return *config.block().kind; }
  // Whether matrices of layers have 8 or 4 bits.
  bool quantizes() const { return quantizes_; }
  bool Has(const std::string& name) const { return tensors_.Find(name) != nullptr; }
  // The rows of a matrix tensor; 0 if there is no such tensor, or it has more than 2^24 rows.
  int RowsOf(const std::string& name) const;

  // All elements of a tensor of this shape, in order; dimensions of 1 do not count.
  absl::Status Values(const std::string& name, const Shape& shape, std::vector<float>* out);

  // y = x W^T + bias, with W the concatenated rows of the parts. `bias`: for all rows, or empty.
  absl::Status Matrix(const std::vector<TensorRows>& parts, int k, MatrixWeights* m,
                      const std::vector<float>& bias = {}, MatrixUse use = MatrixUse::kLayer);
  // Matrix with the first column of y given for each part; y has `n` columns.
  absl::Status PlacedMatrix(const std::vector<std::pair<TensorRows, int>>& parts, int k, int n,
                            MatrixWeights* m, const std::vector<float>& bias = {},
                            MatrixUse use = MatrixUse::kLayer);

  // The matrices of `experts` experts side by side (ExpertWeights), of n columns each, a multiple
  // of kPanelColumns.
  absl::Status Experts(const std::vector<std::pair<TensorRows, int>>& parts, int k, int n,
                       int experts, MatrixWeights* m);

  // Counts `floats` more floats in memory that are in no tensor. Returns whether to compute them:
  // not with kMeasure.
  bool Keep(size_t floats);

  // An error for the first tensor that nothing has asked for. Call last.
  absl::Status CheckNoOthers() const;

  // The rows of all matrices so far, in the order of their reading.
  const std::vector<PackedRows>& packed() const { return packed_; }

  const ModelConfig& config;

 private:
  absl::Status Check(const std::string& name, const Shape& shape);
  absl::Status CheckRows(const TensorRows& rows, int k);
  // PlacedMatrix without its bias.
  absl::Status Panels(const std::vector<std::pair<TensorRows, int>>& given, int k, int n,
                      MatrixUse use, MatrixWeights* m);
  // If only some rows of a tensor are integers, the others may be a tensor of their own:
  // NAME.rows_FIRST.
  TensorRows Place(const TensorRows& part) const;
  // The number of `parts` that form one matrix with the first. Where a file's blocks have several
  // types, the next part has another type and begins with a whole panel.
  size_t CountAlike(std::span<const std::pair<TensorRows, int>> parts, MatrixUse use) const;
  kernels::WeightType Choose(const std::vector<std::pair<TensorRows, int>>& parts, int k,
                             MatrixUse use);
  absl::Status Pack(const TensorRows& part, int column, MatrixWeights* m) const;
  // Packs rows begin .. end - 1 of the part: rounded, or the file's own blocks.
  absl::Status PackRows(const TensorRows& part, int begin, int end, int column,
                        MatrixWeights* m) const;
  absl::Status PackBlocks(const TensorRows& part, int begin, int end, int column,
                          MatrixWeights* m) const;

  const CheckpointTensors& tensors_;
  const WeightChoice choice_;
  WeightFacts* const facts_;
  const Mode mode_;
  const bool quantizes_;
  std::set<std::string, std::less<>> used_;
  std::vector<PackedRows> packed_;
};

}  // namespace rivulet
