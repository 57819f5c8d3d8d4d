// SPDX-License-Identifier: Apache-2.0
// Layer norm of rows by a warp. Included by .cu files only.
#pragma once

#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {

// Mean and 1 / sqrt(variance + eps) of rows, on every lane of the calling warp. Each `x` is 16-byte
// aligned and readable up to n rounded up to 4. The loads of 256 columns of all rows are in flight
// at once.
struct RowStatistics {
  float mean, scale;
};
template <int kRows>
__device__ __forceinline__ void NormalizeStatistics(const float* const (&x)[kRows], int n,
                                                    float eps, RowStatistics (&out)[kRows]) {
  constexpr int kAhead = 2, kStep = 4 * kWarpLanes;
  // Calls add(row, value) for all of this lane's values, in their order within a row. All lanes
  // leave the loop together: else the compiler would add a second path to each later shuffle.
  const auto for_each = [&](const auto& add) {
#pragma unroll 1
    for (int k = 0; k < n; k += kAhead * kStep) {
      const int first = k + 4 * LaneIndex();
      float4 v[kAhead][kRows];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          v[s][r] = make_float4(0, 0, 0, 0);
          if (first + s * kStep < n) {
            v[s][r] = *reinterpret_cast<const float4*>(x[r] + first + s * kStep);
          }
        }
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const int i = first + s * kStep;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (i < n) add(r, v[s][r].x);
          if (i + 1 < n) add(r, v[s][r].y);
          if (i + 2 < n) add(r, v[s][r].z);
          if (i + 3 < n) add(r, v[s][r].w);
        }
      }
    }
  };
  float sum[kRows] = {}, squares[kRows] = {};
  for_each([&](int r, float v) { sum[r] += v; });
#pragma unroll
  for (int r = 0; r < kRows; ++r) out[r].mean = WarpSum(sum[r]) / static_cast<float>(n);
  for_each(
      [&](int r, float v) { squares[r] = fmaf(v - out[r].mean, v - out[r].mean, squares[r]); });
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float variance = WarpSum(squares[r]) / static_cast<float>(n);
    out[r].scale = 1.0f / sqrtf(variance + eps);
  }
}
__device__ __forceinline__ RowStatistics NormalizeStatistics(const float* x, int n, float eps) {
  const float* const rows[1] = {x};
  RowStatistics statistics[1];
  NormalizeStatistics(rows, n, eps, statistics);
  return statistics[0];
}
__device__ __forceinline__ float Normalized(float x, RowStatistics s, float weight, float bias) {
  return fmaf((x - s.mean) * s.scale, weight, bias);
}

}  // namespace rivulet::kernels
