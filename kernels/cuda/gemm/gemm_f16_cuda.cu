// SPDX-License-Identifier: Apache-2.0
//   out[r][c] = epilogue( b[c] + sum_k f16(norm(a[r])[k]) W[c][k] )      on the tensor cores
// with W in F16, or f16(q s) of integers, expanded in registers.
#include <algorithm>

#include "kernels/cuda/common/async_copy_cuda.h"
#include "kernels/cuda/gemm/gemm_tile_cuda.h"
#include "kernels/cuda/gemm/gemm_weights_cuda.h"

namespace rivulet::kernels {
namespace {

// F16: a warp computes kTiles x kTiles tiles of 16 x 8; a block 16 kTiles rows x 32 kTiles columns.
template <int kTiles>
struct F16Shape {
  static constexpr int kRows = 16 * kTiles, kColumns = 8 * kTiles * kGemmWarps,
                       kChunk = 256 / kTiles;
  static constexpr int kStride = kChunk + 8;  // halves; 8 more spread a fragment over all banks
  static constexpr int kSteps = kChunk / 32;  // of 32 k
  static constexpr int kSums = kTiles * kTiles * 4;  // of a thread
  static constexpr size_t kBuffers =
      size_t{2} * kRows * kStride * sizeof(uint16_t) + kRows * sizeof(RowStatistics);
  static constexpr size_t kStaged = StagedBytes(kSums);
  static constexpr size_t kShared = kBuffers > kStaged ? kBuffers : kStaged;
};

// The warp's weights of 32 k, the step-th of the matrix.
template <class Weights, int kTiles>
__device__ __forceinline__ void LoadWeights(const CudaMatrix& w, int step, int tile,
                                            typename Weights::Piece (&b)[kTiles]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const bool exists = step < CudaSteps(w.k) && tile + j < CudaPanels(w.n);
    b[j] = exists ? Weights::Load(w, tile + j, step) : Weights::Zero();
  }
}

// Puts a chunk of the rows into shared memory.
template <class Shape, class ALoader>
__device__ __forceinline__ void StoreRows(uint32_t* tile_a, const ALoader& loader,
                                          const float4 (&a)[ALoader::kLoads]) {
#pragma unroll
  for (int i = 0; i < ALoader::kLoads; ++i) {
    const int word = ((loader.row + i * ALoader::kRowStep) * Shape::kStride + loader.column) / 2;
    *reinterpret_cast<uint2*>(tile_a + word) =
        make_uint2(PackHalves(a[i].x, a[i].y), PackHalves(a[i].z, a[i].w));
  }
}

// Multiplies 32 k: `a` is this lane's place in the rows in shared memory, kHalves apart.
template <class Weights, int kHalves, int kTiles>
__device__ __forceinline__ void MultiplyF16(const uint32_t* a,
                                            const typename Weights::Piece (&b)[kTiles],
                                            float (&sum)[kTiles][kTiles][4]) {
  constexpr int kStride = kHalves / 2;  // words
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t fa[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint32_t* at = a + 8 * half + 16 * i * kStride;
      fa[i][0] = at[0];
      fa[i][1] = at[8 * kStride];
      fa[i][2] = at[4];
      fa[i][3] = at[8 * kStride + 4];
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      uint32_t fb[2];
      Weights::Halves(b[j], half, fb);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) MmaF16(sum[i][j], fa[i], fb);
    }
  }
}

