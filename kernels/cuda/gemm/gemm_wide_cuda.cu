// SPDX-License-Identifier: Apache-2.0
//   out[r][c] = epilogue( b[c] + sum_k a[r][k] W[c][k] )      a in F16, W in F16 or
// f16(q s) of integers
#include "kernels/cuda/common/async_copy_cuda.h"
#include "kernels/cuda/gemm/gemm_tile_cuda.h"
#include "kernels/cuda/gemm/gemm_weights_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"

namespace rivulet::kernels {
namespace {

int tile_for_test = -1;

// kDown x kAcross warps, each of 16 kHigh rows x 8 kWide columns; kS chunks in shared memory.
template <int kD, int kA, int kH, int kW, int kS, class W = HalfWeights>
struct WideShape {
  using Weights = W;
  static constexpr int kAcross = kA, kHigh = kH, kWide = kW;
  static constexpr int kThreads = kD * kA * kWarpLanes;
  static constexpr int kRows = 16 * kD * kH, kColumns = 8 * kA * kW;
  static constexpr int kChunk = 64;  // k
  static constexpr int kStages = kS;
  static constexpr int kPieces = 8;                   // of 16 bytes, in a row of a chunk of a
  static constexpr int kPerRow = kThreads / kPieces;  // rows that the threads load at once
  // Pieces of a chunk of a, then of W: [column / 8][k / 32][lane], and their scales, a piece for
  // each [column / 8][k / 32].
  static constexpr int kBlocks = kColumns / 8 * 2, kScales = W::kScaled ? kBlocks : 0;
  static constexpr int kBlockPieces = kWarpLanes * static_cast<int>(sizeof(typename W::Lane)) / 16;
  static constexpr int kAPieces = kRows * kPieces, kBPieces = kBlocks * kBlockPieces;
  static constexpr int kStagePieces = kAPieces + kBPieces + kScales;
  static constexpr size_t kShared = size_t{kStages} * kStagePieces * 16;
  static constexpr int kPairs = kH * 2 * kW;  // of neighbouring sums that a thread has
  static_assert(size_t{kPairs} * kThreads * sizeof(float2) <= kShared);
};
// A shape for either type of weights.
template <int kD, int kA, int kH, int kW, int kS>
struct Tile {
  template <class W>
  using Of = WideShape<kD, kA, kH, kW, kS, W>;
};
// With few blocks, a block has to keep many chunks in flight.
struct NarrowTile : Tile<1, 4, 1, 1, 12> {};
struct LowTile : Tile<2, 2, 1, 2, 8> {};
struct SmallTile : Tile<2, 2, 2, 4, 3> {};
struct MiddleTile : Tile<2, 2, 4, 4, 3> {};
struct LargeTile : Tile<2, 2, 4, 8, 3> {};

// Copies a chunk of W, as packed; zeros beyond its columns. Fully unrolled, this loop and the loop
// of BringRows would keep an address for each copy in registers that the sums need.
template <class Shape, class P>
__device__ __forceinline__ void BringWeights(const P& p, int first_column, int chunk,
                                             uint4* shared) {
  using Weights = typename Shape::Weights;
  uint4* to = shared + chunk % Shape::kStages * Shape::kStagePieces + Shape::kAPieces;
  const auto bring = [&](uint4* piece, int block, const auto& from) {
    const int panel = first_column / 8 + block / 2, step = 2 * chunk + block % 2;
    const bool exists = panel < CudaPanels(p.w.n) && step < CudaSteps(p.w.k);
    CopyAsyncPadded(piece, exists ? from(panel, step) : p.w.packed, exists ? 16 : 0);
  };
#pragma unroll 2
  for (int i = 0; i < Shape::kBPieces; i += Shape::kThreads) {
    const int piece = i + static_cast<int>(threadIdx.x);
    bring(to + piece, piece / Shape::kBlockPieces, [&](int panel, int step) -> const void* {
      return reinterpret_cast<const uint4*>(Weights::Block(p.w, panel, step)) +
             piece % Shape::kBlockPieces;
    });
  }
  if constexpr (Weights::kScaled) {
    static_assert(Shape::kScales <= Shape::kThreads);
    const int block = static_cast<int>(threadIdx.x);
    if (block < Shape::kScales) {
      bring(to + Shape::kBPieces + block, block,
            [&](int panel, int step) -> const void* { return Weights::Scales(p.w, panel, step); });
    }
  }
}

// Copies a chunk of a. Piece j of row r is stored at j ^ (r % 8): the eight rows of an ldmatrix
// tile then lie in different banks.
template <class Shape, bool kGather, class P>
__device__ __forceinline__ void BringRows(const P& p, int first_row, int chunk, uint4* shared) {
  uint4* to = shared + chunk % Shape::kStages * Shape::kStagePieces;
  const int piece = static_cast<int>(threadIdx.x) % Shape::kPieces;
  const int k = chunk * Shape::kChunk + 8 * piece;
  const int left = 2 * (p.w.k - k), bytes = left < 0 ? 0 : left < 16 ? left : 16;
#pragma unroll 2
  for (int i = 0; i < Shape::kRows; i += Shape::kPerRow) {
    const int row = i + static_cast<int>(threadIdx.x) / Shape::kPieces, r = first_row + row;
    const bool exists = r < p.rows && bytes > 0;
    int source = exists ? r : 0;
    if constexpr (kGather) source = exists ? p.gather[r] : 0;
    const uint16_t* from = exists ? p.a + At(source, p.lda, k) : p.a;
    CopyAsyncPadded(to + row * Shape::kPieces + (piece ^ (row % 8)), from, exists ? bytes : 0);
  }
}

// The warp's share of a chunk with `steps` steps of 32 k.
template <class Shape>
__device__ __forceinline__ void MultiplyChunk(const uint4* a, int steps,
                                              float (&sum)[Shape::kHigh][Shape::kWide][4]) {
  const int lane = LaneIndex();
  const int first_row = WarpIndex() / Shape::kAcross * Shape::kHigh * 16;
  const int first_panel = WarpIndex() % Shape::kAcross * Shape::kWide;
  using Weights = typename Shape::Weights;
  const auto* w = reinterpret_cast<const typename Weights::Lane*>(a + Shape::kAPieces);
  const auto* scales = reinterpret_cast<const uint16_t*>(a + Shape::kAPieces + Shape::kBPieces);
  // Lane 8 i + j names row j of tile i: tiles 1 and 3 are eight rows further down, 2 and 3 eight k
  // on.
  const int row = first_row + lane % 16, high = lane / 16;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    if (step >= steps) break;
    typename Weights::Piece b[Shape::kWide];
#pragma unroll
    for (int j = 0; j < Shape::kWide; ++j) {
      b[j] = Weights::Take(w, scales, 2 * (first_panel + j) + step);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t fa[Shape::kHigh][4];
#pragma unroll
      for (int i = 0; i < Shape::kHigh; ++i) {
        const int piece = (4 * step + 2 * half + high) ^ (row % 8);
        LoadTiles(fa[i], a + (row + 16 * i) * Shape::kPieces + piece);
      }
#pragma unroll
      for (int j = 0; j < Shape::kWide; ++j) {
        uint32_t fb[2];
        Weights::Halves(b[j], half, fb);
#pragma unroll
        for (int i = 0; i < Shape::kHigh; ++i) MmaF16(sum[i][j], fa[i], fb);
      }
    }
  }
}

// Two neighbouring outputs; the second may be outside the matrix.
template <class To>
__device__ __forceinline__ void StorePair(To* to, float2 v, bool both) {
  if constexpr (sizeof(To) == 4) {
    if (both) {
      *reinterpret_cast<float2*>(to) = v;
    } else {
      *to = v.x;
    }
  } else {
    const uint32_t halves = PackHalves(v.x, v.y);
    if (both) {
      *reinterpret_cast<uint32_t*>(to) = halves;
    } else {
      *to = static_cast<uint16_t>(halves);
    }
  }
}

// The thread's pairs of sums, from shared memory to the output. Loops that are hardly unrolled keep
// the code short; the sums are in shared memory because a loop cannot index registers.
template <class Shape, bool kGather, class P>
class PairWriter {
 public:
  __device__ PairWriter(const P& p, int row, int column, const float2* sums)
      : p_(p), row_(row), column_(column), sums_(sums) {}

