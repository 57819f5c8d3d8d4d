// SPDX-License-Identifier: Apache-2.0
//   out[r][c] = epilogue( b[c] + sum_k a[r][k] W[c][k] )      many rows, a and W in F16
#include "kernels/async_copy_cuda.h"
#include "kernels/gemm_tile_cuda.h"
#include "kernels/gemm_wide_cuda.h"

namespace rivulet::kernels {
namespace {

int tile_for_test = -1;

// kDown x kAcross warps, each of 16 kHigh rows x 8 kWide columns.
template <int kD, int kA, int kH, int kW>
struct WideShape {
  static constexpr int kAcross = kA, kHigh = kH, kWide = kW;
  static constexpr int kThreads = kD * kA * kWarpLanes;
  static constexpr int kRows = 16 * kD * kH, kColumns = 8 * kA * kW;
  static constexpr int kChunk = 64;                   // k
  static constexpr int kStages = 3;                   // chunks in shared memory
  static constexpr int kPieces = 8;                   // of 16 bytes, in a row of a chunk of a
  static constexpr int kPerRow = kThreads / kPieces;  // rows that the threads load at once
  // Pieces of a chunk of a, then of W: [column / 8][k / 32][lane].
  static constexpr int kAPieces = kRows * kPieces, kBPieces = kColumns / 8 * 2 * kWarpLanes;
  static constexpr size_t kShared = size_t{kStages} * (kAPieces + kBPieces) * 16;
};
using SmallTile = WideShape<2, 2, 2, 4>;
using MiddleTile = WideShape<2, 2, 4, 4>;
using LargeTile = WideShape<2, 2, 4, 8>;

// Brings a chunk of W, as it is packed; zeros beyond its columns.
template <class Shape>
__device__ __forceinline__ void BringWeights(const CudaWideGemmArgs& p, int first_column, int chunk,
                                             uint4* shared) {
  const int k_steps = (p.w.k + 31) / 32, panels = (p.w.n + 7) / 8;
  uint4* to =
      shared + chunk % Shape::kStages * (Shape::kAPieces + Shape::kBPieces) + Shape::kAPieces;
  const auto* w = static_cast<const uint4*>(p.w.packed);
#pragma unroll
  for (int i = 0; i < Shape::kBPieces; i += Shape::kThreads) {
    const int piece = i + static_cast<int>(threadIdx.x), block = piece / kWarpLanes;
    const int panel = first_column / 8 + block / 2, step = 2 * chunk + block % 2;
    const bool exists = panel < panels && step < k_steps;
    const uint4* from = exists ? w + At(panel, k_steps, step) * kWarpLanes + piece % kWarpLanes : w;
    CopyAsyncPadded(to + piece, from, exists ? 16 : 0);
  }
}

// Brings a chunk of a. Piece j of row r stands at j ^ (r % 8): the eight rows of an ldmatrix tile
// then lie in different banks.
template <class Shape, bool kGather>
__device__ __forceinline__ void BringRows(const CudaWideGemmArgs& p, int first_row, int chunk,
                                          uint4* shared) {
  uint4* to = shared + chunk % Shape::kStages * (Shape::kAPieces + Shape::kBPieces);
  const int piece = static_cast<int>(threadIdx.x) % Shape::kPieces;
  const int k = chunk * Shape::kChunk + 8 * piece;
  const int left = 2 * (p.w.k - k), bytes = left < 0 ? 0 : left < 16 ? left : 16;
#pragma unroll
  for (int i = 0; i < Shape::kRows; i += Shape::kPerRow) {
    const int row = i + static_cast<int>(threadIdx.x) / Shape::kPieces, r = first_row + row;
    const bool exists = r < p.rows && bytes > 0;
    const int source = !exists ? 0 : kGather ? p.gather[r] : r;
    const uint16_t* from = exists ? p.a + At(source, p.lda, k) : p.a;
    CopyAsyncPadded(to + row * Shape::kPieces + (piece ^ (row % 8)), from, exists ? bytes : 0);
  }
}

// The warp's share of a chunk, of which `steps` of 32 k exist.
template <class Shape>
__device__ __forceinline__ void MultiplyChunk(const uint4* a, int steps,
                                              float (&sum)[Shape::kHigh][Shape::kWide][4]) {
  const int lane = LaneIndex();
  const int first_row = WarpIndex() / Shape::kAcross * Shape::kHigh * 16;
  const int first_panel = WarpIndex() % Shape::kAcross * Shape::kWide;
  const uint4* w = a + Shape::kAPieces + first_panel * 2 * kWarpLanes + lane;
  // Lane 8 i + j names row j of tile i: tiles 1 and 3 are eight rows further down, 2 and 3 eight k
  // on.
  const int row = first_row + lane % 16, high = lane / 16;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    if (step >= steps) break;
    uint4 b[Shape::kWide];
#pragma unroll
    for (int j = 0; j < Shape::kWide; ++j) b[j] = w[(2 * j + step) * kWarpLanes];
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
        const uint32_t fb[2] = {half == 0 ? b[j].x : b[j].z, half == 0 ? b[j].y : b[j].w};
#pragma unroll
        for (int i = 0; i < Shape::kHigh; ++i) MmaF16(sum[i][j], fa[i], fb);
      }
    }
  }
}

