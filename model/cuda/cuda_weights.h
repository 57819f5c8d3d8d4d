// SPDX-License-Identifier: Apache-2.0
// CudaWeights: a model's weights in device memory, matrices packed for the kernels, the rest
// float32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/feature_map.h"
#include "model/backend_options.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_queue.h"
#include "model/model.h"
#include "model/weights/decoded_weights.h"

namespace rivulet {

// The matrix products of a model; all but the last are in every layer.
enum class CudaProduct : uint8_t { kQkv, kOut, kFfn1, kFfn2, kHead };
inline constexpr int kCudaProducts = 5, kCudaLayerProducts = 4;

// In which forms matrices are on the device.
struct CudaWeightForms {
  bool packed = true;  // for our own kernels (kernels/cuda/gemm/gemm_cuda.h)
  bool rows = false;   // for a library (kernels/cuda/gemm/product_rows_cuda.h)
};

struct CudaNorm {
  const float* weight = nullptr;  // [hidden]; null: no norm
  const float* bias = nullptr;
};

struct CudaLayer {
  // DecodedLayer says what they are. packed is null where that form is not wanted.
  kernels::CudaMatrix qkv, out, ffn1, ffn2;
  std::array<const void*, kCudaLayerProducts> rows = {};  // by CudaProduct; null: not wanted
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

  // Gives back the rows of a product that no library runs, and returns their bytes. REQUIRES: no
  // work that uses them is queued.
  size_t FreeRows(CudaProduct which);
  // Whether the rows of every such product hold the bias exactly (kernels::SplitBias).
  bool exact(CudaProduct which) const { return exact_[size_t(which)]; }

  const float* embedding = nullptr;  // [vocab, embedding_columns]
  const float* positions =
      nullptr;  // [position_rows, embedding_columns]; null where there are none
  int64_t position_rows = 0;
  const double* frequencies = nullptr;  // null: every position is in the table
  std::vector<CudaLayer> layers;
  CudaNorm final_norm;
  kernels::CudaMatrix head;
  const void* head_rows = nullptr;  // as CudaLayer::rows

 private:
  friend class CudaWeightsLoader;
  std::vector<CudaMemory> memory_;
  std::array<std::vector<CudaMemory>, kCudaProducts> rows_;
  std::array<bool, kCudaProducts> exact_ = {true, true, true, true, true};
};

}  // namespace rivulet