  __device__ void Write() const {
    if constexpr (P::kAlone) {
      if (p_.epilogue == Epilogue::kResidual) {
#pragma unroll 1
        for (int first = 0; first < Shape::kPairs; first += kAtOnce) AddResiduals(first);
        return;
      }
    }
#pragma unroll 2
    for (int i = 0; i < Shape::kPairs; ++i) WriteActivated(i);
  }

 private:
  __device__ __forceinline__ int Row(int i) const { return row_ + i / Shape::kWide * 8; }
  __device__ __forceinline__ int Column(int i) const { return column_ + i % Shape::kWide * 8; }
  __device__ __forceinline__ bool Exists(int i) const {
    return Row(i) < p_.rows && Column(i) < p_.w.n;
  }
  __device__ __forceinline__ void Store(int i, float2 v) const {
    const size_t at = At(Row(i), p_.ld_out, Column(i));
    const bool both = Column(i) + 1 < p_.w.n;
    if (p_.out_half != nullptr) {
      StorePair(p_.out_half + at, v, both);
    } else {
      StorePair(p_.out + at, v, both);
    }
  }
  // Loads first: the compiler cannot move loads ahead of stores that may alias them.
  __device__ __forceinline__ void AddResiduals(int first) const {
    float2 add[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      add[i] = make_float2(0, 0);
      if (!Exists(first + i)) continue;
      const int r = Row(first + i), c = Column(first + i);
      const float* from = p_.residual + At(kGather ? p_.gather[r] : r, p_.ld_residual, c);
      add[i].x = from[0];
      if (c + 1 < p_.w.n) add[i].y = from[1];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!Exists(first + i)) continue;
      const float2 v = sums_[(first + i) * Shape::kThreads];
      Store(first + i, make_float2(v.x + add[i].x, v.y + add[i].y));
    }
  }
  __device__ __forceinline__ void WriteActivated(int i) const {
    if (!Exists(i)) return;
    const float2 v = sums_[i * Shape::kThreads];
    Store(i, make_float2(Finished(p_, v.x), Finished(p_, v.y)));
  }

