// SPDX-License-Identifier: Apache-2.0
//   a' = [ prefix | a ]    W' = [ bias | W ]    out = a' W'^T
#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/half.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128;  // a block is one row
constexpr float kPartScale = 2048;

__device__ __forceinline__ void Store(const CudaProductRows& rows, int row, int column, float v) {
  const auto at = static_cast<size_t>(static_cast<int64_t>(At(row, rows.ld)) + column);
  if (rows.half) {
    static_cast<uint16_t*>(rows.data)[at] = RoundF16(v);
  } else {
    static_cast<float*>(rows.data)[at] = v;
  }
}

__global__ void __launch_bounds__(kThreads) MarkProductRows(CudaProductRows rows) {
  WaitForPredecessor();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kProductPrefix) return;
  const int parts = rows.half ? 3 : 1;
  float v = 1;
  for (int j = 0; j < i; ++j) v /= kPartScale;
  Store(rows, static_cast<int>(blockIdx.x), i - kProductPrefix, i < parts ? v : 0.0f);
}

__global__ void __launch_bounds__(kThreads)
    FillProductRows(CudaProductRows rows, int n, int period) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x);
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) {
    uint32_t bits = static_cast<uint32_t>(row % period) * 0x9E3779B9u + static_cast<uint32_t>(c);
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
    const int signed_bits = static_cast<int>(bits >> 8) - (1 << 23);
    Store(rows, row, c, static_cast<float>(signed_bits) * (1.0f / (1 << 23)));
  }
}

__global__ void __launch_bounds__(kThreads)
    CountDifferentRows(CudaProductRows rows, CudaProductRows expected, int n, int period,
                       unsigned* different) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x);
  const float* mine = static_cast<const float*>(rows.data) + At(row, rows.ld);
  const float* other = static_cast<const float*>(expected.data) + At(row % period, expected.ld);
  unsigned count = 0;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) {
    count += __float_as_uint(mine[c]) != __float_as_uint(other[c]) ? 1u : 0u;
  }
  if (count > 0) atomicAdd(different, count);
}

bool Valid(const CudaProductRows& rows) {
  return rows.data != nullptr && rows.rows >= 0 && rows.ld >= 1;
}

}  // namespace

void SplitBias(float b, uint16_t (&parts)[3]) {
  for (uint16_t& part : parts) {
    part = F32ToF16(b);
    b = (b - F16ToF32(part)) * kPartScale;  // both exact
  }
}

bool PackProductRows(WeightType type, const float* w, const float* bias, int n, int k,
                     void* packed) {
  bool finite = true;
  const auto infinite = [](uint16_t half) { return (half & 0x7FFFu) == 0x7C00u; };
  for (int i = 0; i < n; ++i) {
    const float* from = w + At(i, k);
    if (type == WeightType::kF32) {
      float* to = static_cast<float*>(packed) + At(i, ProductK(k));
      to[0] = bias[i];
      for (int j = 0; j < k; ++j) to[kProductPrefix + j] = from[j];
      continue;
    }
    uint16_t* to = static_cast<uint16_t*>(packed) + At(i, ProductK(k));
    uint16_t parts[3];
    SplitBias(bias[i], parts);
    for (int j = 0; j < 3; ++j) to[j] = parts[j];
    finite = finite && !infinite(parts[0]);
    for (int j = 0; j < k; ++j) {
      to[kProductPrefix + j] = F32ToF16(from[j]);
      finite = finite && !infinite(to[kProductPrefix + j]);
    }
  }
  return finite;
}

cudaError_t PrepareProductRowsCuda() {
  return PrepareKernels(MarkProductRows, FillProductRows, CountDifferentRows);
}

cudaError_t MarkProductRowsCuda(const CudaLaunch& launch, const CudaProductRows& rows) {
  if (!Valid(rows)) return cudaErrorInvalidValue;
  return LaunchBlocks(launch, MarkProductRows, rows.rows, kThreads, 0, rows);
}

cudaError_t FillProductRowsCuda(const CudaLaunch& launch, const CudaProductRows& rows, int n,
                                int period) {
  if (!Valid(rows) || n < 1 || period < 1) return cudaErrorInvalidValue;
  return LaunchBlocks(launch, FillProductRows, rows.rows, kThreads, 0, rows, n, period);
}

cudaError_t CountDifferentRowsCuda(const CudaLaunch& launch, const CudaProductRows& rows,
                                   const CudaProductRows& expected, int n, int period,
                                   unsigned* different) {
  if (!Valid(rows) || !Valid(expected) || rows.half || expected.half || n < 1 || period < 1 ||
      different == nullptr) {
    return cudaErrorInvalidValue;
  }
  return LaunchBlocks(launch, CountDifferentRows, rows.rows, kThreads, 0, rows, expected, n, period,
                      different);
}

}  // namespace rivulet::kernels