// Two neighbouring outputs of row r; `column` is even.
template <bool kGather>
__device__ __forceinline__ void StorePair(const CudaWideGemmArgs& p, int r, int column, float x,
                                          float y) {
  if (r >= p.rows || column >= p.w.n) return;
  const bool both = column + 1 < p.w.n;
  float add_x = 0, add_y = 0;
  if (p.epilogue == Epilogue::kResidual) {
    const float* from = p.residual + At(kGather ? p.gather[r] : r, p.ld_residual, column);
    add_x = from[0];
    if (both) add_y = from[1];
  }
  x = Activated(p.epilogue, x), y = Activated(p.epilogue, y);
  if (p.epilogue == Epilogue::kResidual) x += add_x, y += add_y;
  const size_t at = At(r, p.ld_out, column);
  if (p.out_half != nullptr) {
    const uint32_t halves = PackHalves(x, y);
    if (both) {
      *reinterpret_cast<uint32_t*>(p.out_half + at) = halves;
    } else {
      p.out_half[at] = static_cast<uint16_t>(halves);
    }
  } else if (both) {
    *reinterpret_cast<float2*>(p.out + at) = make_float2(x, y);
  } else {
    p.out[at] = x;
  }
}

template <class Shape, bool kGather>
__global__ void __launch_bounds__(Shape::kThreads, 2) WideGemm(CudaWideGemmArgs p) {
  const Place at = BlockPlace<Shape::kRows, Shape::kColumns>(p.w.n);
  auto* shared = static_cast<uint4*>(SharedMemory());
  const int k_steps = (p.w.k + 31) / 32, chunks = (k_steps + 1) / 2;
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
      const float bias = column < p.w.n ? __ldg(p.w.bias + column) : 0.0f;
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
    __syncthreads();  // the chunk is here for all, and all have left the one before
    const int next = chunk + Shape::kStages - 1;
    if (next < chunks) {
      BringWeights<Shape>(p, at.first_column, next, shared);
      BringRows<Shape, kGather>(p, at.first_row, next, shared);
    }
    CommitCopies();  // empty at the end, so that the count holds
    MultiplyChunk<Shape>(shared + chunk % Shape::kStages * (Shape::kAPieces + Shape::kBPieces),
                         k_steps - 2 * chunk, sum);
  }
  WaitForCopies<0>();

  const int first_row =
      at.first_row + WarpIndex() / Shape::kAcross * Shape::kHigh * 16 + LaneIndex() / 4;
#pragma unroll
  for (int i = 0; i < Shape::kHigh; ++i) {
#pragma unroll
    for (int down = 0; down < 2; ++down) {
#pragma unroll
      for (int j = 0; j < Shape::kWide; ++j) {
        StorePair<kGather>(p, first_row + 16 * i + 8 * down, first_column + 8 * j,
                           sum[i][j][2 * down], sum[i][j][2 * down + 1]);
      }
    }
  }
}

template <class Shape>
int64_t Blocks(const CudaWideGemmArgs& args) {
  const int64_t down = (int64_t{args.rows} + Shape::kRows - 1) / Shape::kRows;
  const int64_t across = (int64_t{args.w.n} + Shape::kColumns - 1) / Shape::kColumns;
  return down * across;
}

template <class Shape, bool kGather = false>
cudaError_t Start(const CudaLaunch& launch, const CudaWideGemmArgs& args) {
  const int64_t blocks = Blocks<Shape>(args);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  const KernelConfig config(launch, dim3(static_cast<unsigned>(blocks)), Shape::kThreads,
                            Shape::kShared);
  return cudaLaunchKernelEx(config.get(), WideGemm<Shape, kGather>, args);
}

bool Aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

const char* CheckWideGemmCuda(const CudaWideGemmArgs& args) {
  if (args.w.type != WeightType::kF16) return "weights are F16";
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
  if (args.epilogue != Epilogue::kResidual) return nullptr;
  if (args.residual == nullptr || args.ld_residual < args.w.n)
    return "residual [.., n] must be set";
  return args.residual == args.out ? "out is not residual" : nullptr;
}

cudaError_t PrepareWideGemmCuda() {
  const auto allow = [](auto kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes));
  };
  for (const cudaError_t error : {allow(WideGemm<SmallTile, true>, SmallTile::kShared),
                                  allow(WideGemm<SmallTile, false>, SmallTile::kShared),
                                  allow(WideGemm<MiddleTile, false>, MiddleTile::kShared),
                                  allow(WideGemm<LargeTile, false>, LargeTile::kShared)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t WideGemmCuda(const CudaLaunch& launch, const CudaWideGemmArgs& args) {
  if (CheckWideGemmCuda(args) != nullptr) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  if (args.gather != nullptr) return Start<SmallTile, true>(launch, args);
  // The largest tile of which there are enough: half of the machine has two to switch between.
  const int64_t enough = int64_t{launch.multiprocessors} * 3 / 2;
  const int tile = tile_for_test >= 0                   ? tile_for_test
                   : Blocks<LargeTile>(args) >= enough  ? 2
                   : Blocks<MiddleTile>(args) >= enough ? 1
                                                        : 0;
  return tile == 0   ? Start<SmallTile>(launch, args)
         : tile == 1 ? Start<MiddleTile>(launch, args)
                     : Start<LargeTile>(launch, args);
}

void SetCudaWideGemmTileForTest(int tile) { tile_for_test = tile; }

}  // namespace rivulet::kernels