  static constexpr int kAtOnce = Shape::kPairs < 8 ? Shape::kPairs : 8;
  static_assert(Shape::kPairs % kAtOnce == 0);
  const P& p_;
  // The place of the first pair; pair i is 8 (i % kWide) columns and 8 (i / kWide) rows further.
  int row_, column_;
  const float2* sums_;
};

// `block`: among those of the product.
template <class Shape, bool kGather, class P>
__device__ __forceinline__ void WideGemmBlock(const P& p, int block) {
  const Place at = BlockPlace<Shape::kRows, Shape::kColumns>(p.w.n, block);
  auto* shared = static_cast<uint4*>(SharedMemory());
  const int k_steps = CudaSteps(p.w.k), chunks = (k_steps + 1) / 2;
#pragma unroll
  for (int s = 0; s < Shape::kStages - 1; ++s) {
    BringWeights<Shape>(p, at.first_column, s, shared);
  }
  const int first_column =
      at.first_column + WarpIndex() % Shape::kAcross * Shape::kWide * 8 + 2 * (LaneIndex() % 4);
  float sum[Shape::kHigh][Shape::kWide][4];
#pragma unroll
  for (int j = 0; j < Shape::kWide; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = first_column + 8 * j + c;
      const float bias = column < p.w.n ? __ldcg(p.w.bias + column) : 0.0f;
#pragma unroll
      for (int i = 0; i < Shape::kHigh; ++i) sum[i][j][c] = sum[i][j][c + 2] = bias;
    }
  }
  WaitForPredecessor();
  // The first of these groups holds the weights from above, too.
