// SPDX-License-Identifier: Apache-2.0
// Reads parts of the layers of the family and of hybrids from checkpoints. Errors, for all: those
// of TensorPacker. `mixer`: the prefix of the tensors' names, with the dot.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/loading/packed_weights.h"
#include "model/loading/tensor_packer.h"

namespace rivulet {

// Reads the projections of the normed row into one matrix, and tells the columns of each. If
// matrices are quantized, the exact projections form a second matrix.
class InputMatrix {
 public:
  explicit InputMatrix(const TensorPacker& reader) : reader_(reader) {}

  // Parts in the order of their columns: first the quantized ones, then the exact ones.
  void Add(const TensorRows& rows, int* column, MatrixUse use = MatrixUse::kLayer) {
    if (use == MatrixUse::kExact && reader_.quantizes() && small_.empty()) {
      n_ = begin_ = kernels::PaddedColumns(n_);
    }
    *column = n_;
    if (begin_ == 0) {
      parts_.emplace_back(rows, n_);
    } else {
      small_.push_back(rows);
    }
    n_ += rows.rows;
  }
  // The next part begins with a whole panel, so that its blocks may have another type.
  void Align() { n_ = kernels::PaddedColumns(n_); }
  // All rows of the tensor.
  void AddLow(const std::string& name, int* column) {
    Add({name, reader_.RowsOf(name)}, column, MatrixUse::kExact);
  }

  // `bias`: for all parts, or empty.
  absl::Status Read(TensorPacker* reader, LayerWeights* layer, InputColumns* columns,
                    std::vector<float> bias = {}) {
    columns->n = n_;
    columns->small = begin_;
    std::vector<float> small;
    if (!bias.empty() && begin_ > 0) {
      const int exact = n_ - begin_;
      small.assign(bias.end() - exact, bias.end());
      bias.resize(bias.size() - size_t(exact));
    }
    const int k = reader->config.hidden_size;
    const int end = parts_.back().second + parts_.back().first.rows;
    RIVULET_RETURN_IF_ERROR(reader->PlacedMatrix(parts_, k, end, &layer->in, bias));
    if (small_.empty()) return absl::OkStatus();
    return reader->Matrix(small_, k, &layer->in_small, small, MatrixUse::kExact);
  }

 private:
  const TensorPacker& reader_;
  std::vector<std::pair<TensorRows, int>> parts_;  // with their columns
  std::vector<TensorRows> small_;
  int n_ = 0, begin_ = 0;  // begin_: first column of small_; 0: none
};

// Channels `first` .. of the layer's convolution: from [channels, 1, width] in checkpoints to
// [width, channels].
absl::Status ReadConv(TensorPacker* reader, const std::string& name, int channels, int first,
                      LayerWeights* layer);
// exp(A_log), one per head, `repeat` times.
absl::Status ReadScale(TensorPacker* reader, const std::string& name, int repeat,
                       LayerWeights* layer);
// exp(A_log) of the mixer, one per head.
absl::Status ReadDecayScale(TensorPacker* reader, const std::string& mixer, LayerWeights* layer);
// The sources of LayerWeights::up and LayerWeights::down. Biases, or empty: up_bias has the gate's
// and, from PaddedColumns(up.rows) on, up's; down_bias has down's.
struct SwigluTensors {
  TensorRows gate, up;  // as many rows each
  std::string down;
  std::vector<float> up_bias = {}, down_bias = {};
};
absl::Status ReadSwiglu(TensorPacker* reader, const SwigluTensors& from, LayerWeights* layer);
absl::Status ReadMamba2Mixer(TensorPacker* reader, const std::string& mixer, LayerWeights* layer,
                             InputColumns* columns);

// Of BlockKind::hybrid: all tensors.
absl::Status ReadHybrid(TensorPacker* reader, bool predict, PackedWeights* weights);

}  // namespace rivulet
