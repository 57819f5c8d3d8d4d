// SPDX-License-Identifier: Apache-2.0
// CudaBlockScratch: the activations between the launches of CudaBlockForward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/cpu/block_weights.h"
#include "model/cuda/cuda_block_weights.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_scratch.h"

namespace rivulet {

// Arrays [max_tokens, ld] of device memory, ld a multiple of 32. What the kind does not use has no
// memory.
class CudaBlockScratch {
 public:
  struct Array {
    float* data = nullptr;
    int ld = 0;
  };

  // `low_columns`: what the first halves of low-rank products need, of all layers the most.
  static size_t Bytes(const ModelConfig& config, const BlockColumns& columns, int low_columns,
                      const CudaProductReads& reads, const BackendLimits& limits);
  static absl::StatusOr<CudaBlockScratch> Create(const ModelConfig& config,
                                                 const BlockColumns& columns, int low_columns,
                                                 const CudaProductReads& reads,
                                                 const BackendLimits& limits,
                                                 const kernels::CudaLaunch& launch);

  Array x, y;       // the residual stream, before and behind a product
  Array h;          // the normed row; behind the last layer, of output rows
  Array in;         // BlockColumns; RWKV-7: r | k | v, each padded
  Array conv;       // what the convolution made of them
  Array decay;      // w: [keys] or [heads]
  Array gate;       // of the output, where a product of its own makes it
  Array o;          // [values]
  Array mix;        // RWKV-7: six rows for each
  Array ffn;        // [gate | up], each padded
  Array low;        // RWKV-7: first halves of the low-rank products
  Array rate;       // RWKV-7: what alpha is made of
  Array value;      // RWKV-7: what v mixes by
  Array first;      // RWKV-7: v of layer 0
  Array kk, minus;  // RWKV-7: what leaves the state, and in which direction
  // What a product of many rows reads, in F16; null without reads.halves. It fits the rows of
  // every other array's large product. For a library they have the prefix of product_rows_cuda.h.
  uint16_t* half = nullptr;
  int ld_half = 0, half_columns = 0;

 private:
  // Every array with its columns; 0: not used.
  std::vector<std::pair<Array*, int>> Arrays(const ModelConfig& config, const BlockColumns& columns,
                                             int low_columns);
  void SizeHalf(const ModelConfig& config, const CudaProductReads& reads);
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
