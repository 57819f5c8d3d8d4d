// SPDX-License-Identifier: Apache-2.0
// CudaLibraryWeights: a second copy of the matrices of a model's large products, in the form that a
// library reads (kernels/cuda/gemm/product_rows_cuda.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_queue.h"

namespace rivulet {

// The large products of a model. kQkv computes the inputs of a mixer: RWKV-7 has three per layer,
// for r, k and v. All but the head are in every layer; a product that a model lacks has no matrix.
enum class CudaProduct : uint8_t { kQkv, kOut, kFfn1, kFfn2, kHead };
inline constexpr int kCudaProducts = 5;

// Thread: one.
class CudaLibraryWeights {
 public:
  struct Matrix {
    kernels::CudaMatrix own;     // the matrix for our own kernels
    const void* rows = nullptr;  // [n, ProductK(k)] of own.type, on the device
  };
  // Bytes of one matrix.
  static size_t Bytes(kernels::WeightType type, int k, int n);

  // Uploads `rows`, PackProductRows of the weights and `bias` of `own`, as the next matrix of
  // `which`. Errors: RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::Status Add(CudaProduct which, const kernels::CudaMatrix& own, std::span<const char> rows,
                   std::span<const float> bias, CudaQueue& queue);

  const std::vector<Matrix>& of(CudaProduct which) const {
    return entries_[size_t(which)].matrices;
  }
  // Whether the rows of every such matrix hold the bias exactly (kernels::SplitBias).
  bool exact(CudaProduct which) const { return entries_[size_t(which)].exact; }
  // Frees the matrices of a product that no library runs, and returns their bytes. REQUIRES: no
  // work that uses them is queued.
  size_t Free(CudaProduct which);

 private:
  struct Entry {
    std::vector<Matrix> matrices;
    std::vector<CudaMemory> memory;
    bool exact = true;
  };
  std::array<Entry, kCudaProducts> entries_;
};

}  // namespace rivulet
