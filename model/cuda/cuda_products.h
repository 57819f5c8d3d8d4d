// SPDX-License-Identifier: Apache-2.0
// CudaProducts: chooses the matrix products of a model that run on cuBLASLt, and runs them. All
// other products are our own kernels, fused with norms and activations.
//
// A row's bits must depend on that row alone, which the library does not promise. So each product
// uses one explicit algorithm for every layer and row count. At start a check on the device must
// show that the algorithm gives a row the same bits in every place at every row count that will
// occur (kernels/cuda/gemm/product_rows_cuda.h describes the rows), and that these are the bits of
// our own kernel. Then each step may use either, and the numerics id stays the same.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/cuda/cublaslt.h"
#include "model/cuda/cuda_library_weights.h"
#include "model/cuda/cuda_queue.h"

namespace rivulet {

// The library, or null and, for messages, why our own kernels run all products.
struct CudaLibrary {
  std::shared_ptr<const CublasLt> library;
  std::string why_not;
};
// Opens the library if options.products asks for it. REQUIRES: the device is current.
CudaLibrary OpenCudaLibrary(const CudaBackendOptions& options, const BackendLimits& limits);

// From this number of rows on, the library may run a product. Our own product of a head, which has
// many columns, reads its weights more than twice from 128 rows on. The library has no norms, which
// are parts of products with fewer than many_rows rows.
inline int CudaLibraryRows(CudaProduct which, const CudaBackendOptions& options) {
  const int rows =
      which == CudaProduct::kHead ? std::min(options.library_rows, 128) : options.library_rows;
  return std::max(rows, options.many_rows);
}

// The input and output arrays of a product.
struct CudaProductPlace {
  kernels::CudaProductRows a;  // with the prefix; `rows`: the most rows
  float* out = nullptr;        // null: the model has no such product
  int ld_out = 0;
  float* residual = nullptr;  // [.., ld_out]; null: none
  bool activated = false;     // our own kernel applies an activation, which the library cannot
};
using CudaProductPlaces = std::array<CudaProductPlace, kCudaProducts>;

// Thread: one. References must outlive it.
class CudaProducts {
 public:
  CudaProducts() = default;  // our own kernels

  // Finds algorithms and checks them, with `places` as work space; frees the weights of products
  // that the library will not run. Errors: RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<CudaProducts> Create(const CudaBackendOptions& options,
                                             const CudaLibrary& library,
                                             const CudaProductPlaces& places,
                                             CudaLibraryWeights& weights, CudaQueue& queue);

  // Whether the library runs `which` for `rows` rows.
  bool Takes(CudaProduct which, int rows) const {
    const Entry& entry = entries_[size_t(which)];
    return entry.chosen && rows >= entry.least_rows;
  }
  // out = a w^T + bias (+ residual), w the matrix `index` of that product, with the row strides of
  // its place. `a`: column 0 of rows with their prefix. Rows of a and residual behind `rows` are
  // read, and rows of out written, too. REQUIRES: Takes(which, rows).
  absl::Status Run(CudaProduct which, int index, const void* a, const float* residual, float* out,
                   int rows, cudaStream_t stream) const;

  // Which products the library runs, for the log.
  const std::string& description() const { return description_; }
  // Bytes of the freed weights.
  size_t bytes_freed() const { return bytes_freed_; }

 private:
  struct Entry {
    CublasLtProduct product;
    std::vector<const void*> weights;  // CudaLibraryWeights::Matrix::rows
    int least_rows = 0;
    bool chosen = false;
  };
  friend class CudaProductsMaker;

  std::array<Entry, kCudaProducts> entries_;
  std::string description_ = "own kernels";
  size_t bytes_freed_ = 0;
};

}  // namespace rivulet