// `block`: among those of the product.
template <int kTiles, class Weights, class P>
__device__ __forceinline__ void GemmF16Block(const P& p, int block) {
  using Shape = F16Shape<kTiles>;
  using ALoader = Loader<Shape::kRows, Shape::kChunk>;
  const Place at = BlockPlace<Shape::kRows, Shape::kColumns>(p.w.n, block);
  const int tile = at.first_column / 8 + WarpIndex() * kTiles, k_steps = CudaSteps(p.w.k);
  auto* shared = static_cast<uint32_t*>(SharedMemory());
  constexpr int kBuffer = Shape::kRows * Shape::kStride / 2;  // words
  auto* statistics = reinterpret_cast<RowStatistics*>(shared + 2 * kBuffer);

  typename Weights::Piece b[Shape::kSteps][kTiles];
#pragma unroll
  for (int s = 0; s < Shape::kSteps; ++s) LoadWeights<Weights>(p.w, s, tile, b[s]);
  float sum[kTiles][kTiles][4];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * (tile + j) + 2 * (LaneIndex() % 4) + c;
      const float bias = column < p.w.n ? __ldcg(p.w.bias + column) : 0.0f;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) sum[i][j][c] = sum[i][j][c + 2] = bias;
    }
  }
  WaitForPredecessor();

  const bool write_norm = BeginNorm<Shape::kRows>(p, at, statistics);
  const ALoader loader(p, at.first_row);
  float4 a[ALoader::kLoads];
  loader.Load(p, 0, a);
  int buffer = 0;
  for (int k = 0; k < p.w.k; k += Shape::kChunk, buffer ^= 1) {
    uint32_t* tile_a = shared + buffer * kBuffer;
    loader.Finish(p, at.first_row, k, write_norm, statistics, a);
    StoreRows<Shape, ALoader>(tile_a, loader, a);
    __syncthreads();
    if (k + Shape::kChunk < p.w.k) loader.Load(p, k + Shape::kChunk, a);
    const uint32_t* lane_a = tile_a + LaneIndex() / 4 * (Shape::kStride / 2) + LaneIndex() % 4;
#pragma unroll
    for (int s = 0; s < Shape::kSteps; ++s) {
      const int step = k / 32 + s;
      if (step >= k_steps) break;
      MultiplyF16<Weights, Shape::kStride>(lane_a + 16 * s, b[s], sum);
      // The registers are free: load the next chunk while this one is computed.
      LoadWeights<Weights>(p.w, step + Shape::kSteps, tile, b[s]);
    }
  }

  // Sum 4 (kTiles i + j) + 2 down + c.
  float sums[Shape::kSums];
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i) sums[i] = sum[i / (4 * kTiles)][i / 4 % kTiles][i % 4];
  const int row = at.first_row + LaneIndex() / 4, column = 8 * tile + 2 * (LaneIndex() % 4);
  WriteSums(p, sums, reinterpret_cast<float*>(shared), [&](int i) {
    return SumPlace{row + i / (4 * kTiles) * 16 + i / 2 % 2 * 8,
                    column + i / 4 % kTiles * 8 + i % 2};
  });
}

template <int kTiles, class Weights>
__global__ void __launch_bounds__(kGemmThreads, 2) GemmF16(CudaGemmArgs p) {
  GemmF16Block<kTiles, Weights>(p, static_cast<int>(blockIdx.x));
}
// The kernel of a group, whose products may have either type of weights.
template <int kTiles>
__global__ void __launch_bounds__(kGemmThreads, 2)
    GroupGemmF16(const __grid_constant__ CudaGroupGrid<float> grid) {
  const int i = GroupMember(grid), block = static_cast<int>(blockIdx.x) - grid.first[i];
  WithWeights(grid.of[i].w.type,
              [&](auto weights) { GemmF16Block<kTiles, decltype(weights)>(grid.of[i], block); });
}

// Few rows and columns: a block is one warp with 8 columns, so that there are enough blocks. All
// its weights are in flight to shared memory before the wait for the predecessor; the sums have the
// order of GemmF16.
struct FewShape {
  static constexpr int kRows = 16, kColumns = 8, kChunk = 128;
  static constexpr int kStride = kChunk + 8, kSteps = kChunk / 32;  // as F16Shape has them
  static constexpr int kBuffer = kRows * kStride / 2;               // words
  static constexpr size_t kRowsBytes =
      size_t{2} * kBuffer * sizeof(uint32_t) + kRows * sizeof(RowStatistics);
  static constexpr size_t kMostShared = size_t{96} << 10;  // every architecture has at least this
};
size_t FewShared(const CudaMatrix& w) {
  return FewShape::kRowsBytes + (w.type == WeightType::kInt8 ? Int8Weights::PanelBytes(w.k)
                                                             : HalfWeights::PanelBytes(w.k));
}
size_t FewShared(const CudaGemmArgs& args) { return FewShared(args.w); }
size_t FewShared(const CudaProductGroup<float>& group) {
  size_t most = 0;
  for (int i = 0; i < group.count; ++i) most = std::max(most, FewShared(group.of[i].w));
  return most;
}

