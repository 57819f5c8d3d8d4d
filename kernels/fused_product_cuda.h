// SPDX-License-Identifier: Apache-2.0
//   v[r][c] = b[c] + sum_k a[r][k] W[c][k]      for the rows of a block, W through the warps' rings
//
// The sums of gemm_f16_cuda.cu, operation by operation; and where they go. Included by
// fused_*cuda.cu only.
#pragma once

#include "kernels/feature_map_cuda.h"
#include "kernels/fused_stream_cuda.h"

namespace rivulet::kernels {

// Sums of kGroupTiles tiles of 8 columns and kHigh tiles of 16 rows.
template <int kHigh>
using GroupSums = float[kGroupTiles][kHigh][4];

template <int kHigh>
__device__ __forceinline__ void BeginSums(const CudaMatrix& w, TileRun run, GroupSums<kHigh>& sum) {
#pragma unroll
  for (int j = 0; j < kGroupTiles; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * (run.first + j) + 2 * (LaneIndex() % 4) + c;
      const float bias = j < run.count && column < w.n ? __ldg(w.bias + column) : 0.0f;
#pragma unroll
      for (int m = 0; m < kHigh; ++m) sum[j][m][c] = sum[j][m][c + 2] = bias;
    }
  }
}

// One piece: `steps` times 32 k of `count` tiles. `a`: by row tile, where this lane's row of an
// ldmatrix begins at these k.
template <int kHigh, class Stream>
__device__ __forceinline__ void MultiplyPiece(Stream& stream, int count, int steps,
                                              const uint32_t* const (&a)[kHigh],
                                              GroupSums<kHigh>& sum) {
  const uint4* taken = stream.TakeWeights();
  uint4 b[kPieceSteps][kGroupTiles];
#pragma unroll
  for (int s = 0; s < kPieceSteps; ++s) {
#pragma unroll
    for (int j = 0; j < kGroupTiles; ++j) {
      if (s < steps && j < count) b[s][j] = taken[(j * kPieceSteps + s) * kWarpLanes];
    }
  }
  stream.Done();
#pragma unroll
  for (int s = 0; s < kPieceSteps; ++s) {
    if (s >= steps) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t fa[kHigh][4];
#pragma unroll
      for (int m = 0; m < kHigh; ++m) LoadTiles(fa[m], a[m] + 16 * s + 8 * half);
#pragma unroll
      for (int j = 0; j < kGroupTiles; ++j) {
        if (j >= count) break;
        const uint32_t fb[2] = {half == 0 ? b[s][j].x : b[s][j].z,
                                half == 0 ? b[s][j].y : b[s][j].w};
#pragma unroll
        for (int m = 0; m < kHigh; ++m) MmaF16(sum[j][m], fa[m], fb);
      }
    }
  }
}

// `a`: rows of F16 pairs, `ld` words apart. give(row, column, v of column, v of column + 1).
template <int kHigh, class Stream, class Give>
__device__ __forceinline__ void MultiplyFused(Stream& stream, const CudaMatrix& w,
                                              const TileGroups& groups, const uint32_t* a, int ld,
                                              int rows, const Give& give) {
  const int k_steps = (w.k + 31) / 32;
  // Lane 8 i + j names row j of tile i (gemm_wide_cuda.cu); rows that are not there repeat the
  // last, and their sums go nowhere.
  const uint32_t* lane_a[kHigh];
  const int last = rows > 0 ? rows - 1 : 0;
#pragma unroll
  for (int m = 0; m < kHigh; ++m) {
    const int row = 16 * m + LaneIndex() % 16;
    lane_a[m] = a + (row <= last ? row : last) * ld + LaneIndex() / 16 * 4;
  }
  for (int g = WarpIndex(); g < groups.count; g += kFusedWarps) {
    const TileRun run = groups.At(g);
    GroupSums<kHigh> sum;
    BeginSums<kHigh>(w, run, sum);
    for (int step = 0; step < k_steps; step += kPieceSteps) {
      const uint32_t* at[kHigh];
#pragma unroll
      for (int m = 0; m < kHigh; ++m) at[m] = lane_a[m] + 16 * step;
      const int left = k_steps - step;
      MultiplyPiece<kHigh>(stream, run.count, left < kPieceSteps ? left : kPieceSteps, at, sum);
    }
#pragma unroll
    for (int j = 0; j < kGroupTiles; ++j) {
      const int column = 8 * (run.first + j) + 2 * (LaneIndex() % 4);
      if (j >= run.count || column >= w.n) continue;
#pragma unroll
      for (int m = 0; m < kHigh; ++m) {
        const int row = 16 * m + LaneIndex() / 4;
        if (row < rows) give(row, column, sum[j][m][0], sum[j][m][1]);
        if (row + 8 < rows) give(row + 8, column, sum[j][m][2], sum[j][m][3]);
      }
    }
  }
}

// To q, k, v and gates of a round, [rows][ld]; queries and keys as features where phi is elu.
struct GiveRound {
  const RoundColumns& columns;
  float* qkv;
  int ld;
  bool elu;
  __device__ void operator()(int row, int column, float v0, float v1) const {
    One(row, column, v0);
    One(row, column + 1, v1);
  }

 private:
  __device__ void One(int row, int column, float v) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = column - columns.begin[i];
      if (at < 0 || at >= columns.size[i]) continue;
      qkv[row * ld + columns.to[i] + at] = elu && i < 2 ? EluFeature(v) : v;
    }
  }
};

// x <- v + x. One thread has an element, once.
struct GiveResidual {
  float* x;
  int ld, n;
  __device__ void operator()(int row, int column, float v0, float v1) const {
    float* at = x + row * ld + column;
    at[0] = v0 + at[0];
    if (column + 1 < n) at[1] = v1 + at[1];
  }
};

// Activates, and keeps as the input of a product.
struct GiveHalves {
  uint32_t* to;
  int ld, n;
  Epilogue epilogue;
  __device__ void operator()(int row, int column, float v0, float v1) const {
    const float second = column + 1 < n ? Activated(epilogue, v1) : 0.0f;
    to[row * ld + column / 2] = PackHalves(Activated(epilogue, v0), second);
  }
};

}  // namespace rivulet::kernels
