// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_products.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "model/base/error.h"
#include "model/cuda/cuda_run_plan.h"

namespace rivulet {
namespace {

using kernels::CudaMatrix;
using kernels::CudaProductRows;
using kernels::Epilogue;
using kernels::WeightType;

// Different rows that a check uses: no divisor of a tile, so that each comes to many places.
constexpr int kCheckedRows = 37;
// From so many rows on our own product of a head reads its weights more than twice.
constexpr int kManyHeadRows = 128;
constexpr const char* kNames[kCudaProducts] = {"qkv", "out", "ffn1", "ffn2", "head"};

int LeastRows(CudaProduct which, const CudaBackendOptions& options) {
  if (options.products == CudaProductChoice::kCublasLt) return 1;
  return which == CudaProduct::kHead ? std::min(options.many_rows, kManyHeadRows)
                                     : options.many_rows;
}

absl::Status Unsupported(absl::string_view why) {
  return InvalidField(
      "PRODUCTS_UNSUPPORTED", "products",
      absl::StrCat("products is \"cublaslt\", but ", why, "; allowed here: \"auto\" or \"own\""));
}

// Where the library begins to read rows.
const void* FromPrefix(const void* column_0, bool half) {
  constexpr size_t kPrefix = kernels::kProductPrefix;
  return static_cast<const char*>(column_0) - kPrefix * (half ? sizeof(uint16_t) : sizeof(float));
}

// FNV-1a.
uint64_t Mix(uint64_t hash, uint64_t word) {
  for (int i = 0; i < 64; i += 8) hash = (hash ^ (word >> i & 0xFF)) * 0x100000001B3u;
  return hash;
}

}  // namespace

absl::StatusOr<CudaLibrary> OpenCudaLibrary(const CudaBackendOptions& options,
                                            const BackendLimits& limits) {
  const bool only = options.products == CudaProductChoice::kCublasLt;
  if (options.products == CudaProductChoice::kOwn) return CudaLibrary{nullptr, "chosen by option"};
  // A step of max_rows rows has as many head outputs.
  const int least = LeastRows(CudaProduct::kHead, options);
  if (!only && limits.max_tokens < least) {
    return CudaLibrary{nullptr, absl::StrCat("no run has ", least, " rows")};
  }
  auto library =
      CublasLt::Open(options.library.empty() ? CublasLt::DefaultName() : options.library.c_str());
  if (library.ok()) return CudaLibrary{*std::move(library), ""};
  if (only) return Unsupported(library.status().message());
  return CudaLibrary{nullptr, std::string(library.status().message())};
}

CudaWeightForms CudaFormsOf(const CudaBackendOptions& options, const CudaLibrary& library) {
  CudaWeightForms forms;
  forms.rows = library.library != nullptr;
  forms.packed = options.products != CudaProductChoice::kCublasLt;
  return forms;
}

// Makes one CudaProducts.
class CudaProductsMaker {
 public:
  CudaProductsMaker(const ModelConfig& config, const CudaBackendOptions& options,
                    const CudaLibrary& library, const CudaScratch& scratch,
                    const BackendLimits& limits, CudaWeights& weights, CudaQueue& queue)
      : config_(config),
        options_(options),
        library_(library.library),
        scratch_(scratch),
        limits_(limits),
        weights_(weights),
        queue_(queue) {}

  absl::StatusOr<CudaProducts> Make() {
    made_.all_ = options_.products == CudaProductChoice::kCublasLt;
    RIVULET_ASSIGN_OR_RETURN(different_, CudaMemory::OnDevice(sizeof(unsigned)));
    std::vector<std::string> theirs, ours;
    for (int i = 0; i < kCudaProducts; ++i) {
      const auto which = CudaProduct(i);
      CudaProducts::Entry& entry = made_.entries_[size_t(i)];
      entry.least_rows = LeastRows(which, options_);
      std::string why_not;
      RIVULET_RETURN_IF_ERROR(Find(which, &entry, &why_not));
      if (entry.chosen) {
        theirs.push_back(absl::StrCat(kNames[i], " from ", entry.least_rows, " rows"));
        continue;
      }
      if (made_.all_) return Unsupported(absl::StrCat("for ", kNames[i], " ", why_not));
      ours.push_back(absl::StrCat(kNames[i], ": ", why_not));
      made_.bytes_freed_ += weights_.FreeRows(which);
    }
    Describe(theirs, ours);
    return std::move(made_);
  }

