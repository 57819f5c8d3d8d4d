// SPDX-License-Identifier: Apache-2.0
//   v[r][c] = b[c] + sum_k a[r][k] W[c][k]      for the tiles of one block, a in shared memory
//
// The sums of gemm_f16_cuda.cu and, for the model's head, of gemm_f32_cuda.cu, operation by
// operation. Weights lie in shared memory, tile behind tile. Included by latency_*.cu only.
#pragma once

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/latency/latency_slices_cuda.h"

namespace rivulet::kernels {

inline constexpr int kLatencyThreads = 128, kLatencyWarps = kLatencyThreads / kWarpLanes;
inline constexpr int kTilesAtOnce = 4;  // of F16 weights, of a warp

// The tiles of one product in shared memory.
struct TileSource {
  const CudaMatrix& w;
  Tiles tiles;
  const char* kept;  // the first tile, in shared memory

  // This lane's part of the j-th tile.
  __device__ __forceinline__ const uint4* At(int j) const {
    const char* tile = kept + static_cast<size_t>(j) * TileBytes(w.type, w.k);
    return reinterpret_cast<const uint4*>(tile) + LaneIndex();
  }
};

// One warp multiplies `count` <= kTilesAtOnce tiles of F16 weights from `first` on, as chains side
// by side. Chains of tiles beyond `count` cost next to nothing: each chain waits only for itself.
// `a`: rows of F16 pairs, `ld` words apart. store(row, column, v of column, v of column + 1).
template <class Store>
__device__ __forceinline__ void MultiplyTilesF16(const TileSource& source, int first, int count,
                                                 const uint32_t* a, int ld, int rows,
                                                 const Store& store) {
  constexpr int kTiles = kTilesAtOnce;
  constexpr int kAhead = 2;  // 32 k each
  const int g = LaneIndex() / 4, t = LaneIndex() % 4;
  const int steps = (source.w.k + 31) / 32;
  const bool upper = rows > 8;
  // Rows beyond the last repeat the last: their sums are not stored.
  const uint32_t* low = a + (g < rows ? g : rows - 1) * ld + t;
  const uint32_t* high = a + (g + 8 < rows ? g + 8 : rows - 1) * ld + t;
  const auto column = [&](int j) { return 8 * source.tiles.At(first + j) + 2 * t; };
  const uint4* w[kTiles];
  float sum[kTiles][4];
  uint4 b[kAhead][kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    w[j] = source.At(first + j);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const bool there = j < count && column(j) + c < source.w.n;
      sum[j][c] = sum[j][c + 2] = there ? __ldg(source.w.bias + column(j) + c) : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      b[s][j] = make_uint4(0, 0, 0, 0);
      if (j < count && s < steps) b[s][j] = w[j][s * kWarpLanes];
    }
  }
#pragma unroll 1
  for (int begin = 0; begin < steps; begin += kAhead) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const int step = begin + s;
      if (step >= steps) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 16 * step + 8 * half;
        const uint32_t fa[4] = {low[at], upper ? high[at] : 0, low[at + 4],
                                upper ? high[at + 4] : 0};
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint32_t fb[2] = {half == 0 ? b[s][j].x : b[s][j].z,
                                  half == 0 ? b[s][j].y : b[s][j].w};
          MmaF16(sum[j], fa, fb);
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (j < count && step + kAhead < steps) {
          b[s][j] = w[j][(step + kAhead) * kWarpLanes];
        }
      }
    }
  }
  // One call of store(): its code is long, and a loop cannot index registers.
#pragma unroll 1
  for (int i = 0; i < (upper ? 2 : 1) * count; ++i) {
    const int j = i < count ? i : i - count, row = i < count ? g : g + 8;
    float v0 = 0, v1 = 0;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      if (k != j) continue;
      v0 = i < count ? sum[k][0] : sum[k][2];
      v1 = i < count ? sum[k][1] : sum[k][3];
    }
    if (row < rows && column(j) < source.w.n) store(row, column(j), v0, v1);
  }
}

// Multiplies all tiles; a warp takes neighbouring tiles. store() may be called for columns behind
// n, with sum 0.
template <class Store>
__device__ void MultiplyF16(const TileSource& source, const uint32_t* a, int ld, int rows,
                            const Store& store) {
  const int count = source.tiles.all(), each = (count + kLatencyWarps - 1) / kLatencyWarps;
  const int begin = WarpIndex() * each, end = begin + each < count ? begin + each : count;
#pragma unroll 1
  for (int first = begin; first < end; first += kTilesAtOnce) {
    const int left = end - first;
    MultiplyTilesF16(source, first, left < kTilesAtOnce ? left : kTilesAtOnce, a, ld, rows, store);
  }
}

// Multiplies all tiles of float32 weights; a warp takes 32 columns of up to four rows at a time.
// `a`: rows of floats, `ld` apart, readable up to k rounded up to 4. store(row, column, v).
template <class Store>
__device__ void MultiplyF32(const TileSource& source, const float* a, int ld, int rows,
                            const Store& store) {
  constexpr int kRows = 4;
  const int groups = (rows + kRows - 1) / kRows, items = source.tiles.all() * groups;
  const int steps = (source.w.k + 3) / 4;
#pragma unroll 1
  for (int item = WarpIndex(); item < items; item += kLatencyWarps) {
    const int tile = item / groups, first = item % groups * kRows;
    const uint4* w = source.At(tile);
    const int column = 32 * source.tiles.At(tile) + LaneIndex();
    const float* at[kRows];
    float sum[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      at[i] = a + (first + i < rows ? first + i : rows - 1) * ld;
      sum[i] = column < source.w.n ? __ldg(source.w.bias + column) : 0.0f;
    }
#pragma unroll 4
    for (int s = 0; s < steps; ++s) {
      const uint4 b = w[static_cast<size_t>(s) * kWarpLanes];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(at[i] + 4 * s);
        sum[i] = fmaf(x.x, __uint_as_float(b.x), sum[i]);
        sum[i] = fmaf(x.y, __uint_as_float(b.y), sum[i]);
        sum[i] = fmaf(x.z, __uint_as_float(b.z), sum[i]);
        sum[i] = fmaf(x.w, __uint_as_float(b.w), sum[i]);
      }
    }
    if (column >= source.w.n) continue;
#pragma unroll 1
    for (int i = 0; i < kRows && first + i < rows; ++i) {
      store(first + i, column, i == 0 ? sum[0] : i == 1 ? sum[1] : i == 2 ? sum[2] : sum[3]);
    }
  }
}

}  // namespace rivulet::kernels
