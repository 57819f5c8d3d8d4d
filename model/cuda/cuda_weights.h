// SPDX-License-Identifier: Apache-2.0
// CudaWeights: a model's weights in device memory, matrices packed for the kernels, the rest
// float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/feature_map.h"
#include "model/backend_options.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_library_weights.h"
#include "model/cuda/cuda_queue.h"
#include "model/decoded_weights.h"
#include "model/model.h"

namespace rivulet {

struct CudaNorm {
  const float* weight = nullptr;  // [hidden]; null: no norm
  const float* bias = nullptr;
};

struct CudaLayer {
  // DecodedLayer says what they are. packed is null where that form is not wanted.
  kernels::CudaMatrix qkv, out, ffn1, ffn2;
  CudaNorm norm1, norm2;
  const float* omega = nullptr;  // [key_dim, columns], or per head for rfa; null for elu
};

// Type of the layers' matrices; the head is float32 always.
kernels::WeightType CudaLayerType(CudaPrecision precision);

// All pointers are the device's and live as long as this does. Immutable once loaded.
class CudaWeights {
 public:
  // What Load will take.
  static size_t Bytes(const ModelConfig& config, CudaPrecision precision,
                      const CudaWeightForms& forms = {});

  // Decodes, packs and uploads, in the order of `queue`. The head, norms, tables and omega are
  // float32 in every precision. Errors: DATA_LOSS (file), INVALID_ARGUMENT (a weight, or with rows
  // a bias, too large for fp16, named), RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<CudaWeights> Load(const Model& model, CudaPrecision precision,
                                          const CudaWeightForms& forms, CudaQueue& queue);

  const float* embedding = nullptr;  // [vocab, embedding_columns]
  const float* positions =
      nullptr;  // [position_rows, embedding_columns]; null where there are none
  int64_t position_rows = 0;
  const double* frequencies = nullptr;  // null: every position is in the table
  std::vector<CudaLayer> layers;
  CudaNorm final_norm;
  kernels::CudaMatrix head;
  CudaLibraryWeights library;  // empty where that form is not wanted

 private:
  friend class CudaWeightsLoader;
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
