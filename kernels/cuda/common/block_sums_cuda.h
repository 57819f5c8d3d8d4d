// SPDX-License-Identifier: Apache-2.0
// Sums and the largest of a row's values, by the block of 128 threads that samples it. Included by
// categorical_cuda.h only. All functions are called by the whole block.
#pragma once

#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {

inline constexpr int kRowThreads = 128, kRowWarps = kRowThreads / kWarpLanes;
__device__ __forceinline__ int RowThread() { return static_cast<int>(threadIdx.x); }

// Shared memory of one row.
struct RowShared {
  double sums[kRowThreads];  // running sums over the threads
  double tree[kRowWarps];
  float best_value[kRowWarps];
  int32_t best_index[kRowWarps];
  int32_t counts[kRowThreads], chosen;
};

// This thread's ids.
struct Ids {
  int begin, end, owners;  // owners: the first threads, those that have any
  __device__ explicit Ids(int n) {
    const int each = (n + kRowThreads - 1) / kRowThreads;
    begin = RowThread() * each < n ? RowThread() * each : n;
    end = begin + each < n ? begin + each : n;
    owners = (n + each - 1) / each;
  }
};

// Sum in thread order; shared.sums then holds the running sums of the owners of ids, own included.
__device__ inline double SumInOrder(double mine, const Ids& ids, RowShared& shared) {
  __syncthreads();  // the last call's results are read
  shared.sums[RowThread()] = mine;
  __syncthreads();
  double sum = 0;
#pragma unroll 4  // loads first: only the additions follow each other
  for (int t = 0; RowThread() == 0 && t < ids.owners; ++t) {
    shared.sums[t] = sum = sum + shared.sums[t];
  }
  __syncthreads();
  return shared.sums[ids.owners - 1];
}

// Sum in a fixed tree: quicker, for thresholds.
__device__ inline double SumInTree(double mine, RowShared& shared) {
  const double warp = WarpSum(mine);
  __syncthreads();  // the last call's results are read
  if (LaneIndex() == 0) shared.tree[WarpIndex()] = warp;
  __syncthreads();
  return (shared.tree[0] + shared.tree[1]) + (shared.tree[2] + shared.tree[3]);
}

struct Best {
  float value;
  int32_t index;  // -1: none
};
__device__ __forceinline__ Best Better(Best a, Best b) {
  const bool second =
      a.index < 0 ||
      (b.index >= 0 && (b.value > a.value || (b.value == a.value && b.index < a.index)));
  return second ? b : a;
}
// The largest value, the lowest index on ties.
__device__ inline Best BlockBest(Best mine, RowShared& shared) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const Best other = {__shfl_xor_sync(kAllLanes, mine.value, lanes),
                        __shfl_xor_sync(kAllLanes, mine.index, lanes)};
    mine = Better(mine, other);
  }
  __syncthreads();  // the last call's results are read
  if (LaneIndex() == 0) {
    shared.best_value[WarpIndex()] = mine.value;
    shared.best_index[WarpIndex()] = mine.index;
  }
  __syncthreads();
  Best best = {shared.best_value[0], shared.best_index[0]};
#pragma unroll
  for (int w = 1; w < kRowWarps; ++w) {
    best = Better(best, {shared.best_value[w], shared.best_index[w]});
  }
  return best;
}

}  // namespace rivulet::kernels
