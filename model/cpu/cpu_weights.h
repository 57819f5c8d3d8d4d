// SPDX-License-Identifier: Apache-2.0
// CpuWeights: a model's weights as the CPU kernels want them, matrices packed, the rest float32.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/feature_map.h"
#include "kernels/gemm.h"
#include "model/backend_options.h"
#include "model/cpu/aligned_buffer.h"
#include "model/model.h"

namespace rivulet {

// A packed matrix and its bias. `bias` is zero padded to whole panels.
struct CpuMatrix {
  AlignedBuffer panels;
  std::vector<float> bias;
  kernels::PackedMatrix packed;  // points into `panels`
};

struct CpuNorm {
  std::vector<float> weight, bias;  // [hidden]
};

struct CpuLayer {
  CpuMatrix qkv;   // hidden -> [query heads*key_dim | key heads*key_dim | value heads*value_dim |
                   // gate heads]
  CpuMatrix out;   // heads*value_dim -> hidden
  CpuMatrix ffn1;  // hidden -> ffn
  CpuMatrix ffn2;  // ffn -> hidden
  CpuNorm norm1, norm2;
  std::vector<float>
      omega;  // [key_dim, columns], or per head for rfa, already times sigma; empty for elu
  std::vector<kernels::FeatureMapArgs> maps;  // [heads], pointing into `omega`
};

// Immutable once loaded; any thread.
struct CpuWeights {
  std::vector<float> embedding;  // [vocab, embedding_columns]
  std::vector<float> positions;  // [table length, position columns]; empty where there are none
  int64_t position_rows = 0;  // of the table; later sinusoidal positions are computed when needed
  std::vector<CpuLayer> layers;
  CpuNorm final_norm;    // empty where the model has none
  CpuMatrix head;        // hidden -> output_size
  bool lossless = true;  // the packed weights equal the file's
  kernels::WeightType type = kernels::WeightType::kF32;

  // Bytes of all of the above.
  size_t bytes() const;
  // Multiply-adds of all matrix products for one token row.
  int64_t multiply_adds() const;

  // Decodes and packs. Errors: DATA_LOSS (file), INVALID_ARGUMENT (a weight too large for
  // `precision`, named).
  static absl::StatusOr<std::unique_ptr<CpuWeights>> Load(const Model& model,
                                                          WeightPrecision precision);
};

}  // namespace rivulet
