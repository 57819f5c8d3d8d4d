// SPDX-License-Identifier: Apache-2.0
// NVIDIA's cuBLASLt, opened at run time, and matrix products by one of its algorithms, chosen
// explicitly.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "model/cuda/cublaslt_abi.h"

namespace rivulet {

// The library with a handle for the current device. Thread: any, except for the use of one product.
class CublasLt {
 public:
  // The name that `auto` opens, for the dynamic linker.
  static const char* DefaultName();
  // `name`: a file, or a name for the dynamic linker. The library stays open until the process
  // ends. Errors: FAILED_PRECONDITION saying what is missing (file, function, device).
  static absl::StatusOr<std::shared_ptr<const CublasLt>> Open(const std::string& name);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  const cublaslt::Functions& functions() const { return functions_; }
  cublaslt::Handle handle() const { return handle_; }
  uint64_t version() const { return functions_.GetVersion(); }
  std::string VersionText() const;  // "13.0.2"

 private:
  CublasLt() = default;
  absl::Status Load(const std::string& name);

  cublaslt::Functions functions_ = {};
  cublaslt::Handle handle_ = nullptr;
};

//   out[r][c] = sum_k a[r][k] w[c][k]  (+ residual[r][c])      a [rows, k]   w [n, k]   row-major
// w and a are float32 or F16, sums, residual and out float32. Row counts are fixed in advance.
class CublasLtProduct {
 public:
  struct Shape {
    kernels::WeightType type = kernels::WeightType::kF32;  // kF32 or kF16
    int k = 0, n = 0, lda = 0, ld_out = 0;                 // w is dense
    std::vector<int> counts;                               // of rows, ascending
  };

  CublasLtProduct() = default;
  // Errors: UNAVAILABLE (reason CUDA_ERROR).
  static absl::StatusOr<CublasLtProduct> Create(std::shared_ptr<const CublasLt> library,
                                                const Shape& shape);

  // An algorithm of the library. We may use an algorithm that runs every row count without
  // workspace, sums an output in one place (no split of k, no reduction scheme), multiplies its
  // inputs unrounded (never TF32), and keeps sums in float32.
  struct Offer {
    cublaslt::Algorithm algorithm;
    std::string name;     // ID/TILE/STAGES, as the library numbers them
    std::string why_not;  // empty: we may use it
  };
  // The library's favourite for the largest count first.
  absl::StatusOr<std::vector<Offer>> Offers() const;
  void Choose(const cublaslt::Algorithm& algorithm) { algorithm_ = algorithm; }

  // Queues the product of counts[i] rows, the first count that is at least `rows`. It also reads a
  // and residual, and writes out, behind `rows`. `residual`: null, or [.., ld_out]; may be out.
  // Errors: UNAVAILABLE (CUDA_ERROR). REQUIRES: an algorithm is chosen; rows <= counts.back().
  absl::Status Run(const void* w, const void* a, const float* residual, float* out, int rows,
                   cudaStream_t stream) const;
  std::span<const int> counts() const { return counts_; }
  bool half() const { return half_; }  // w and a are F16

 private:
  using Owned = std::unique_ptr<void, cublaslt::Status (*)(void*)>;
  struct Layouts {
    Owned a, out;
  };
  absl::StatusOr<Owned> NewLayout(int type, int rows, int columns, int ld) const;
  std::string WhyNot(const cublaslt::HeuristicResult& offered) const;

  std::shared_ptr<const CublasLt> library_;
  std::vector<int> counts_;
  std::vector<Owned> owned_;  // the product, then w
  std::vector<Layouts> layouts_;
  bool half_ = false;
  cublaslt::Algorithm algorithm_ = {};
};

}  // namespace rivulet