 private:
  // Where a product reads and writes, as CudaForward has it.
  struct Place {
    CudaProductRows a;
    float* out;
    int ld_out;
    float* residual;  // null: none
    int most_rows;
  };
  Place PlaceOf(CudaProduct which) const {
    const CudaScratch& s = scratch_;
    const int tokens = limits_.max_tokens;
    const bool half = TypeOf(which) == WeightType::kF16;
    const CudaProductRows x = {half ? static_cast<void*>(s.half) : s.x, half, s.ld_x, tokens};
    switch (which) {
      case CudaProduct::kQkv:
        return {x, s.qkv, s.ld_qkv, nullptr, tokens};
      case CudaProduct::kOut:
        return {{half ? static_cast<void*>(s.attention_half) : s.attention, half, s.ld_attention,
                 tokens},
                s.y,
                s.ld_x,
                s.x,
                tokens};
      case CudaProduct::kFfn1:
        return {x, s.ffn, s.ld_ffn, nullptr, tokens};
      case CudaProduct::kFfn2:
        return {{half ? static_cast<void*>(s.ffn_half) : s.ffn, half, s.ld_ffn, tokens},
                s.y,
                s.ld_x,
                s.x,
                tokens};
      case CudaProduct::kHead:
        break;
    }
    return {x, s.outputs, s.ld_outputs, nullptr, s.head_rows};
  }
  const CudaMatrix& MatrixOf(CudaProduct which, int index = 0) const {
    const CudaLayer& layer = weights_.layers[size_t(index)];
    switch (which) {
      case CudaProduct::kQkv:
        return layer.qkv;
      case CudaProduct::kOut:
        return layer.out;
      case CudaProduct::kFfn1:
        return layer.ffn1;
      case CudaProduct::kFfn2:
        return layer.ffn2;
      case CudaProduct::kHead:
        break;
    }
    return weights_.head;
  }
  WeightType TypeOf(CudaProduct which) const { return MatrixOf(which).type; }
  const void* RowsOf(CudaProduct which, int index) const {
    return which == CudaProduct::kHead ? weights_.head_rows
                                       : weights_.layers[size_t(index)].rows[size_t(which)];
  }

  absl::Status Find(CudaProduct which, CudaProducts::Entry* entry, std::string* why_not);
  absl::StatusOr<bool> Passes(CudaProduct which, const CublasLtProduct& product);
  absl::Status CheckLayer(CudaProduct which, int index, const CublasLtProduct& product,
                          const CudaMemory& expected, int period);
  absl::Status Expect(CudaProduct which, int index, const CublasLtProduct& product, int rows);
  void Describe(const std::vector<std::string>& theirs, const std::vector<std::string>& ours);

  const ModelConfig& config_;
  const CudaBackendOptions& options_;
  const std::shared_ptr<const CublasLt> library_;
  const CudaScratch& scratch_;
  const BackendLimits& limits_;
  CudaWeights& weights_;
  CudaQueue& queue_;
  CudaMemory different_;  // the count of a check
  CudaProducts made_;
};

absl::Status CudaProductsMaker::Find(CudaProduct which, CudaProducts::Entry* entry,
                                     std::string* why_not) {
  const Place at = PlaceOf(which);
  if (which == CudaProduct::kFfn1 && !made_.all_) {
    *why_not = "the activation is part of it";
    return absl::OkStatus();
  }
  if (!made_.all_ && !weights_.exact(which)) {
    *why_not = "a bias is too small for three F16";
    return absl::OkStatus();
  }
  if (at.most_rows < entry->least_rows) {
    *why_not = absl::StrCat("never ", entry->least_rows, " rows");
    return absl::OkStatus();
  }
  const CudaMatrix& matrix = MatrixOf(which);
  std::vector<int> counts = CudaBuckets(at.most_rows);
  counts.erase(counts.begin(), std::lower_bound(counts.begin(), counts.end(), entry->least_rows));
  RIVULET_ASSIGN_OR_RETURN(
      entry->product,
      CublasLtProduct::Create(library_, {matrix.type, kernels::ProductK(matrix.k), matrix.n,
                                         at.a.ld, at.ld_out, std::move(counts)}));
  RIVULET_ASSIGN_OR_RETURN(const auto candidates, entry->product.Candidates());
  for (const cublaslt::Algorithm& candidate : candidates) {
    entry->product.Choose(candidate);
    RIVULET_ASSIGN_OR_RETURN(entry->chosen, Passes(which, entry->product));
    if (entry->chosen) return absl::OkStatus();
  }
  entry->product = CublasLtProduct();
  *why_not = candidates.empty()
                 ? "there is no algorithm without a split of k"
                 : absl::StrCat(made_.all_ ? "rows have other bits at other row counts"
                                           : "other bits than our own kernel's",
                                " (", candidates.size(), " algorithms tried)");
  return absl::OkStatus();
}

// What rows of a check must be: the first rows of `out`.
absl::Status CudaProductsMaker::Expect(CudaProduct which, int index, const CublasLtProduct& product,
                                       int rows) {
  const Place at = PlaceOf(which);
  if (made_.all_) {
    return product.Run(RowsOf(which, index), FromPrefix(at.a.data, at.a.half), at.residual, at.out,
                       rows, queue_.stream());
  }
  const auto fill = [&](auto args) {
    args.w = MatrixOf(which, index);
    args.lda = at.a.ld;
    args.out = at.out;
    args.ld_out = at.ld_out;
    args.rows = rows;
    args.epilogue = at.residual == nullptr ? Epilogue::kNone : Epilogue::kResidual;
    args.residual = at.residual;
    args.ld_residual = at.ld_out;
    return args;
  };
  if (at.a.half) {
    auto args = fill(kernels::CudaWideGemmArgs());
    args.a = static_cast<const uint16_t*>(at.a.data);
    return CudaStatus(kernels::WideGemmCuda(queue_.launch(), args), "launching a check");
  }
  auto args = fill(kernels::CudaGemmArgs());
  args.a = static_cast<const float*>(at.a.data);
  return CudaStatus(kernels::GemmCuda(queue_.launch(), args), "launching a check");
}

// Counts the outputs of one layer, at every row count, that are not what is expected.
absl::Status CudaProductsMaker::CheckLayer(CudaProduct which, int index,
                                           const CublasLtProduct& product,
                                           const CudaMemory& expected, int period) {
  const Place at = PlaceOf(which);
  RIVULET_RETURN_IF_ERROR(Expect(which, index, product, period));
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(expected.data(), at.out, expected.bytes(),
                                               cudaMemcpyDeviceToDevice, queue_.stream()));
  for (const int rows : product.counts()) {
    RIVULET_RETURN_IF_ERROR(product.Run(RowsOf(which, index), FromPrefix(at.a.data, at.a.half),
                                        at.residual, at.out, rows, queue_.stream()));
    RIVULET_CUDA_RETURN_IF_ERROR(kernels::CountDifferentRowsCuda(
        queue_.launch(), {at.out, false, at.ld_out, rows},
        {expected.data(), false, at.ld_out, period}, MatrixOf(which).n, period,
        static_cast<unsigned*>(different_.data())));
  }
  return absl::OkStatus();
}

