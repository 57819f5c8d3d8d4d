// SPDX-License-Identifier: Apache-2.0
// Checks and the choice of a tile for the products of gemm_f16_cuda.cu and
// gemm_f32_cuda.cu.
#include <cstdint>

#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_tile_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kFewRowsTile = kCudaGemmTiles - 1;

int tile_for_test = -1;

bool Aligned(const float* p, int ld) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

// The largest tile that fills the machine and of whose rows more than half exist. Blocks of one
// warp replace the smallest tile where it leaves multiprocessors idle, or for up to 16 rows if they
// all run at once: all weights are then in flight before the predecessor ends.
template <class Args>
int TileOf(bool f16, const CudaLaunch& launch, const Args& args, int rows) {
  int tile = tile_for_test;
  for (int i = kFewRowsTile - 1; tile < 0; --i) {
    const CudaTileSize size = f16 ? GemmF16Tile(i) : GemmF32Tile(i);
    const bool fills =
        FillsMachine(TileBlocks(args, size.rows, size.columns), launch.multiprocessors);
    const bool fits = 2 * int64_t{rows} > size.rows && fills;
    if (fits || i == 0) tile = i;
    const bool few = !fills || (rows <= size.rows && GemmFewRunsAtOnce(launch, args));
    if (tile == 0 && f16 && few) tile = kFewRowsTile;
  }
  return tile;
}

}  // namespace

const char* CheckGemmCuda(const CudaGemmArgs& args) {
  const WeightType type = args.w.type;
  if (type != WeightType::kF32 && type != WeightType::kF16 && type != WeightType::kInt8) {
    return "weights are float32, F16 or int8";
  }
  if (args.w.packed == nullptr || args.w.bias == nullptr) return "weights and bias must be set";
  if (args.w.k < 1 || args.w.n < 1 || args.rows < 0) return "k, n >= 1 and rows >= 0";
  if (args.a == nullptr || args.out == nullptr) return "a and out must be set";
  if (args.lda < args.w.k || args.ld_out < args.w.n) return "lda >= k and ld_out >= n";
  if (!Aligned(args.a, args.lda)) return "a is 16-byte aligned and lda a multiple of 4";
  if (args.a == args.out) return "out is not a";
  if (args.epilogue == Epilogue::kScatter) return "kScatter is of the CPU alone";
  if (args.epilogue == Epilogue::kResidual) {
    if (args.residual == nullptr || args.ld_residual < args.w.n)
      return "residual [.., n] must be set";
    if (args.residual == args.out) return "out is not residual";
  }
  if (args.norm_weight == nullptr) {
    return args.norm_out == nullptr ? nullptr : "norm_out needs norm_weight";
  }
  if (args.norm_bias == nullptr) return "norm_bias must be set";
  if (args.norm_out == nullptr) return nullptr;
  if (args.norm_out == args.a || args.norm_out == args.out) return "norm_out is neither a nor out";
  if (args.ld_norm_out < args.w.k || !Aligned(args.norm_out, args.ld_norm_out)) {
    return "norm_out is 16-byte aligned, ld_norm_out >= k and a multiple of 4";
  }
  return nullptr;
}

cudaError_t PrepareGemmCuda() {
  const cudaError_t error = PrepareGemmF16();
  return error != cudaSuccess ? error : PrepareGemmF32();
}

cudaError_t GemmCuda(const CudaLaunch& launch, const CudaGemmArgs& args) {
  if (CheckGemmCuda(args) != nullptr) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool f16 = args.w.type != WeightType::kF32;  // on the tensor cores
  const int tile = TileOf(f16, launch, args, args.rows);
  return f16 ? StartGemmF16(tile, launch, args) : StartGemmF32(tile, launch, args);
}

const char* CheckGemmGroupCuda(const CudaProductGroup<float>& group) {
  return CheckGroup(group, [](const CudaGroupProduct<float>& p) {
    return p.out_half != nullptr ? "products of float rows write float"
                                 : CheckGemmCuda(AloneOf<CudaGemmArgs>(p));
  });
}

cudaError_t GemmGroupCuda(const CudaLaunch& launch, const CudaProductGroup<float>& group) {
  if (CheckGemmGroupCuda(group) != nullptr) return cudaErrorInvalidValue;
  const int rows = group.of[0].rows;
  if (group.count == 0 || rows == 0) return cudaSuccess;
  const bool f16 = group.of[0].w.type != WeightType::kF32;
  const int tile = TileOf(f16, launch, group, rows);
  return f16 ? StartGemmF16(tile, launch, group) : StartGemmF32(tile, launch, group);
}

void SetCudaGemmTileForTest(int tile) { tile_for_test = tile; }

}  // namespace rivulet::kernels
