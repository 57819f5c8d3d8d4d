// SPDX-License-Identifier: Apache-2.0
// CudaProducts: which matrix products of a model run on cuBLASLt, and those that do. All others are
// our own kernels, fused with norms and activations.
//
// A row's bits must depend on that row alone, and the library promises nothing of the kind. So each
// product has one explicit algorithm, for every layer and row count, that has shown on this very
// device, at start, that it gives a row the same bits in every place at every row count that will
// occur (kernels/cuda/gemm/product_rows_cuda.h says how rows look). With `auto` these must be the
// bits of our own kernel, too: then each step may take either, and the numerics id stays. With
// `cublaslt` they are the library's, under an id that names version and algorithms.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cuda/cublaslt.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

// The library, or null and, for people, why our own kernels run all products.
struct CudaLibrary {
  std::shared_ptr<const CublasLt> library;
  std::string why_not;
};
// What options.products asks for. Errors: INVALID_ARGUMENT (reason PRODUCTS_UNSUPPORTED: `cublaslt`
// where there is no library). REQUIRES: the device is current.
absl::StatusOr<CudaLibrary> OpenCudaLibrary(const CudaBackendOptions& options,
                                            const BackendLimits& limits);
// In which forms the weights are needed on the device.
CudaWeightForms CudaFormsOf(const CudaBackendOptions& options, const CudaLibrary& library);

// Thread: one. References must outlive it.
class CudaProducts {
 public:
  CudaProducts() = default;  // our own kernels

  // Looks for algorithms and checks them, with `scratch` as work space; gives back the weights that
  // only the library would have needed. Errors: INVALID_ARGUMENT (PRODUCTS_UNSUPPORTED: `cublaslt`,
  // and a product has no algorithm that passes), RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<CudaProducts> Create(const ModelConfig& config,
                                             const CudaBackendOptions& options,
                                             const CudaLibrary& library, const CudaScratch& scratch,
                                             const BackendLimits& limits, CudaWeights& weights,
                                             CudaQueue& queue);

  // Whether the library runs every product at every row count.
  bool all() const { return all_; }
  // Whether it runs `which` for so many rows.
  bool Takes(CudaProduct which, int rows) const {
    const Entry& entry = entries_[size_t(which)];
    return entry.chosen && rows >= entry.least_rows;
  }
  // out = a w^T + bias (+ residual), with the row distances of CudaScratch. `a`:
  // column 0 of rows that have their prefix; what lies behind `rows` in a, residual and out is read
  // and written, too. REQUIRES: Takes(which, rows).
  absl::Status Run(CudaProduct which, const void* w, const void* a, const float* residual,
                   float* out, int rows, cudaStream_t stream) const;

  // What runs where, for people.
  const std::string& description() const { return description_; }
  // Names library and algorithms, where bits depend on them; else empty.
  const std::string& numerics() const { return numerics_; }
  // Of the weights that were given back.
  size_t bytes_freed() const { return bytes_freed_; }

 private:
  struct Entry {
    CublasLtProduct product;
    int least_rows = 0;
    bool chosen = false;
  };
  friend class CudaProductsMaker;

  bool all_ = false;
  std::array<Entry, kCudaProducts> entries_;
  std::string description_ = "own kernels", numerics_;
  size_t bytes_freed_ = 0;
};

}  // namespace rivulet