#pragma unroll
  for (int s = 0; s < Shape::kStages - 1; ++s) {
    BringRows<Shape, kGather>(p, at.first_row, s, shared);
    CommitCopies();
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    WaitForCopies<Shape::kStages - 2>();
    __syncthreads();  // the chunk has arrived for all threads, and all are done with the one before
    const int next = chunk + Shape::kStages - 1;
    if (next < chunks) {
      BringWeights<Shape>(p, at.first_column, next, shared);
      BringRows<Shape, kGather>(p, at.first_row, next, shared);
    }
    CommitCopies();  // empty at the end, so that one group is closed per chunk
    MultiplyChunk<Shape>(shared + chunk % Shape::kStages * Shape::kStagePieces, k_steps - 2 * chunk,
                         sum);
  }
  WaitForCopies<0>();
  __syncthreads();  // all threads are done with the chunks: their memory is free

  auto* sums = reinterpret_cast<float2*>(shared) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < Shape::kHigh; ++i) {
#pragma unroll
    for (int down = 0; down < 2; ++down) {
#pragma unroll
      for (int j = 0; j < Shape::kWide; ++j) {
        sums[((2 * i + down) * Shape::kWide + j) * Shape::kThreads] =
            make_float2(sum[i][j][2 * down], sum[i][j][2 * down + 1]);
      }
    }
  }
  const int first_row =
      at.first_row + WarpIndex() / Shape::kAcross * Shape::kHigh * 16 + LaneIndex() / 4;
  PairWriter<Shape, kGather, P>(p, first_row, first_column, sums).Write();
}

template <class Shape, bool kGather>
__global__ void __launch_bounds__(Shape::kThreads, 2) WideGemm(CudaWideGemmArgs p) {
  WideGemmBlock<Shape, kGather>(p, static_cast<int>(blockIdx.x));
}
// The kernel of a group, whose products may have either type of weights.
template <class T>
__global__ void __launch_bounds__(kGemmThreads, 2)
    GroupWideGemm(const __grid_constant__ CudaGroupGrid<uint16_t> grid) {
  const int i = GroupMember(grid), block = static_cast<int>(blockIdx.x) - grid.first[i];
  WithWeights(grid.of[i].w.type, [&](auto weights) {
    using Shape = typename T::template Of<decltype(weights)>;
    static_assert(Shape::kThreads == kGemmThreads);
    WideGemmBlock<Shape, false>(grid.of[i], block);
  });
}

template <class Shape, class Args>
int64_t Blocks(const Args& args) {
  return TileBlocks(args, Shape::kRows, Shape::kColumns);
}

template <class Shape, bool kGather = false>
cudaError_t Start(const CudaLaunch& launch, const CudaWideGemmArgs& args) {
  return LaunchBlocks(launch, WideGemm<Shape, kGather>, Blocks<Shape>(args), Shape::kThreads,
                      Shape::kShared, args);
}
template <class T>
cudaError_t StartGroup(const CudaLaunch& launch, const CudaProductGroup<uint16_t>& group) {
  using Shape = typename T::template Of<HalfWeights>;
  static_assert(Shape::kShared >= T::template Of<Int8Weights>::kShared);
  return LaunchBlocks(launch, GroupWideGemm<T>, Blocks<Shape>(group), kGemmThreads, Shape::kShared,
                      GroupGrid(group, Shape::kRows, Shape::kColumns));
}

template <class T>
cudaError_t Prepare() {
  using Half = typename T::template Of<HalfWeights>;
  using Int8 = typename T::template Of<Int8Weights>;
  return FirstError({PrepareLargeKernel(WideGemm<Half, false>, Half::kShared),
                     PrepareLargeKernel(WideGemm<Int8, false>, Int8::kShared),
                     PrepareLargeKernel(GroupWideGemm<T>, Half::kShared)});
}

// Calls f with the tile.
template <class F>
cudaError_t WithTile(int tile, const F& f) {
  switch (tile) {
    case 0:
      return f(NarrowTile());
    case 1:
      return f(LowTile());
    case 2:
      return f(SmallTile());
    case 3:
      return f(MiddleTile());
    default:
      return f(LargeTile());
  }
}

// Whether more than half of the tile's rows exist, and there are `enough` blocks.
template <class T, class Args>
bool Fits(const Args& args, int rows, int64_t enough) {
  using Shape = typename T::template Of<HalfWeights>;
  return 2 * int64_t{rows} > Shape::kRows && FillsMachine(Blocks<Shape>(args), enough);
}

