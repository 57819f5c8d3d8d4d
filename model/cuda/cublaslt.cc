// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

// The emulator has a substitute with another name (tests/support): a real library would treat its
// memory as a device's.
#ifndef RIVULET_CUBLASLT_NAME
#define RIVULET_CUBLASLT_NAME "libcublasLt.so.13"
#endif

namespace rivulet {
namespace {

using cublaslt::Algorithm;
using cublaslt::Functions;
using cublaslt::Status;

constexpr int kMostOffers = 16;

absl::Status LibraryStatus(Status status, absl::string_view what) {
  if (status == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable,
                   absl::StrCat("cuBLASLt status ", status, " in ", what), {"CUDA_ERROR", "", {}});
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// The name of the first function that `library` lacks; null: none.
const char* FindAll(void* library, Functions* f) {
#define RIVULET_FIND(name) \
  if (!Find(library, "cublasLt" #name, &f->name)) return "cublasLt" #name
  RIVULET_FIND(Create);
  RIVULET_FIND(Destroy);
  RIVULET_FIND(GetVersion);
  RIVULET_FIND(MatmulDescCreate);
  RIVULET_FIND(MatmulDescDestroy);
  RIVULET_FIND(MatmulDescSetAttribute);
  RIVULET_FIND(MatrixLayoutCreate);
  RIVULET_FIND(MatrixLayoutDestroy);
  RIVULET_FIND(MatmulPreferenceCreate);
  RIVULET_FIND(MatmulPreferenceDestroy);
  RIVULET_FIND(MatmulPreferenceSetAttribute);
  RIVULET_FIND(MatmulAlgoGetHeuristic);
  RIVULET_FIND(MatmulAlgoCheck);
  RIVULET_FIND(MatmulAlgoConfigGetAttribute);
  RIVULET_FIND(MatmulAlgoCapGetAttribute);
  RIVULET_FIND(Matmul);
#undef RIVULET_FIND
  return nullptr;
}

// An attribute of an algorithm; nullopt if the library does not tell it.
template <typename T>
std::optional<T> ConfigOf(const Functions& f, const Algorithm& algorithm, int attribute) {
  T value = 0;
  size_t written = 0;
  const Status status =
      f.MatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
  return status == 0 ? std::optional<T>(value) : std::nullopt;
}

// Offer::name.
std::string NameOf(const Functions& f, const Algorithm& algorithm) {
  return absl::StrCat(ConfigOf<int32_t>(f, algorithm, cublaslt::kConfigId).value_or(-1), "/",
                      ConfigOf<uint32_t>(f, algorithm, cublaslt::kConfigTile).value_or(0), "/",
                      ConfigOf<uint32_t>(f, algorithm, cublaslt::kConfigStages).value_or(0));
}

}  // namespace

const char* CublasLt::DefaultName() { return RIVULET_CUBLASLT_NAME; }

absl::StatusOr<std::shared_ptr<const CublasLt>> CublasLt::Open(const std::string& name) {
  std::shared_ptr<CublasLt> library(new CublasLt);
  RIVULET_RETURN_IF_ERROR(library->Load(name));
  return std::shared_ptr<const CublasLt>(std::move(library));
}

absl::Status CublasLt::Load(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat(name, " cannot be opened: ", why == nullptr ? "no reason given" : why));
  }
  if (const char* const missing = FindAll(library, &functions_); missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has no function ", missing));
  }
  if (const Status status = functions_.Create(&handle_); status != 0) {
    handle_ = nullptr;
    return absl::FailedPreconditionError(
        absl::StrCat(name, " does not work on this device: cublasLtCreate says ", status));
  }
  return absl::OkStatus();
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) (void)functions_.Destroy(handle_);
}

std::string CublasLt::VersionText() const {
  const uint64_t v = version();
  return absl::StrCat(v / 10000, ".", v / 100 % 100, ".", v % 100);
}

absl::StatusOr<CublasLtProduct::Owned> CublasLtProduct::NewLayout(int type, int rows, int columns,
                                                                  int ld) const {
  const Functions& f = library_->functions();
  cublaslt::Layout layout = nullptr;
  RIVULET_RETURN_IF_ERROR(LibraryStatus(
      f.MatrixLayoutCreate(&layout, type, uint64_t(rows), uint64_t(columns), int64_t{ld}),
      "cublasLtMatrixLayoutCreate"));
  return Owned(layout, f.MatrixLayoutDestroy);
}

// The library's matrices are column-major, so it computes out^T [n, rows] = (w^T)^T a^T.
absl::StatusOr<CublasLtProduct> CublasLtProduct::Create(std::shared_ptr<const CublasLt> library,
                                                        const Shape& shape) {
  CublasLtProduct product;
  const Functions& f = library->functions();
  product.library_ = std::move(library);
  product.counts_ = shape.counts;
  product.half_ = shape.type == kernels::WeightType::kF16;
  cublaslt::Desc desc = nullptr;
  const int compute = product.half_ ? cublaslt::kCompute32F : cublaslt::kCompute32FPedantic;
  RIVULET_RETURN_IF_ERROR(
      LibraryStatus(f.MatmulDescCreate(&desc, compute, cublaslt::kR32F), "cublasLtMatmulDesc"));
  product.owned_.emplace_back(desc, f.MatmulDescDestroy);
  const int32_t transpose = cublaslt::kTranspose;
  RIVULET_RETURN_IF_ERROR(LibraryStatus(
      f.MatmulDescSetAttribute(desc, cublaslt::kDescTransA, &transpose, sizeof transpose),
      "cublasLtMatmulDescSetAttribute"));
  const int type = product.half_ ? cublaslt::kR16F : cublaslt::kR32F;
  RIVULET_ASSIGN_OR_RETURN(Owned w, product.NewLayout(type, shape.k, shape.n, shape.k));
  product.owned_.push_back(std::move(w));
  for (const int rows : shape.counts) {
    RIVULET_ASSIGN_OR_RETURN(Owned a, product.NewLayout(type, shape.k, rows, shape.lda));
    RIVULET_ASSIGN_OR_RETURN(Owned out,
                             product.NewLayout(cublaslt::kR32F, shape.n, rows, shape.ld_out));
    product.layouts_.push_back({std::move(a), std::move(out)});
  }
  return product;
}

// Offer::why_not.
std::string CublasLtProduct::WhyNot(const cublaslt::HeuristicResult& offered) const {
  if (offered.state != 0) return absl::StrCat("status ", offered.state);
  const Functions& f = library_->functions();
  const Algorithm& algorithm = offered.algorithm;
  const auto split = ConfigOf<int32_t>(f, algorithm, cublaslt::kConfigSplitK);
  const auto scheme = ConfigOf<uint32_t>(f, algorithm, cublaslt::kConfigReductionScheme);
  uint64_t flags = 0;
  size_t written = 0;
  const Status told = f.MatmulAlgoCapGetAttribute(&algorithm, cublaslt::kCapNumericalFlags, &flags,
                                                  sizeof flags, &written);
  if (!split || !scheme || told != 0) return "does not tell the order of its sums";
  // 0 and 1 both say that k is not split.
  if (*split > 1 || *split < 0) return "splits k";
  if (*scheme != 0) return absl::StrCat("reduction scheme ", *scheme);
  using namespace cublaslt;  // NOLINT: the flags
  if ((flags & kFlagSumsMask) != kFlagSums32F ||
      (flags & kFlagOperationMask) != (half_ ? kFlagHmma : kFlagFma) ||
      (flags & kFlagInputMask) != (half_ ? kFlagInput16F : kFlagInput32F)) {
    return absl::StrCat("sums or factors of other types, flags ", absl::Hex(flags));
  }
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const Layouts& l = layouts_[i];
    HeuristicResult result = {};
    if (f.MatmulAlgoCheck(library_->handle(), owned_[0].get(), owned_[1].get(), l.a.get(),
                          l.out.get(), l.out.get(), &algorithm, &result) != 0) {
      return absl::StrCat("does not run ", counts_[i], " rows");
    }
    if (result.workspace_bytes != 0) return "needs workspace";
  }
  return "";
}