template <class Args>
bool RunsAtOnce(const CudaLaunch& launch, const Args& args) {
  const int64_t blocks = TileBlocks(args, FewShape::kRows, FewShape::kColumns);
  return blocks * static_cast<int64_t>(FewShared(args)) <=
         launch.multiprocessors * static_cast<int64_t>(FewShape::kMostShared);
}

template <class Weights, class P>
__device__ __forceinline__ void GemmFewF16Block(const P& p, int block) {
  using Shape = FewShape;
  using ALoader = Loader<Shape::kRows, Shape::kChunk, kWarpLanes>;
  const Place at = BlockPlace<Shape::kRows, Shape::kColumns>(p.w.n, block);
  const int panel = at.first_column / 8, k_steps = CudaSteps(p.w.k);
  auto* slab = static_cast<uint4*>(SharedMemory());
  const int pieces = static_cast<int>(Weights::PanelBytes(p.w.k) / sizeof(uint4));
  const auto* from = reinterpret_cast<const uint4*>(Weights::Block(p.w, panel, 0));
#pragma unroll 4
  for (int i = LaneIndex(); i < pieces; i += kWarpLanes) CopyAsync<16>(slab + i, from + i);
  CommitCopies();
  auto* rows = reinterpret_cast<uint32_t*>(slab + pieces);
  auto* statistics = reinterpret_cast<RowStatistics*>(rows + 2 * Shape::kBuffer);
  const auto* w = reinterpret_cast<const typename Weights::Lane*>(slab);
  const auto* scales = reinterpret_cast<const uint16_t*>(w + k_steps * kWarpLanes);
  float sum[1][1][4];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int column = at.first_column + 2 * (LaneIndex() % 4) + c;
    sum[0][0][c] = sum[0][0][c + 2] = column < p.w.n ? __ldcg(p.w.bias + column) : 0.0f;
  }
  WaitForPredecessor();

  const bool write_norm = BeginNorm<Shape::kRows, 1>(p, at, statistics);
  const ALoader loader(p, at.first_row);
  float4 a[ALoader::kLoads];
  loader.Load(p, 0, a);
  WaitForCopies<0>();
  int buffer = 0;
  for (int k = 0; k < p.w.k; k += Shape::kChunk, buffer ^= 1) {
    uint32_t* tile_a = rows + buffer * Shape::kBuffer;
    loader.Finish(p, at.first_row, k, write_norm, statistics, a);
    StoreRows<Shape, ALoader>(tile_a, loader, a);
    __syncwarp();  // the rows, and at first the weights, have arrived for all lanes
    if (k + Shape::kChunk < p.w.k) loader.Load(p, k + Shape::kChunk, a);
    const uint32_t* lane_a = tile_a + LaneIndex() / 4 * (Shape::kStride / 2) + LaneIndex() % 4;
#pragma unroll
    for (int s = 0; s < Shape::kSteps; ++s) {
      const int step = k / 32 + s;
      if (step >= k_steps) break;
      const typename Weights::Piece b[1] = {Weights::Take(w, scales, step)};
      MultiplyF16<Weights, Shape::kStride>(lane_a + 16 * s, b, sum);
    }
  }
  const float sums[4] = {sum[0][0][0], sum[0][0][1], sum[0][0][2], sum[0][0][3]};
  const int row = at.first_row + LaneIndex() / 4, column = at.first_column + 2 * (LaneIndex() % 4);
  WriteSums(p, sums, nullptr, [&](int i) { return SumPlace{row + i / 2 * 8, column + i % 2}; });
}

