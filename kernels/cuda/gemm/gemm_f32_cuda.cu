// SPDX-License-Identifier: Apache-2.0
//   out[r][c] = epilogue( b[c] + sum_k norm(a[r])[k] W[c][k] )      in float32
#include "kernels/cuda/gemm/gemm_tile_cuda.h"

namespace rivulet::kernels {
namespace {

// Float32: a lane has one column and kPerWarp rows. kDown warps are below each other in the tile,
// the rest beside them.
template <int kPerWarp, int kDown>
struct F32Shape {
  static constexpr int kAcross = kGemmWarps / kDown;
  static constexpr int kRows = kPerWarp * kDown, kColumns = kWarpLanes * kAcross;
  static constexpr int kChunk = kRows <= 16 ? 256 : 4096 / kRows;
  static constexpr int kStride = kChunk + 4;  // floats
  static constexpr size_t kShared =
      size_t{2} * kRows * kStride * sizeof(float) + kRows * sizeof(RowStatistics);
  static_assert(StagedBytes(kPerWarp) <= kShared);
};
constexpr int kAhead = 8;  // float4 of W that a lane holds in advance: 32 k

// By __ldcg: the compiler would move loads by __ldg behind WaitForPredecessor().
__device__ __forceinline__ float4 LoadF32Weights(const float4* __restrict__ w, int k4, int k4_end) {
  return k4 < k4_end ? __ldcg(w + static_cast<size_t>(k4) * kWarpLanes) : make_float4(0, 0, 0, 0);
}

template <int kPerWarp, int kDown, class P>
__device__ __forceinline__ void GemmF32Block(const P& p, int block) {
  using Shape = F32Shape<kPerWarp, kDown>;
  using ALoader = Loader<Shape::kRows, Shape::kChunk>;
  const Place at = BlockPlace<Shape::kRows, Shape::kColumns>(p.w.n, block);
  const int panel = at.first_column / kWarpLanes + WarpIndex() % Shape::kAcross;
  const int column = panel * kWarpLanes + LaneIndex();
  const int first = WarpIndex() / Shape::kAcross * kPerWarp;  // the warp's first row in the tile
  const int k4_all = (p.w.k + 3) / 4;
  const int k4_end = panel * kWarpLanes < p.w.n ? k4_all : 0;  // beyond n: no weights
  const float4* w =
      static_cast<const float4*>(p.w.packed) + At(panel, k4_all) * kWarpLanes + LaneIndex();
  auto* shared = static_cast<float*>(SharedMemory());
  constexpr int kBuffer = Shape::kRows * Shape::kStride;
  auto* statistics = reinterpret_cast<RowStatistics*>(shared + 2 * kBuffer);

  float4 b[kAhead];
#pragma unroll
  for (int s = 0; s < kAhead; ++s) b[s] = LoadF32Weights(w, s, k4_end);
  float sum[kPerWarp];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) sum[i] = column < p.w.n ? __ldcg(p.w.bias + column) : 0.0f;
  WaitForPredecessor();

  const bool write_norm = BeginNorm<Shape::kRows>(p, at, statistics);
  const ALoader loader(p, at.first_row);
  float4 a[ALoader::kLoads];
  loader.Load(p, 0, a);
  int buffer = 0;
  for (int k = 0; k < p.w.k; k += Shape::kChunk, buffer ^= 1) {
    float* tile_a = shared + buffer * kBuffer;
    loader.Finish(p, at.first_row, k, write_norm, statistics, a);
#pragma unroll
    for (int i = 0; i < ALoader::kLoads; ++i) {
      const int r = loader.row + i * ALoader::kRowStep;
      *reinterpret_cast<float4*>(tile_a + r * Shape::kStride + loader.column) = a[i];
    }
    __syncthreads();
    if (k + Shape::kChunk < p.w.k) loader.Load(p, k + Shape::kChunk, a);
    const int left4 = k4_end - k / 4;
    const int chunk4 =
        left4 < Shape::kChunk / 4 ? left4 : Shape::kChunk / 4;  // float4 of this chunk
    for (int j = 0; j < chunk4; j += kAhead) {
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        if (j + s >= chunk4) break;
#pragma unroll
        for (int i = 0; i < kPerWarp; ++i) {
          const float4 x =
              *reinterpret_cast<const float4*>(tile_a + (first + i) * Shape::kStride + 4 * (j + s));
          sum[i] = fmaf(x.x, b[s].x, sum[i]);
          sum[i] = fmaf(x.y, b[s].y, sum[i]);
          sum[i] = fmaf(x.z, b[s].z, sum[i]);
          sum[i] = fmaf(x.w, b[s].w, sum[i]);
        }
        b[s] = LoadF32Weights(w, k / 4 + j + s + kAhead, k4_end);
      }
    }
  }
  WriteSums(p, sum, shared, [&](int i) { return SumPlace{at.first_row + first + i, column}; });
}

template <int kPerWarp, int kDown>
__global__ void __launch_bounds__(kGemmThreads, 2) GemmF32(CudaGemmArgs p) {
  GemmF32Block<kPerWarp, kDown>(p, static_cast<int>(blockIdx.x));
}
template <int kPerWarp, int kDown>
__global__ void __launch_bounds__(kGemmThreads, 2)
    GroupGemmF32(const __grid_constant__ CudaGroupGrid<float> grid) {
  const int i = GroupMember(grid);
  GemmF32Block<kPerWarp, kDown>(grid.of[i], static_cast<int>(blockIdx.x) - grid.first[i]);
}

using SmallTile = F32Shape<4, 1>;
using MiddleTile = F32Shape<8, 2>;
using LargeTile = F32Shape<16, 4>;

}  // namespace

CudaTileSize GemmF32Tile(int tile) {
  return tile == 0   ? CudaTileSize{SmallTile::kRows, SmallTile::kColumns}
         : tile == 1 ? CudaTileSize{MiddleTile::kRows, MiddleTile::kColumns}
                     : CudaTileSize{LargeTile::kRows, LargeTile::kColumns};
}

cudaError_t PrepareGemmF32() {
  return PrepareKernels(GemmF32<4, 1>, GemmF32<8, 2>, GemmF32<16, 4>, GroupGemmF32<4, 1>,
                        GroupGemmF32<8, 2>, GroupGemmF32<16, 4>);
}

cudaError_t StartGemmF32(int tile, const CudaLaunch& launch, const CudaGemmArgs& args) {
  switch (tile) {
    case 1:
      return StartGemm<MiddleTile>(GemmF32<8, 2>, launch, args);
    case 2:
      return StartGemm<LargeTile>(GemmF32<16, 4>, launch, args);
    default:
      return StartGemm<SmallTile>(GemmF32<4, 1>, launch, args);
  }
}

cudaError_t StartGemmF32(int tile, const CudaLaunch& launch, const CudaProductGroup<float>& group) {
  switch (tile) {
    case 1:
      return StartGemm<MiddleTile>(GroupGemmF32<8, 2>, launch, group);
    case 2:
      return StartGemm<LargeTile>(GroupGemmF32<16, 4>, launch, group);
    default:
      return StartGemm<SmallTile>(GroupGemmF32<4, 1>, launch, group);
  }
}

}  // namespace rivulet::kernels
