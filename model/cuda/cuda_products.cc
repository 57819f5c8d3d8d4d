// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_products.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/cuda/cuda_product_args.h"
#include "model/cuda/cuda_run_plan.h"

namespace rivulet {
namespace {

using kernels::CudaMatrix;

// The number of different rows in a check: no divisor of a tile, so that each row is in many
// places.
constexpr int kCheckedRows = 37;
constexpr const char* kNames[kCudaProducts] = {"qkv", "out", "ffn1", "ffn2", "head"};

// The address at which the library begins to read rows.
const void* FromPrefix(const void* column_0, bool half) {
  constexpr size_t kPrefix = kernels::kProductPrefix;
  return static_cast<const char*>(column_0) - kPrefix * (half ? sizeof(uint16_t) : sizeof(float));
}

}  // namespace

CudaLibrary OpenCudaLibrary(const CudaBackendOptions& options, const BackendLimits& limits) {
  if (options.products == CudaProductChoice::kOwn) return {nullptr, "chosen by option"};
  // A step of max_rows rows has max_rows head outputs.
  const int least = CudaLibraryRows(CudaProduct::kHead, options);
  if (limits.max_tokens < least) return {nullptr, absl::StrCat("no run has ", least, " rows")};
  auto library =
      CublasLt::Open(options.library.empty() ? CublasLt::DefaultName() : options.library.c_str());
  if (!library.ok()) return {nullptr, std::string(library.status().message())};
  return {*std::move(library), ""};
}

// Makes one CudaProducts.
class CudaProductsMaker {
 public:
  CudaProductsMaker(const CudaBackendOptions& options, const CudaLibrary& library,
                    const CudaProductPlaces& places, CudaLibraryWeights& weights, CudaQueue& queue)
      : options_(options),
        library_(library.library),
        places_(places),
        weights_(weights),
        queue_(queue) {}

  absl::StatusOr<CudaProducts> Make() {
    RIVULET_ASSIGN_OR_RETURN(different_, CudaMemory::OnDevice(sizeof(unsigned)));
    std::vector<std::string> theirs, ours;
    for (int i = 0; i < kCudaProducts; ++i) {
      const auto which = CudaProduct(i);
      if (PlaceOf(which).out == nullptr) continue;
      CudaProducts::Entry& entry = made_.entries_[size_t(i)];
      entry.least_rows = CudaLibraryRows(which, options_);
      std::string said;
      RIVULET_RETURN_IF_ERROR(Find(which, &entry, &said));
      if (entry.chosen) {
        for (const auto& matrix : weights_.of(which)) entry.weights.push_back(matrix.rows);
        theirs.push_back(absl::StrCat(kNames[i], " from ", entry.least_rows, " rows by ", said));
        continue;
      }
      ours.push_back(absl::StrCat(kNames[i], ": ", said));
      made_.bytes_freed_ += weights_.Free(which);
    }
    Describe(theirs, ours);
    return std::move(made_);
  }

 private:
  using Matrix = CudaLibraryWeights::Matrix;
  const CudaProductPlace& PlaceOf(CudaProduct which) const { return places_[size_t(which)]; }

  // `said`: the algorithm, and why not others; or why none.
  absl::Status Find(CudaProduct which, CudaProducts::Entry* entry, std::string* said);
  // Why no algorithm is searched; empty: one is.
  std::string WhyNotAtAll(CudaProduct which, int least_rows) const;
  absl::StatusOr<unsigned> Different(CudaProduct which, const CublasLtProduct& product);
  absl::Status CheckMatrix(const CudaProductPlace& at, const Matrix& matrix,
                           const CublasLtProduct& product, const CudaMemory& expected, int period);
  absl::Status Expect(const CudaProductPlace& at, const Matrix& matrix, int rows);
  void Describe(const std::vector<std::string>& theirs, const std::vector<std::string>& ours);