template <class Weights>
__global__ void __launch_bounds__(kWarpLanes) GemmFewF16(CudaGemmArgs p) {
  GemmFewF16Block<Weights>(p, static_cast<int>(blockIdx.x));
}
__global__ void __launch_bounds__(kWarpLanes)
    GroupGemmFewF16(const __grid_constant__ CudaGroupGrid<float> grid) {
  const int i = GroupMember(grid), block = static_cast<int>(blockIdx.x) - grid.first[i];
  WithWeights(grid.of[i].w.type,
              [&](auto weights) { GemmFewF16Block<decltype(weights)>(grid.of[i], block); });
}

// The kernels of a product, and of a group.
template <class Weights>
struct Alone {
  static constexpr auto kOne = GemmF16<1, Weights>, kTwo = GemmF16<2, Weights>,
                        kFour = GemmF16<4, Weights>;
  static cudaError_t StartFew(const CudaLaunch& launch, const CudaGemmArgs& args) {
    return LaunchBlocks(launch, GemmFewF16<Weights>,
                        TileBlocks(args, FewShape::kRows, FewShape::kColumns), kWarpLanes,
                        FewShared(args), args);
  }
};
struct Grouped {
  static constexpr auto kOne = GroupGemmF16<1>, kTwo = GroupGemmF16<2>, kFour = GroupGemmF16<4>;
  static cudaError_t StartFew(const CudaLaunch& launch, const CudaProductGroup<float>& group) {
    return LaunchBlocks(launch, GroupGemmFewF16,
                        TileBlocks(group, FewShape::kRows, FewShape::kColumns), kWarpLanes,
                        FewShared(group), GroupGrid(group, FewShape::kRows, FewShape::kColumns));
  }
};

template <class Kernels, class Args>
cudaError_t Start(int tile, const CudaLaunch& launch, const Args& args) {
  if (tile > 2 && FewShared(args) > FewShape::kMostShared) tile = 0;
  switch (tile) {
    case 0:
      return StartGemm<F16Shape<1>>(Kernels::kOne, launch, args);
    case 1:
      return StartGemm<F16Shape<2>>(Kernels::kTwo, launch, args);
    case 2:
      return StartGemm<F16Shape<4>>(Kernels::kFour, launch, args);
    default:
      return Kernels::StartFew(launch, args);
  }
}

template <class Weights>
cudaError_t Prepare() {
  return FirstError({PrepareKernels(GemmF16<1, Weights>, GemmF16<2, Weights>, GemmF16<4, Weights>),
                     PrepareLargeKernel(GemmFewF16<Weights>, FewShape::kMostShared)});
}

}  // namespace

CudaTileSize GemmF16Tile(int tile) {
  return tile == 0   ? CudaTileSize{F16Shape<1>::kRows, F16Shape<1>::kColumns}
         : tile == 1 ? CudaTileSize{F16Shape<2>::kRows, F16Shape<2>::kColumns}
                     : CudaTileSize{F16Shape<4>::kRows, F16Shape<4>::kColumns};
}

bool GemmFewRunsAtOnce(const CudaLaunch& launch, const CudaGemmArgs& args) {
  return RunsAtOnce(launch, args);
}
bool GemmFewRunsAtOnce(const CudaLaunch& launch, const CudaProductGroup<float>& group) {
  return RunsAtOnce(launch, group);
}

cudaError_t PrepareGemmF16() {
  return FirstError({Prepare<HalfWeights>(), Prepare<Int8Weights>(),
                     PrepareKernels(GroupGemmF16<1>, GroupGemmF16<2>, GroupGemmF16<4>),
                     PrepareLargeKernel(GroupGemmFewF16, FewShape::kMostShared)});
}

cudaError_t StartGemmF16(int tile, const CudaLaunch& launch, const CudaGemmArgs& args) {
  return args.w.type == WeightType::kInt8 ? Start<Alone<Int8Weights>>(tile, launch, args)
                                          : Start<Alone<HalfWeights>>(tile, launch, args);
}

cudaError_t StartGemmF16(int tile, const CudaLaunch& launch, const CudaProductGroup<float>& group) {
  return Start<Grouped>(tile, launch, group);
}

}  // namespace rivulet::kernels