// Whether every layer has the bits that are expected.
absl::StatusOr<bool> CudaProductsMaker::Passes(CudaProduct which, const CublasLtProduct& product) {
  const Place at = PlaceOf(which);
  const kernels::CudaLaunch& launch = queue_.launch();
  const int period = std::min(kCheckedRows, at.most_rows);
  RIVULET_CUDA_RETURN_IF_ERROR(
      kernels::FillProductRowsCuda(launch, at.a, MatrixOf(which).k, period));
  if (at.residual != nullptr) {
    RIVULET_CUDA_RETURN_IF_ERROR(kernels::FillProductRowsCuda(
        launch, {at.residual, false, at.ld_out, at.most_rows}, MatrixOf(which).n, period));
  }
  RIVULET_ASSIGN_OR_RETURN(
      const CudaMemory expected,
      CudaMemory::OnDevice(size_t(period) * size_t(at.ld_out) * sizeof(float)));
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(different_.data(), 0, different_.bytes(), queue_.stream()));
  const int layers = which == CudaProduct::kHead ? 1 : config_.num_layers;
  for (int i = 0; i < layers; ++i) {
    RIVULET_RETURN_IF_ERROR(CheckLayer(which, i, product, expected, period));
  }
  unsigned different = 0;
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(&different, different_.data(), sizeof different,
                                               cudaMemcpyDeviceToHost, queue_.stream()));
  RIVULET_RETURN_IF_ERROR(queue_.AwaitAll());
  return different == 0;
}

void CudaProductsMaker::Describe(const std::vector<std::string>& theirs,
                                 const std::vector<std::string>& ours) {
  made_.description_ = theirs.empty() ? std::string("own kernels")
                                      : absl::StrCat("cuBLASLt ", library_->VersionText(), ": ",
                                                     absl::StrJoin(theirs, ", "));
  if (made_.all_) made_.description_ = absl::StrCat("cuBLASLt ", library_->VersionText());
  if (!ours.empty()) {
    absl::StrAppend(&made_.description_, theirs.empty() ? " (" : "; own kernels (",
                    absl::StrJoin(ours, "; "), ")");
  }
  if (!made_.all_) return;
  uint64_t hash = 0xCBF29CE484222325u;
  for (const CudaProducts::Entry& entry : made_.entries_) {
    for (const uint64_t word : entry.product.algorithm().data) hash = Mix(hash, word);
  }
  made_.numerics_ = absl::StrCat("cublaslt-", library_->version(), "-", absl::Hex(hash));
}

absl::StatusOr<CudaProducts> CudaProducts::Create(const ModelConfig& config,
                                                  const CudaBackendOptions& options,
                                                  const CudaLibrary& library,
                                                  const CudaScratch& scratch,
                                                  const BackendLimits& limits, CudaWeights& weights,
                                                  CudaQueue& queue) {
  if (library.library != nullptr) {
    return CudaProductsMaker(config, options, library, scratch, limits, weights, queue).Make();
  }
  CudaProducts own;
  own.description_ = absl::StrCat("own kernels (", library.why_not, ")");
  return own;
}

absl::Status CudaProducts::Run(CudaProduct which, const void* w, const void* a,
                               const float* residual, float* out, int rows,
                               cudaStream_t stream) const {
  const CublasLtProduct& product = entries_[size_t(which)].product;
  return product.Run(w, FromPrefix(a, product.half()), residual, out, rows, stream);
}

}  // namespace rivulet
