// SPDX-License-Identifier: Apache-2.0
// What both products of gemm_cuda.h share: how a block loads its rows of a, normalises them, and
// stores its rows of the output. Included by gemm_*_cuda.cu only.
//
// A block of four warps computes a tile of rows x columns. It walks over k in chunks: the chunk of
// a is normalised, converted and put into shared memory by all threads together; the warps' own
// columns of W come straight from memory into registers (the packing is made for it), a chunk
// ahead. Two buffers in shared memory and one barrier a chunk: a buffer is written again only after
// a barrier that everyone passes after having read it.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/common/row_statistics_cuda.h"
#include "kernels/cuda/gemm/gemm_sums_cuda.h"

namespace rivulet::kernels {

// Whether so many blocks are enough for a machine with `places` for them. A tenth may be missing:
// row and column counts are powers of two, which just miss the 132 multiprocessors of an H100, and
// the next smaller tile reads the weights twice as often.
constexpr bool FillsMachine(int64_t blocks, int64_t places) { return 10 * blocks >= 9 * places; }

// How a block loads its rows of a: thread i takes float4 i % kPerRow of rows i / kPerRow,
// i / kPerRow + kRowStep, ...
template <int kRows, int kChunk, int kThreads = kGemmThreads>
struct Loader {
  static constexpr int kPerRow = kChunk / 4;
  static constexpr int kRowStep = kThreads / kPerRow;
  static constexpr int kLoads = kRows / kRowStep;
  static_assert(kThreads % kPerRow == 0 && kRows % kRowStep == 0);

  int row, column;     // of this thread's first float4 in the tile
  int source[kLoads];  // rows of a; -1: none

  __device__ Loader(const CudaGemmArgs& p, int first_row)
      : row(static_cast<int>(threadIdx.x) / kPerRow),
        column(static_cast<int>(threadIdx.x) % kPerRow * 4) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = first_row + row + i * kRowStep;
      source[i] = r >= p.rows ? -1 : p.gather == nullptr ? r : p.gather[r];
    }
  }

  // Raw values of the chunk that begins at `k`; zero where there is no row or column.
  __device__ void Load(const CudaGemmArgs& p, int k, float4 (&v)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      v[i] = make_float4(0, 0, 0, 0);
      if (source[i] >= 0 && k + column < p.w.k) {
        v[i] = *reinterpret_cast<const float4*>(p.a + At(source[i], p.lda, k + column));
      }
    }
  }

  // Zeroes columns that are not there, and normalises where asked for. `statistics`: of the tile's
  // rows, in shared memory.
  __device__ void Finish(const CudaGemmArgs& p, int first_row, int k, bool write_norm,
                         const RowStatistics* statistics, float4 (&v)[kLoads]) const {
    const int left = p.w.k - k - column;  // columns of this float4 that exist
    const float* weight = p.norm_weight == nullptr ? nullptr : p.norm_weight + k + column;
    float w[4] = {}, b[4] = {};
    if (weight != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j < left) w[j] = weight[j], b[j] = p.norm_bias[k + column + j];
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = row + i * kRowStep;
      if (source[i] < 0) continue;  // zero already
      float x[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (weight != nullptr) x[j] = Normalized(x[j], statistics[r], w[j], b[j]);
        if (j >= left) x[j] = 0;
      }
      v[i] = make_float4(x[0], x[1], x[2], x[3]);
      if (!write_norm) continue;
      float* out = p.norm_out + At(first_row + r, p.ld_norm_out, k + column);
      if (left >= 4) {
        *reinterpret_cast<float4*>(out) = v[i];
      } else {
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (j < left) out[j] = x[j];
        }
      }
    }
  }
};

// Layer norm's statistics of the tile's rows, a warp's up to four rows at a time. Ends with a
// barrier.
template <int kRows, int kWarps = kGemmWarps>
__device__ void TileStatistics(const CudaGemmArgs& p, int first_row, RowStatistics* statistics) {
  constexpr int kAtOnce = kRows / kWarps < 4 ? kRows / kWarps : 4;
#pragma unroll 1
  for (int turn = 0; turn < kRows; turn += kAtOnce * kWarps) {  // as often in every warp
    const int first = turn + WarpIndex();
    const float* x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // A row that is not there repeats the last: nobody reads its statistics.
      int r = first_row + first + i * kWarps;
      r = r < p.rows ? r : p.rows - 1;
      x[i] = p.a + At(p.gather == nullptr ? r : p.gather[r], p.lda);
    }
    RowStatistics s[kAtOnce];
    NormalizeStatistics(x, p.w.k, p.norm_eps, s);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (LaneIndex() == 0) statistics[first + i * kWarps] = s[i];
    }
  }
  __syncthreads();
}

// A block's place: column blocks are neighbours, so that they find their rows of a in the cache.
struct Place {
  int first_row, first_column;
};
template <int kRows, int kColumns>
__device__ Place BlockPlace(int n) {
  const int across = (n + kColumns - 1) / kColumns, b = static_cast<int>(blockIdx.x);
  return {b / across * kRows, b % across * kColumns};
}

template <class Shape>
cudaError_t StartGemm(void (*kernel)(CudaGemmArgs), const CudaLaunch& launch,
                      const CudaGemmArgs& args) {
  const int64_t down = (int64_t{args.rows} + Shape::kRows - 1) / Shape::kRows;
  const int64_t across = (int64_t{args.w.n} + Shape::kColumns - 1) / Shape::kColumns;
  return LaunchBlocks(launch, kernel, down * across, kGemmThreads, Shape::kShared, args);
}

struct CudaTileSize {
  int rows, columns;
};
// Of tile shape 0 .. 2, from small to large.
CudaTileSize GemmF16Tile(int tile);
CudaTileSize GemmF32Tile(int tile);
cudaError_t PrepareGemmF16();
cudaError_t PrepareGemmF32();
// REQUIRES: CheckGemmCuda is satisfied, rows >= 1.
cudaError_t StartGemmF16(int tile, const CudaLaunch& launch, const CudaGemmArgs& args);
cudaError_t StartGemmF32(int tile, const CudaLaunch& launch, const CudaGemmArgs& args);

}  // namespace rivulet::kernels
