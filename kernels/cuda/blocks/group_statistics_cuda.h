// SPDX-License-Identifier: Apache-2.0
// Shared by all norms of groups, so that a group has the same bits in each: the order of sums, and
// the norm of a value. Included by .cu files only.
#pragma once

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/common/row_statistics_cuda.h"

namespace rivulet::kernels {

// Mean and 1 / sqrt(mean square + eps) of n values, on all lanes of the calling warp: lane l adds
// values l, l + 32, ...
template <bool kCentred>
__device__ __forceinline__ RowStatistics GroupStatistics(const float* x, int n, float eps) {
  float mean = 0, squares = 0;
  if constexpr (kCentred) {
    for (int i = LaneIndex(); i < n; i += kWarpLanes) mean += x[i];
    mean = WarpSum(mean) / static_cast<float>(n);
  }
  for (int i = LaneIndex(); i < n; i += kWarpLanes) {
    const float v = kCentred ? x[i] - mean : x[i];
    squares = fmaf(v, v, squares);
  }
  return {mean, 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(n) + eps)};
}

template <bool kCentred>
__device__ __forceinline__ float NormOf(float x, RowStatistics s, float weight, float bias) {
  if constexpr (kCentred) {
    return fmaf((x - s.mean) * s.scale, weight, bias);
  } else {
    return x * s.scale * weight;
  }
}

}  // namespace rivulet::kernels
