// SPDX-License-Identifier: Apache-2.0
// CudaScratch: the activations between the launches of a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"
#include "model/loading/packed_weights.h"

namespace rivulet {

// The form of rows that products read: with the prefix of product_rows_cuda.h for a library, and
// F16 unless the precision is float32.
struct CudaProductReads {
  bool for_library = false;
  bool halves = true;
};

// Arrays [max_tokens, ld] of device memory, ld a multiple of 32. An array that the kind does not
// use has no memory.
class CudaScratch {
 public:
  static constexpr int kMixes = 6;
  template <class T>
  struct ArrayOf {
    T* data = nullptr;
    int ld = 0;
  };
  using Array = ArrayOf<float>;
  using Halves = ArrayOf<uint16_t>;  // F16

  static size_t Bytes(const ModelConfig& config, const InputColumns& columns,
                      const CudaProductReads& reads, const BackendLimits& limits);
  static absl::StatusOr<CudaScratch> Create(const ModelConfig& config, const InputColumns& columns,
                                            const CudaProductReads& reads,
                                            const BackendLimits& limits,
                                            const kernels::CudaLaunch& launch);

  Array x, y;   // the residual stream, before and after a product
  Array h;      // the normed row; after the last layer, of output rows
  Array in;     // InputColumns; RWKV-7: r | k | v, each padded
  Array conv;   // the output of the convolution
  Array decay;  // w: [keys] or [heads]
  Array gate;   // of the output, if it has a product of its own
  Array o;      // [values]
  Array mix;    // RWKV-7: kMixes rows for each, side by side, as in half.mix
  Array ffn;    // [gate | up], each padded; RWKV-7, kinds "linear" and "softmax": [ffn]
  Array low;    // RWKV-7: first halves of the low-rank products
  struct {
    Array rate;       // alpha before the sigmoid
    Array value;      // the weight of v's mix
    Array first;      // v of layer 0
    Array kk, minus;  // as in Rwkv7HeadsArgs
  } rwkv7;
  // Inputs of products of many rows, in F16; null without reads.halves. Except x they share memory
  // with the arrays above or, for a library, have their own, with the prefix of
  // product_rows_cuda.h; low always shares.
  struct {
    Halves x;         // the family: rows of `columns` columns without a member below
    Halves o;         // kinds "linear" and "softmax"
    Halves ffn;       // kinds "linear" and "softmax", RWKV-7
    Halves mix, low;  // RWKV-7
    int columns = 0;  // of x
  } half;
  struct {
    Array features;  // linear: max_tokens rows, and one more for each kCudaLongSegment rows
    // Softmax: [partial_floats] for spreading blocks of positions, and the most blocks of a
    // sequence or its ring.
    Array partials;
    size_t partial_floats = 0;
    int64_t max_blocks = 0;
  } attention;
  // Columns of x that kinds "linear" and "softmax" write; the next row's prefix follows.
  int width_x = 0;

 private:
  struct Spec;
  std::vector<Spec> Specs(const ModelConfig& config, const InputColumns& columns,
                          const CudaProductReads& reads, const BackendLimits& limits);
  std::vector<Spec> EncoderSpecs(const ModelConfig& config, const InputColumns& columns,
                                 const CudaProductReads& reads, size_t tokens);
  std::vector<Spec> BlockSpecs(const ModelConfig& config, const InputColumns& columns,
                               const CudaProductReads& reads, size_t tokens);
  // For a model with softmax attention.
  Spec PartialSpec(const ModelConfig& config, const BackendLimits& limits);
  absl::Status Place(const Spec& spec, const kernels::CudaLaunch& launch);
  std::vector<CudaMemory> memory_;
};

}  // namespace rivulet
