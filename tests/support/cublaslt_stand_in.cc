// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcublasLt.so.13 on the emulator: a shared object with the functions that we
// call. Its products run on the CPU, in the order of the stream. They have the bits of our own
// kernels on the emulator unless RIVULET_STAND_IN_CUBLASLT, read by cublasLtCreate, asks for a
// fault:
//   other      k in descending order: other bits, the same for a row wherever it is
//   rows       ... in products of 16 rows or more
//   place      ... in rows of odd number
//   second     ... by the first algorithm that is offered, not by the second
//   split, scheme, tf32, workspace   algorithms that we must not take
//   none       no algorithm
//   broken     no handle
//   refuses    products fail
// Arguments that the real library would refuse give status 7.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string>

#include "kernels/half.h"
#include "model/cuda/cublaslt_abi.h"

namespace {

using namespace rivulet::cublaslt;  // NOLINT

constexpr Status kOk = 0, kNotInitialized = 1, kInvalidValue = 7, kInternalError = 14;
constexpr Status kNotSupported = 15;
constexpr uint64_t kMark = 0x5354414E44494E00;  // of an algorithm of ours

struct Product {
  int compute;
  int32_t transpose = 0;
};
struct Matrix {
  int type;
  uint64_t rows, columns;
  int64_t ld;
};
struct Search {
  uint64_t workspace = 1;
  uint32_t scheme = 7;
};

std::string fault;
std::atomic<int64_t> products{0};

bool Faulty(const char* name) { return fault == name; }

float Element(const Matrix& m, const void* data, int64_t column, int64_t k) {
  const int64_t at = column * m.ld + k;
  return m.type == kR16F ? rivulet::kernels::F16ToF32(static_cast<const uint16_t*>(data)[at])
                         : static_cast<const float*>(data)[at];
}

struct Call {
  Matrix w, a, out;
  const void *w_data, *a_data;
  const float* c_data;
  float* out_data;
  float beta;
  bool descending, by_rows, by_place;
};

float Sum(const Call& p, int64_t r, int64_t c) {
  const auto k_end = static_cast<int64_t>(p.w.rows);
  const bool down = p.descending || (p.by_rows && p.a.columns >= 16) || (p.by_place && r % 2 != 0);
  float sum = 0;
  for (int64_t i = 0; i < k_end; ++i) {
    const int64_t k = down ? k_end - 1 - i : i;
    const float w = Element(p.w, p.w_data, c, k), a = Element(p.a, p.a_data, r, k);
    // F16: the product is exact, as in the emulator's tensor cores.
    sum = p.w.type == kR16F ? sum + a * w : std::fmaf(a, w, sum);
  }
  return sum;
}

void Run(void* argument) {
  const Call& p = *static_cast<const Call*>(argument);
  for (int64_t r = 0; r < static_cast<int64_t>(p.a.columns); ++r) {
    for (int64_t c = 0; c < static_cast<int64_t>(p.w.columns); ++c) {
      const int64_t at = r * p.out.ld + c;
      const float sum = Sum(p, r, c);
      p.out_data[at] = p.beta == 0 ? sum : sum + p.c_data[at];
    }
  }
  products.fetch_add(1);
}

template <class T>
Status Give(T value, void* to, size_t bytes, size_t* written) {
  if (bytes != sizeof value) return kInvalidValue;
  *static_cast<T*>(to) = value;
  *written = sizeof value;
  return kOk;
}

bool Known(const Algorithm* algorithm) { return (algorithm->data[0] & ~uint64_t{0xFF}) == kMark; }

bool Fits(const Product& product, const Matrix& w, const Matrix& a, const Matrix& c,
          const Matrix& d) {
  const bool types = w.type == a.type && c.type == kR32F && d.type == kR32F &&
                     product.compute == (w.type == kR16F ? kCompute32F : kCompute32FPedantic);
  return types && product.transpose == kTranspose && w.rows == a.rows && d.rows == w.columns &&
         d.columns == a.columns && c.ld == d.ld && c.rows == d.rows && c.columns == d.columns;
}

}  // namespace

