// SPDX-License-Identifier: Apache-2.0
// CudaBlockWeights: the weights of a model of the family in device memory: matrices packed for the
// kernels, the rest float32. BlockWeights (model/cpu/block_weights.h) reads the checkpoint, checks
// it and says what every member is.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cpu/block_weights.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_library_weights.h"
#include "model/cuda/cuda_queue.h"
#include "model/model.h"

namespace rivulet {

struct CudaBlockMatrix : kernels::CudaMatrix {
  // Of a large product: which, and the place among its matrices in CudaBlockWeights::library. Small
  // ones have none, and stay on our own kernels.
  std::optional<CudaProduct> product;
  int index = 0;
};

struct CudaLowRank {
  CudaBlockMatrix first, second;
};

struct CudaRwkv7Layer {
  const float *first_norm = nullptr, *first_norm_bias = nullptr, *mix = nullptr, *ffn_mix = nullptr;
  CudaBlockMatrix r, k, v;
  CudaLowRank w, a, v_mix, g;
  const float *k_k = nullptr, *k_a = nullptr, *r_k = nullptr, *group_norm = nullptr,
              *group_norm_bias = nullptr;
};

// What the kind does not have is null, or a matrix without memory.
struct CudaBlockLayer {
  const float *norm1 = nullptr, *norm1_bias = nullptr, *norm2 = nullptr, *norm2_bias = nullptr;
  CudaBlockMatrix in, decay, gate, out, up, down;
  const float *conv = nullptr, *conv_bias = nullptr, *decay_scale = nullptr, *decay_bias = nullptr,
              *lower_bound = nullptr, *skip = nullptr, *out_norm = nullptr;
  CudaRwkv7Layer rwkv7;
};

// All pointers are the device's and live as long as this does. Immutable once loaded.
class CudaBlockWeights {
 public:
  // Reads the checkpoint into host memory. Errors: those of BlockWeights::Load.
  static absl::StatusOr<std::unique_ptr<BlockWeights>> Read(const Model& model);
  // Device memory that Load takes of `host`, which stays as it is.
  static size_t Bytes(const ModelConfig& config, BlockWeights& host, CudaPrecision precision,
                      const CudaWeightForms& forms);

  // Packs and uploads, in the order of `queue`. With the default precision the matrices of the
  // layers become F16, and so does a head that has 16 bits in the file; all vectors are float32.
  // Each matrix of `host` is given back once it was uploaded. REQUIRES: forms.packed.
  // Errors: INVALID_ARGUMENT (a weight too large for fp16, named), RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<CudaBlockWeights> Load(const Model& model,
                                               std::unique_ptr<BlockWeights> host,
                                               CudaPrecision precision,
                                               const CudaWeightForms& forms, CudaQueue& queue);

  // As BlockWeights has them, but the first halves of low-rank products begin 16-byte aligned.
  BlockColumns columns;
  const void* embedding = nullptr;  // [vocab, hidden] of embedding_type, that of the file
  kernels::WeightType embedding_type = kernels::WeightType::kF32;
  std::vector<CudaBlockLayer> layers;
  const float *final_norm = nullptr, *final_norm_bias = nullptr;
  CudaBlockMatrix head;
  // Large products in F16 whose k is a multiple of 8; empty where that form is not wanted.
  CudaLibraryWeights library;
  // [2 heads, key_dim]: for q and k side by side, what makes a norm of root mean squares one of the
  // length key_dim^-1/2 and of 1. Null where there is no convolution.
  const float* lengths = nullptr;
  const double* frequencies = nullptr;  // [key_dim / 2], RetNet: kernels::RotaryFrequencies()

 private:
  friend class CudaBlockLoader;
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
