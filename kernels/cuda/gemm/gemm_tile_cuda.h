// SPDX-License-Identifier: Apache-2.0
// Shared by both products of gemm_cuda.h: how a block loads its rows of a, normalises them, and
// stores its rows of the output. Included by gemm_*_cuda.cu only.
//
// A block of four warps computes a tile of rows x columns. It walks over k in chunks: the chunk of
// a is normalised, converted and put into shared memory by all threads together; the warps' own
// columns of W come straight from memory into registers (the packing is made for it), a chunk
// ahead. There are two buffers in shared memory and one barrier per chunk: a buffer is written
// again only after a barrier that all threads pass after reading it.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/common/row_statistics_cuda.h"
#include "kernels/cuda/gemm/gemm_sums_cuda.h"

namespace rivulet::kernels {

// Whether `blocks` blocks fill a machine with room for `places` blocks. A tenth may stay free: row
// and column counts are powers of two, which just miss the 132 multiprocessors of an H100, and the
// next smaller tile reads the weights twice as often.
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

  template <class P>
  __device__ Loader(const P& p, int first_row)
      : row(static_cast<int>(threadIdx.x) / kPerRow),
        column(static_cast<int>(threadIdx.x) % kPerRow * 4) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = first_row + row + i * kRowStep;
      source[i] = r >= p.rows ? -1 : r;
      if constexpr (P::kAlone) {
        if (source[i] >= 0 && p.gather != nullptr) source[i] = p.gather[r];
      }
    }
  }

  // Loads the raw values of the chunk that begins at `k`; zero beyond the rows or columns.
  template <class P>
  __device__ void Load(const P& p, int k, float4 (&v)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      v[i] = make_float4(0, 0, 0, 0);
      if (source[i] >= 0 && k + column < p.w.k) {
        v[i] = *reinterpret_cast<const float4*>(p.a + At(source[i], p.lda, k + column));
      }
    }
  }

  // Zeroes columns beyond k, and normalises if the product has a norm. `statistics`: of the tile's
  // rows, in shared memory.
  template <class P>
  __device__ void Finish(const P& p, int first_row, int k, bool write_norm,
                         const RowStatistics* statistics, float4 (&v)[kLoads]) const {
    if constexpr (!P::kAlone) {
      ZeroBeyond(p.w.k - k - column, v);
      return;
    } else {
      Normalize(p, first_row, k, write_norm, statistics, v);
    }
  }

 private:
  __device__ __forceinline__ void ZeroBeyond(int left, float4 (&v)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (left < 1) v[i].x = 0;
      if (left < 2) v[i].y = 0;
      if (left < 3) v[i].z = 0;
      if (left < 4) v[i].w = 0;
    }
  }
  __device__ __forceinline__ void Normalize(const CudaGemmArgs& p, int first_row, int k,
                                            bool write_norm, const RowStatistics* statistics,
                                            float4 (&v)[kLoads]) const {
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

// Layer norm's statistics of the tile's rows; a warp takes up to four rows at a time. Ends with a
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
      // A row beyond the last repeats the last: nothing reads its statistics.
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

// A block's place: neighbouring blocks differ in column, so that they find their rows of a in the
// cache.
struct Place {
  int first_row, first_column;
};

// Statistics of the tile's rows, where the product normalises them. Returns whether this block also
// writes the normalised rows.
template <int kRows, int kWarps = kGemmWarps, class P>
__device__ __forceinline__ bool BeginNorm(const P& p, Place at, RowStatistics* statistics) {
  if constexpr (P::kAlone) {
    if (p.norm_weight != nullptr) TileStatistics<kRows, kWarps>(p, at.first_row, statistics);
    return p.norm_out != nullptr && at.first_column == 0;
  } else {
    return false;
  }
}

template <int kRows, int kColumns>
__device__ Place BlockPlace(int n, int block) {
  const int across = (n + kColumns - 1) / kColumns;
  return {block / across * kRows, block % across * kColumns};
}

// The checks for groups of both kinds; `check` checks one product.
template <class In, class Check>
const char* CheckGroup(const CudaProductGroup<In>& group, const Check& check) {
  if (group.count < 0 || group.count > kMostGroupProducts) return "a group has 0 to 8 products";
  const auto f32 = [](const CudaGroupProduct<In>& p) { return p.w.type == WeightType::kF32; };
  for (int i = 0; i < group.count; ++i) {
    const CudaGroupProduct<In>& p = group.of[i];
    if (p.rows != group.of[0].rows) return "all products of a group have the same rows";
    if (f32(p) != f32(group.of[0])) return "all weights of a group are float32, or none";
    if (p.activation == Activation::kSilu || p.activation == Activation::kSoftplus) {
      return "no product of a group has this activation";
    }
    if (const char* const reason = check(p)) return reason;
  }
  return nullptr;
}
// A product of a group as a single product, for its checks, without out_half.
template <class Args, class In>
Args AloneOf(const CudaGroupProduct<In>& p) {
  Args args;
  args.w = p.w;
  args.a = p.a;
  args.out = p.out;
  args.rows = p.rows;
  args.lda = p.lda;
  args.ld_out = p.ld_out;
  return args;
}

// Blocks of `rows` x `columns` outputs that a product has.
template <class P>
int64_t TileBlocks(const P& p, int rows, int columns) {
  const int64_t down = (int64_t{p.rows} + rows - 1) / rows;
  return down * ((int64_t{p.w.n} + columns - 1) / columns);
}
template <class In>
int64_t TileBlocks(const CudaProductGroup<In>& group, int rows, int columns) {
  int64_t blocks = 0;
  for (int i = 0; i < group.count; ++i) blocks += TileBlocks(group.of[i], rows, columns);
  return blocks;
}

// The argument of a group's kernels: the blocks of product i begin at first[i], which for i beyond
// the last product is larger than any block.
template <class In>
struct CudaGroupGrid {
  CudaGroupProduct<In> of[kMostGroupProducts];
  int first[kMostGroupProducts];
};
template <class In>
CudaGroupGrid<In> GroupGrid(const CudaProductGroup<In>& group, int rows, int columns) {
  CudaGroupGrid<In> grid;
  int64_t first = 0;
  for (int i = 0; i < kMostGroupProducts; ++i) {
    grid.of[i] = group.of[i];
    grid.first[i] = i < group.count ? static_cast<int>(first) : INT32_MAX;
    if (i < group.count) first += TileBlocks(group.of[i], rows, columns);
  }
  return grid;
}
// Which product this block belongs to.
template <class In>
__device__ __forceinline__ int GroupMember(const CudaGroupGrid<In>& grid) {
  int member = 0;
#pragma unroll
  for (int i = 1; i < kMostGroupProducts; ++i) {
    member += static_cast<int>(blockIdx.x) >= grid.first[i] ? 1 : 0;
  }
  return member;
}

template <class Shape>
cudaError_t StartGemm(void (*kernel)(CudaGemmArgs), const CudaLaunch& launch,
                      const CudaGemmArgs& args) {
  return LaunchBlocks(launch, kernel, TileBlocks(args, Shape::kRows, Shape::kColumns), kGemmThreads,
                      Shape::kShared, args);
}
template <class Shape>
cudaError_t StartGemm(void (*kernel)(CudaGroupGrid<float>), const CudaLaunch& launch,
                      const CudaProductGroup<float>& group) {
  return LaunchBlocks(launch, kernel, TileBlocks(group, Shape::kRows, Shape::kColumns),
                      kGemmThreads, Shape::kShared,
                      GroupGrid(group, Shape::kRows, Shape::kColumns));
}

struct CudaTileSize {
  int rows, columns;
};
// With tile shape 0 .. 2, from small to large.
CudaTileSize GemmF16Tile(int tile);
CudaTileSize GemmF32Tile(int tile);
// Whether a machine holds all blocks of the last tile shape at once. F16 and integers.
bool GemmFewRunsAtOnce(const CudaLaunch& launch, const CudaGemmArgs& args);
bool GemmFewRunsAtOnce(const CudaLaunch& launch, const CudaProductGroup<float>& group);
cudaError_t PrepareGemmF16();
cudaError_t PrepareGemmF32();
// REQUIRES: CheckGemmCuda is satisfied, rows >= 1.
cudaError_t StartGemmF16(int tile, const CudaLaunch& launch, const CudaGemmArgs& args);
cudaError_t StartGemmF32(int tile, const CudaLaunch& launch, const CudaGemmArgs& args);
// REQUIRES: CheckGemmGroupCuda is satisfied, rows >= 1.
cudaError_t StartGemmF16(int tile, const CudaLaunch& launch, const CudaProductGroup<float>& group);
cudaError_t StartGemmF32(int tile, const CudaLaunch& launch, const CudaProductGroup<float>& group);

}  // namespace rivulet::kernels