extern "C" {

// For tests: products that have run.
int64_t RivuletStandInProducts() { return products.load(); }

#ifdef RIVULET_STAND_IN_LACKS_MATMUL
#define cublasLtMatmul RivuletStandInUnnamed
#endif
Status cublasLtMatmul(Handle, Desc desc, const void* alpha, const void* w, Layout w_layout,
                      const void* a, Layout a_layout, const void* beta, const void* c,
                      Layout c_layout, void* d, Layout d_layout, const Algorithm* algorithm,
                      void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const Matrix &w_matrix = *static_cast<Matrix*>(w_layout),
               &a_matrix = *static_cast<Matrix*>(a_layout);
  const Matrix &c_matrix = *static_cast<Matrix*>(c_layout),
               &d_matrix = *static_cast<Matrix*>(d_layout);
  if (Faulty("refuses")) return kInternalError;
  if (!Fits(*static_cast<Product*>(desc), w_matrix, a_matrix, c_matrix, d_matrix) ||
      !Known(algorithm) || workspace != nullptr || workspace_bytes != 0 ||
      *static_cast<const float*>(alpha) != 1) {
    return kInvalidValue;
  }
  const float b = *static_cast<const float*>(beta);
  const bool first = (algorithm->data[0] & 0xFF) == 0;
  // A graph may run it again and again, so it stays.
  auto* call = new Call{w_matrix,
                        a_matrix,
                        d_matrix,
                        w,
                        a,
                        static_cast<const float*>(c),
                        static_cast<float*>(d),
                        b,
                        Faulty("other") || (Faulty("second") && first),
                        Faulty("rows"),
                        Faulty("place")};
  return cudaLaunchHostFunc(stream, Run, call) == cudaSuccess ? kOk : kInternalError;
}

Status cublasLtCreate(Handle* handle) {
  const char* asked = std::getenv("RIVULET_STAND_IN_CUBLASLT");
  fault = asked == nullptr ? "" : asked;
  if (Faulty("broken")) return kNotInitialized;
  *handle = new char;
  return kOk;
}
Status cublasLtDestroy(Handle handle) {
  delete static_cast<char*>(handle);
  return kOk;
}
size_t cublasLtGetVersion() { return 130002; }

Status cublasLtMatmulDescCreate(Desc* desc, int compute, int scale) {
  if (scale != kR32F) return kInvalidValue;
  *desc = new Product{compute};
  return kOk;
}
Status cublasLtMatmulDescDestroy(Desc desc) {
  delete static_cast<Product*>(desc);
  return kOk;
}
Status cublasLtMatmulDescSetAttribute(Desc desc, int attribute, const void* value, size_t bytes) {
  if (attribute != kDescTransA || bytes != sizeof(int32_t)) return kInvalidValue;
  static_cast<Product*>(desc)->transpose = *static_cast<const int32_t*>(value);
  return kOk;
}

Status cublasLtMatrixLayoutCreate(Layout* layout, int type, uint64_t rows, uint64_t columns,
                                  int64_t ld) {
  if (rows == 0 || columns == 0 || ld < static_cast<int64_t>(rows)) return kInvalidValue;
  *layout = new Matrix{type, rows, columns, ld};
  return kOk;
}
Status cublasLtMatrixLayoutDestroy(Layout layout) {
  delete static_cast<Matrix*>(layout);
  return kOk;
}

Status cublasLtMatmulPreferenceCreate(Preference* preference) {
  *preference = new Search;
  return kOk;
}
Status cublasLtMatmulPreferenceDestroy(Preference preference) {
  delete static_cast<Search*>(preference);
  return kOk;
}
Status cublasLtMatmulPreferenceSetAttribute(Preference preference, int attribute, const void* value,
                                            size_t bytes) {
  auto* search = static_cast<Search*>(preference);
  if (attribute == kPrefMaxWorkspaceBytes && bytes == sizeof(uint64_t)) {
    search->workspace = *static_cast<const uint64_t*>(value);
  } else if (attribute == kPrefReductionSchemeMask && bytes == sizeof(uint32_t)) {
    search->scheme = *static_cast<const uint32_t*>(value);
  } else {
    return kInvalidValue;
  }
  return kOk;
}

Status cublasLtMatmulAlgoGetHeuristic(Handle, Desc desc, Layout w, Layout a, Layout c, Layout d,
                                      Preference preference, int wanted, HeuristicResult* results,
                                      int* found) {
  const Search& search = *static_cast<Search*>(preference);
  *found = 0;
  if (!Fits(*static_cast<Product*>(desc), *static_cast<Matrix*>(w), *static_cast<Matrix*>(a),
            *static_cast<Matrix*>(c), *static_cast<Matrix*>(d)) ||
      search.workspace != 0 || search.scheme != 0) {
    return kInvalidValue;
  }
  if (Faulty("none")) return kNotSupported;
  // The third says itself that it does not run.
  for (; *found < 3 && *found < wanted; ++*found) {
    results[*found] = {};
    results[*found].algorithm.data[0] = kMark + static_cast<uint64_t>(*found);
    results[*found].algorithm.data[1] =
        static_cast<Matrix*>(w)->type == kR16F ? uint64_t{kR16F} : uint64_t{kR32F};
    results[*found].state = *found < 2 ? kOk : kNotSupported;
  }
  return kOk;
}
Status cublasLtMatmulAlgoCheck(Handle, Desc desc, Layout w, Layout a, Layout c, Layout d,
                               const Algorithm* algorithm, HeuristicResult* result) {
  *result = {};
  result->algorithm = *algorithm;
  result->workspace_bytes = Faulty("workspace") ? 1024 : 0;
  return Known(algorithm) &&
                 Fits(*static_cast<Product*>(desc), *static_cast<Matrix*>(w),
                      *static_cast<Matrix*>(a), *static_cast<Matrix*>(c), *static_cast<Matrix*>(d))
             ? kOk
             : kInvalidValue;
}
Status cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value,
                                            size_t bytes, size_t* written) {
  if (!Known(algorithm)) return kInvalidValue;
  if (attribute == kConfigSplitK) {
    return Give(int32_t{Faulty("split") ? 2 : 1}, value, bytes, written);
  }
  if (attribute == kConfigId) {
    return Give(static_cast<int32_t>(algorithm->data[0] & 0xFF), value, bytes, written);
  }
  if (attribute == kConfigTile) return Give(uint32_t{20}, value, bytes, written);
  if (attribute == kConfigStages) return Give(uint32_t{35}, value, bytes, written);
  if (attribute != kConfigReductionScheme) return kInvalidValue;
  return Give(uint32_t{Faulty("scheme") ? 1u : 0u}, value, bytes, written);
}
Status cublasLtMatmulAlgoCapGetAttribute(const Algorithm* algorithm, int attribute, void* value,
                                         size_t bytes, size_t* written) {
  if (!Known(algorithm) || attribute != kCapNumericalFlags) return kInvalidValue;
  const bool half = algorithm->data[1] == uint64_t{kR16F};
  const uint64_t tf32 = 0x04 << 16;
  const uint64_t input = half ? kFlagInput16F : Faulty("tf32") ? tf32 : kFlagInput32F;
  return Give(kFlagSums32F | input | (half ? kFlagHmma : kFlagFma), value, bytes, written);
}

}  // extern "C"
