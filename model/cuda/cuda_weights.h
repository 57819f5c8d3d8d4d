// SPDX-License-Identifier: Apache-2.0
// CudaWeights: a model's weights in device memory: matrices packed for the kernels, the rest
// float32. PackedWeights (model/loading/packed_weights.h) reads and checks the checkpoint and
// describes every member.
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
  // Of a large product: its name, and the index among its matrices in CudaWeights::library. Small
  // products have none; our own kernels run them.
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

// A layer's softmax attention, in a hybrid.
struct CudaSoftmaxLayer {
  bool attends = false;
  CudaWeightMatrix in, out;  // `in` makes CudaWeights::softmax_columns
  const float *q_norm = nullptr, *k_norm = nullptr;
};

// A member that the kind does not have is null, or a matrix without memory.
struct CudaLayer {
  bool mixes = true;         // false: a layer of a hybrid with attention alone
  CudaSoftmaxLayer softmax;  // reads the mixer's input
  CudaNorm norm1, norm2;
  CudaWeightMatrix in, in_small, decay, gate, out, up, down;  // as in LayerWeights
  const float *conv = nullptr, *conv_bias = nullptr, *decay_scale = nullptr, *decay_bias = nullptr,
              *lower_bound = nullptr, *skip = nullptr, *out_norm = nullptr, *omega = nullptr;
  CudaRwkv7Layer rwkv7;
};

// Type of the layers' matrices.
kernels::WeightType CudaLayerType(CudaPrecision precision);

// All pointers are to device memory and valid as long as this object. Immutable once loaded.
class CudaWeights {
 public:
  // The device memory that Load will take for `host`, which does not change.
  static size_t Bytes(const ModelConfig& config, PackedWeights& host, CudaPrecision precision,
                      bool for_library);

  // Packs and uploads, in the order of `queue`. With the default precision the matrices of the
  // layers become F16, and so does a head of the family with 16 bits in the file; matrices of 8
  // bits stay integers, an embedding of 8 bits becomes F16; all vectors are float32. Each matrix of
  // `host` is freed after its upload. `for_library`: fills `library`, too. Errors: INVALID_ARGUMENT
  // (a weight, or for a library a bias, too large for fp16, named), RESOURCE_EXHAUSTED,
  // UNAVAILABLE.
  static absl::StatusOr<CudaWeights> Load(const ModelConfig& config,
                                          std::unique_ptr<PackedWeights> host,
                                          CudaPrecision precision, bool for_library,
                                          CudaQueue& queue);

  // As in PackedWeights, but the first halves of low-rank products begin 16-byte aligned.
  InputColumns columns, softmax_columns;
  // [vocab, hidden] of embedding_type, the type on the host (F16 instead of 8 bits). Kinds "linear"
  // and "softmax": [vocab, embedding_columns] of float32.
  const void* embedding = nullptr;
  kernels::WeightType embedding_type = kernels::WeightType::kF32;
  const float* positions = nullptr;  // [position_rows, embedding_columns]; null: there are none
  int64_t position_rows = 0;
  std::vector<CudaLayer> layers;
  CudaNorm final_norm;
  CudaWeightMatrix transform;  // as in PackedWeights, of the layers' type
  CudaNorm transform_norm;
  CudaWeightMatrix head;
  // Large products, in the family only those in F16 with k a multiple of 8; empty without a
  // library.
  CudaLibraryWeights library;
  // [2 heads, key_dim]: weights with which RmsNorm gives q the length key_dim^-1/2 and k the length
  // 1. Null without convolution.
  const float* lengths = nullptr;
  // Rotary positions: over pi, [rope_pairs], as of kernels::RotaryFrequencies(). Otherwise, kinds
  // "linear" and "softmax": kernels::CudaFrequencies(), [embedding_columns], for positions that are
  // not in the table; null: all are in the table.
  const double* frequencies = nullptr;
  int rope_pairs = 0;      // 0: no rotation
  double rope_factor = 1;  // of cosines and sines
  bool rope_interleaved = false;
  // The scale of the mixer's input product, [columns.n]; null: 1.
  const float* input_scales = nullptr;
  const float* initial_state = nullptr;  // PackedWeights::initial_state; null: zeros

 private:
  friend class CudaWeightsLoader;
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