  const CudaBackendOptions& options_;
  const std::shared_ptr<const CublasLt> library_;
  const CudaProductPlaces& places_;
  CudaLibraryWeights& weights_;
  CudaQueue& queue_;
  CudaMemory different_;  // the number of differences in a check
  CudaProducts made_;
};

std::string CudaProductsMaker::WhyNotAtAll(CudaProduct which, int least_rows) const {
  const CudaProductPlace& at = PlaceOf(which);
  const std::vector<Matrix>& matrices = weights_.of(which);
  if (matrices.empty()) return "its weights are not F16 with a multiple of 8 inputs";
  for (const Matrix& matrix : matrices) {
    const bool same = matrix.own.k == matrices[0].own.k && matrix.own.n == matrices[0].own.n;
    if (!same) return "its matrices have different shapes";
  }
  if (at.a.rows < least_rows) return absl::StrCat("never ", least_rows, " rows");
  if (at.activated) return "the activation is part of it";
  return weights_.exact(which) ? "" : "a bias is too small for three F16";
}

absl::Status CudaProductsMaker::Find(CudaProduct which, CudaProducts::Entry* entry,
                                     std::string* said) {
  const CudaProductPlace& at = PlaceOf(which);
  *said = WhyNotAtAll(which, entry->least_rows);
  if (!said->empty()) return absl::OkStatus();
  const CudaMatrix& matrix = weights_.of(which)[0].own;
  std::vector<int> counts = CudaBuckets(at.a.rows);
  counts.erase(counts.begin(), std::lower_bound(counts.begin(), counts.end(), entry->least_rows));
  RIVULET_ASSIGN_OR_RETURN(
      entry->product,
      CublasLtProduct::Create(library_, {matrix.type, kernels::ProductK(matrix.k), matrix.n,
                                         at.a.ld, at.ld_out, std::move(counts)}));
  RIVULET_ASSIGN_OR_RETURN(const auto offers, entry->product.Offers());
  std::vector<std::string> failed;
  for (const CublasLtProduct::Offer& offer : offers) {
    unsigned different = 0;
    if (offer.why_not.empty()) {
      entry->product.Choose(offer.algorithm);
      RIVULET_ASSIGN_OR_RETURN(different, Different(which, entry->product));
      entry->chosen = different == 0;
    }
    if (entry->chosen) {
      *said = offer.name;
      if (!failed.empty()) absl::StrAppend(said, " (not ", absl::StrJoin(failed, "; "), ")");
      return absl::OkStatus();
    }
    failed.push_back(different == 0 ? absl::StrCat(offer.name, ": ", offer.why_not)
                                    : absl::StrCat(offer.name, ": ", different, " outputs differ"));
  }
  entry->product = CublasLtProduct();
  *said = offers.empty() ? "the library offers no algorithm"
                         : absl::StrCat("no algorithm has the bits of our own kernel (",
                                        absl::StrJoin(failed, "; "), ")");
  return absl::OkStatus();
}

// Computes the expected rows of a check: the first rows of `out`.
absl::Status CudaProductsMaker::Expect(const CudaProductPlace& at, const Matrix& matrix, int rows) {
  const auto run = [&](const auto* a) {
    return Launch(queue_.launch(),
                  WithResidual(Product(matrix.own, a, at.a.ld, at.out, at.ld_out, rows),
                               at.residual, at.ld_out));
  };
  return at.a.half ? run(static_cast<const uint16_t*>(at.a.data))
                   : run(static_cast<const float*>(at.a.data));
}

// Counts the outputs of one matrix, at every row count, that differ from the expected ones.
absl::Status CudaProductsMaker::CheckMatrix(const CudaProductPlace& at, const Matrix& matrix,
                                            const CublasLtProduct& product,
                                            const CudaMemory& expected, int period) {
  RIVULET_RETURN_IF_ERROR(Expect(at, matrix, period));
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(expected.data(), at.out, expected.bytes(),
                                               cudaMemcpyDeviceToDevice, queue_.stream()));
  for (const int rows : product.counts()) {
    RIVULET_RETURN_IF_ERROR(product.Run(matrix.rows, FromPrefix(at.a.data, at.a.half), at.residual,
                                        at.out, rows, queue_.stream()));
    RIVULET_CUDA_RETURN_IF_ERROR(
        kernels::CountDifferentRowsCuda(queue_.launch(), {at.out, false, at.ld_out, rows},
                                        {expected.data(), false, at.ld_out, period}, matrix.own.n,
                                        period, static_cast<unsigned*>(different_.data())));
  }
  return absl::OkStatus();
}

// The number of outputs of all matrices whose bits differ from the expected ones.
absl::StatusOr<unsigned> CudaProductsMaker::Different(CudaProduct which,
                                                      const CublasLtProduct& product) {
  const CudaProductPlace& at = PlaceOf(which);
  const CudaMatrix& first = weights_.of(which)[0].own;
  const kernels::CudaLaunch& launch = queue_.launch();
  const int period = std::min(kCheckedRows, at.a.rows);
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::FillProductRowsCuda(launch, at.a, first.k, period));
  if (at.residual != nullptr) {
    RIVULET_CUDA_RETURN_IF_ERROR(kernels::FillProductRowsCuda(
        launch, {at.residual, false, at.ld_out, at.a.rows}, first.n, period));
  }
  RIVULET_ASSIGN_OR_RETURN(
      const CudaMemory expected,
      CudaMemory::OnDevice(size_t(period) * size_t(at.ld_out) * sizeof(float)));
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(different_.data(), 0, different_.bytes(), queue_.stream()));
  for (const Matrix& matrix : weights_.of(which)) {
    RIVULET_RETURN_IF_ERROR(CheckMatrix(at, matrix, product, expected, period));
  }
  unsigned different = 0;
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(&different, different_.data(), sizeof different,
                                               cudaMemcpyDeviceToHost, queue_.stream()));
  RIVULET_RETURN_IF_ERROR(queue_.AwaitAll());
  return different;
}

void CudaProductsMaker::Describe(const std::vector<std::string>& theirs,
                                 const std::vector<std::string>& ours) {
  made_.description_ = theirs.empty() ? std::string("own kernels")
                                      : absl::StrCat("cuBLASLt ", library_->VersionText(), ": ",
                                                     absl::StrJoin(theirs, ", "));
  if (!ours.empty()) {
    absl::StrAppend(&made_.description_, theirs.empty() ? " (" : "; own kernels (",
                    absl::StrJoin(ours, "; "), ")");
  }
}

absl::StatusOr<CudaProducts> CudaProducts::Create(const CudaBackendOptions& options,
                                                  const CudaLibrary& library,
                                                  const CudaProductPlaces& places,
                                                  CudaLibraryWeights& weights, CudaQueue& queue) {
  if (library.library != nullptr) {
    return CudaProductsMaker(options, library, places, weights, queue).Make();
  }
  CudaProducts own;
  own.description_ = absl::StrCat("own kernels (", library.why_not, ")");
  return own;
}

absl::Status CudaProducts::Run(CudaProduct which, int index, const void* a, const float* residual,
                               float* out, int rows, cudaStream_t stream) const {
  const Entry& entry = entries_[size_t(which)];
  return entry.product.Run(entry.weights[size_t(index)], FromPrefix(a, entry.product.half()),
                           residual, out, rows, stream);
}

}  // namespace rivulet