// The largest tile that fits. Of tiles with 128 rows there are enough with 1.5 blocks a
// multiprocessor, so that half of the machine has two blocks to switch between.
template <class Args>
int TileOf(const CudaLaunch& launch, const Args& args, int rows) {
  const int64_t enough = int64_t{launch.multiprocessors} * 3 / 2;
  return tile_for_test >= 0                                    ? tile_for_test
         : Fits<LargeTile>(args, rows, enough)                 ? 4
         : Fits<MiddleTile>(args, rows, enough)                ? 3
         : Fits<SmallTile>(args, rows, launch.multiprocessors) ? 2
         : 2 * rows > LowTile::Of<HalfWeights>::kRows          ? 1
                                                               : 0;
}
template <class W>
cudaError_t StartOf(const CudaLaunch& launch, const CudaWideGemmArgs& args) {
  if (args.gather != nullptr) return Start<SmallTile::Of<W>, true>(launch, args);
  return WithTile(TileOf(launch, args, args.rows), [&](auto tile) {
    return Start<typename decltype(tile)::template Of<W>>(launch, args);
  });
}

bool Aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

const char* CheckWideGemmCuda(const CudaWideGemmArgs& args) {
  if (args.w.type != WeightType::kF16 && args.w.type != WeightType::kInt8) {
    return "weights are F16 or int8";
  }
  if (args.w.packed == nullptr || args.w.bias == nullptr) return "weights and bias must be set";
  if (args.w.k < 1 || args.w.n < 1 || args.rows < 0) return "k, n >= 1 and rows >= 0";
  if (args.a == nullptr) return "a must be set";
  if ((args.out == nullptr) == (args.out_half == nullptr)) return "one of out and out_half is set";
  if (args.lda < args.w.k || args.ld_out < args.w.n) return "lda >= k and ld_out >= n";
  if (!Aligned(args.a, 16) || args.lda % 8 != 0) {
    return "a is 16-byte aligned and lda a multiple of 8";
  }
  if (!Aligned(args.out, 8) || !Aligned(args.out_half, 4) || args.ld_out % 2 != 0) {
    return "out is 8-byte, out_half 4-byte aligned, and ld_out even";
  }
  if (args.epilogue == Epilogue::kScatter) return "kScatter is of the CPU alone";
  if (args.epilogue != Epilogue::kResidual) return nullptr;
  if (args.residual == nullptr || args.ld_residual < args.w.n)
    return "residual [.., n] must be set";
  return args.residual == args.out ? "out is not residual" : nullptr;
}

cudaError_t PrepareWideGemmCuda() {
  using Half = SmallTile::Of<HalfWeights>;
  using Int8 = SmallTile::Of<Int8Weights>;
  return FirstError({PrepareLargeKernel(WideGemm<Half, true>, Half::kShared),
                     PrepareLargeKernel(WideGemm<Int8, true>, Int8::kShared), Prepare<NarrowTile>(),
                     Prepare<LowTile>(), Prepare<SmallTile>(), Prepare<MiddleTile>(),
                     Prepare<LargeTile>()});
}

cudaError_t WideGemmCuda(const CudaLaunch& launch, const CudaWideGemmArgs& args) {
  if (CheckWideGemmCuda(args) != nullptr) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  return args.w.type == WeightType::kInt8 ? StartOf<Int8Weights>(launch, args)
                                          : StartOf<HalfWeights>(launch, args);
}

const char* CheckGemmGroupCuda(const CudaProductGroup<uint16_t>& group) {
  return CheckGroup(group, [](const CudaGroupProduct<uint16_t>& p) {
    CudaWideGemmArgs args = AloneOf<CudaWideGemmArgs>(p);
    args.out_half = p.out_half;
    return CheckWideGemmCuda(args);
  });
}

cudaError_t GemmGroupCuda(const CudaLaunch& launch, const CudaProductGroup<uint16_t>& group) {
  if (CheckGemmGroupCuda(group) != nullptr) return cudaErrorInvalidValue;
  if (group.count == 0 || group.of[0].rows == 0) return cudaSuccess;
  return WithTile(TileOf(launch, group, group.of[0].rows),
                  [&](auto tile) { return StartGroup<decltype(tile)>(launch, group); });
}

void SetCudaWideGemmTileForTest(int tile) { tile_for_test = tile; }

}  // namespace rivulet::kernels
