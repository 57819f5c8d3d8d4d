// SPDX-License-Identifier: Apache-2.0
// CudaWeights: a model's weights in device memory: matrices packed for the kernels, the rest
// float32. PackedWeights (model/loading/packed_weights.h) read the checkpoint, check it and say
// what every member is.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_library_weights.h"
#include "model/cuda/cuda_queue.h"
#include "model/loading/packed_weights.h"

namespace rivulet {

struct CudaWeightMatrix : kernels::CudaMatrix {
  // Of a large product: which, and the place among its matrices in CudaWeights::library. Small
  // ones have none, and stay on our own kernels.
  std::optional<CudaProduct> product;
  int index = 0;
};

struct CudaLowRank {
  CudaWeightMatrix first, second;
};

struct CudaNorm {
  const float* weight = nullptr;  // [hidden]; null: no norm
  const float* bias = nullptr;
};

struct CudaRwkv7Layer {
  CudaNorm first_norm;
  const float *mix = nullptr, *ffn_mix = nullptr;
  CudaWeightMatrix r, k, v;
  CudaLowRank w, a, v_mix, g;
  const float *k_k = nullptr, *k_a = nullptr, *r_k = nullptr, *group_norm = nullptr,
              *group_norm_bias = nullptr;
};

// Of a hybrid.
struct CudaSoftmaxLayer {
  bool attends = false;
  CudaWeightMatrix in, out;  // `in` makes CudaWeights::softmax_columns
  const float *q_norm = nullptr, *k_norm = nullptr;
};

// What the kind does not have is null, or a matrix without memory.
struct CudaLayer {
  bool mixes = true;         // false: of a hybrid, with attention alone
  CudaSoftmaxLayer softmax;  // has the mixer's input
  CudaNorm norm1, norm2;
  CudaWeightMatrix in, in_small, decay, gate, out, up, down;  // as in LayerWeights
  const float *conv = nullptr, *conv_bias = nullptr, *decay_scale = nullptr, *decay_bias = nullptr,
              *lower_bound = nullptr, *skip = nullptr, *out_norm = nullptr, *omega = nullptr;
  CudaRwkv7Layer rwkv7;
};

// Type of the layers' matrices.
kernels::WeightType CudaLayerType(CudaPrecision precision);

// All pointers are the device's and live as long as this does. Immutable once loaded.
class CudaWeights {
 public:
  // Device memory that Load takes of `host`, which stays as it is.
  static size_t Bytes(const ModelConfig& config, PackedWeights& host, CudaPrecision precision,
                      bool for_library);

  // Packs and uploads, in the order of `queue`. With the default precision the matrices of the
  // layers become F16, and so does a head of the family that has 16 bits in the file; those of 8
  // bits stay integers, an embedding of 8 bits becomes F16; all vectors are float32. Each matrix of
  // `host` is given back once it was uploaded. `for_library`: fills `library`, too. Errors:
  // INVALID_ARGUMENT (a weight, or for a library a bias, too large for fp16, named),
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<CudaWeights> Load(const ModelConfig& config,
                                          std::unique_ptr<PackedWeights> host,
                                          CudaPrecision precision, bool for_library,
                                          CudaQueue& queue);

  // As PackedWeights has them, but the first halves of low-rank products begin 16-byte aligned.
  InputColumns columns, softmax_columns;
  // [vocab, hidden] of embedding_type, that of the host (F16 where that is 8 bits). Kinds "linear"
  // and "softmax": [vocab, embedding_columns] of float32.
  const void* embedding = nullptr;
  kernels::WeightType embedding_type = kernels::WeightType::kF32;
  const float* positions = nullptr;  // [position_rows, embedding_columns]; null: there are none
  int64_t position_rows = 0;
  std::vector<CudaLayer> layers;
  CudaNorm final_norm;
  CudaWeightMatrix head;
  // Large products, of the family those in F16 whose k is a multiple of 8; empty without a library.
  CudaLibraryWeights library;
  // [2 heads, key_dim]: for q and k side by side, what makes a norm of root mean squares one of the
  // length key_dim^-1/2 and of 1. Null where there is no convolution.
  const float* lengths = nullptr;
  // RetNet and softmax attention: over pi, [rope_pairs], as of kernels::RotaryFrequencies(). Kinds
  // "linear" and "softmax": kernels::CudaFrequencies(), [embedding_columns], of the positions that
  // are not in the table; null: all are.
  const double* frequencies = nullptr;
  int rope_pairs = 0;      // 0: positions turn nothing
  double rope_factor = 1;  // of cosines and sines
  // What the mixer's input product is multiplied with, [columns.n]; null: 1.
  const float* input_scales = nullptr;
  const float* initial_state = nullptr;  // PackedWeights::initial_state; null: zeros

 private:
  friend class CudaWeightsLoader;
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