absl::StatusOr<std::vector<CublasLtProduct::Offer>> CublasLtProduct::Offers() const {
  const Functions& f = library_->functions();
  cublaslt::Preference preference = nullptr;
  RIVULET_RETURN_IF_ERROR(
      LibraryStatus(f.MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  const Owned owned(preference, f.MatmulPreferenceDestroy);
  const uint64_t no_workspace = 0;
  const uint32_t no_scheme = 0;
  RIVULET_RETURN_IF_ERROR(
      LibraryStatus(f.MatmulPreferenceSetAttribute(preference, cublaslt::kPrefMaxWorkspaceBytes,
                                                   &no_workspace, sizeof no_workspace),
                    "cublasLtMatmulPreferenceSetAttribute"));
  RIVULET_RETURN_IF_ERROR(
      LibraryStatus(f.MatmulPreferenceSetAttribute(preference, cublaslt::kPrefReductionSchemeMask,
                                                   &no_scheme, sizeof no_scheme),
                    "cublasLtMatmulPreferenceSetAttribute"));
  std::vector<cublaslt::HeuristicResult> results(kMostOffers);
  int found = 0;
  const Layouts& largest = layouts_.back();
  // A status other than 0 says that there is no algorithm.
  const Status status = f.MatmulAlgoGetHeuristic(
      library_->handle(), owned_[0].get(), owned_[1].get(), largest.a.get(), largest.out.get(),
      largest.out.get(), preference, kMostOffers, results.data(), &found);
  std::vector<Offer> offers;
  for (int i = 0; status == 0 && i < found; ++i) {
    const cublaslt::HeuristicResult& result = results[size_t(i)];
    offers.push_back({result.algorithm, NameOf(f, result.algorithm), WhyNot(result)});
  }
  return offers;
}

// A kernel of the library might let its successor begin before its own wait, against the rule of
// launch_cuda.h. Early reads stay safe: their writers are in another graph or before a memcpy.
absl::Status CublasLtProduct::Run(const void* w, const void* a, const float* residual, float* out,
                                  int rows, cudaStream_t stream) const {
  const auto at = std::lower_bound(counts_.begin(), counts_.end(), rows) - counts_.begin();
  const Layouts& l = layouts_[size_t(at)];
  const float alpha = 1, beta = residual == nullptr ? 0 : 1;
  return LibraryStatus(
      library_->functions().Matmul(library_->handle(), owned_[0].get(), &alpha, w, owned_[1].get(),
                                   a, l.a.get(), &beta, residual == nullptr ? out : residual,
                                   l.out.get(), out, l.out.get(), &algorithm_, nullptr, 0, stream),
      "cublasLtMatmul");
}

}  // namespace rivulet
