// SPDX-License-Identifier: Apache-2.0
// Packing, checks and the choice of a tile for the products of gemm_f16_cuda.cu and
// gemm_f32_cuda.cu.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_tile_cuda.h"
#include "kernels/cuda/gemm/gemm_weights_cuda.h"
#include "kernels/half.h"
#include "kernels/quantized.h"

namespace rivulet::kernels {
namespace {

int tile_for_test = -1;

constexpr float kLargestF16 = 65504;

// Where weight j of 32 of a column stands among those of its panel and step: j = 16 half + 8 high +
// 2 t + low in lane (column % 8, t) at 4 half + 2 high + low.
size_t FragmentAt(int column, int j) {
  const int lane = column % 8 * 4 + j % 8 / 2;
  return static_cast<size_t>(lane * 8 + j / 16 * 4 + j % 16 / 8 * 2 + j % 2);
}

bool Aligned(const float* p, int ld) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

}  // namespace

size_t CudaPackedSize(WeightType type, int k, int n) {
  const auto blocks = [](int value, int of) { return static_cast<size_t>((value + of - 1) / of); };
  constexpr size_t kBlock = 512;  // bytes that a warp loads at once
  if (type == WeightType::kInt8) {
    return (blocks(n, 8) * Int8PanelBytes(k) + kBlock - 1) / kBlock * kBlock;
  }
  return type == WeightType::kF32 ? blocks(n, 32) * blocks(k, 4) * kBlock
                                  : blocks(n, 8) * blocks(k, 32) * kBlock;
}

bool PackCudaMatrix(WeightType type, const float* w, int n, int k, int column_begin, void* packed) {
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    const int column = column_begin + i;
    for (int j = 0; j < k; ++j) {
      const float value = w[At(i, k, j)];
      if (type == WeightType::kF32) {
        const size_t block = At(column / 32, (k + 3) / 4, j / 4);
        static_cast<float*>(packed)[(block * 32 + static_cast<size_t>(column % 32)) * 4 +
                                    static_cast<size_t>(j % 4)] = value;
        continue;
      }
      const uint16_t half = F32ToF16(value);
      finite = finite && ((half & 0x7C00u) != 0x7C00u || !std::isfinite(value));
      const size_t block = At(column / 8, CudaSteps(k), j / 32);
      static_cast<uint16_t*>(packed)[block * 256 + FragmentAt(column, j % 32)] = half;
    }
  }
  return finite;
}

bool PackCudaInt8(const PackedMatrix& w, int from, int column, void* packed) {
  auto* const panel =
      static_cast<uint8_t*>(packed) + static_cast<size_t>(column / 8) * Int8PanelBytes(w.k);
  const auto steps = static_cast<size_t>(CudaSteps(w.k));
  bool finite = true;
  for (size_t g = 0; g < steps; ++g) {
    const QuantizedGroup group = UnpackGroup(w, from, static_cast<int>(g));
    const uint16_t scale = F32ToF16(group.scale[0]);  // it is one
    std::memcpy(panel + steps * kInt8Bytes + g * kInt8ScaleBytes +
                    static_cast<size_t>(column % 8) * sizeof scale,
                &scale, sizeof scale);
    for (int j = 0; j < kQuantizedInputs; ++j) {
      const int q = static_cast<int8_t>(group.q[j]);
      finite = finite && std::abs(static_cast<float>(q) * group.scale[0]) <= kLargestF16;
      panel[g * kInt8Bytes + FragmentAt(column, j)] = static_cast<uint8_t>(q + 128);
    }
  }
  return finite;
}

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
  int tile = tile_for_test;
  // The largest tile that fills the machine and of whose rows at least half exist.
  for (int i = kCudaGemmTiles - 1; tile < 0; --i) {
    const CudaTileSize size = f16 ? GemmF16Tile(i) : GemmF32Tile(i);
    const int64_t down = (int64_t{args.rows} + size.rows - 1) / size.rows;
    const int64_t across = (int64_t{args.w.n} + size.columns - 1) / size.columns;
    const bool fits =
        2 * int64_t{args.rows} > size.rows && FillsMachine(down * across, launch.multiprocessors);
    if (fits || i == 0) tile = i;
  }
  return f16 ? StartGemmF16(tile, launch, args) : StartGemmF32(tile, launch, args);
}

void SetCudaGemmTileForTest(int tile) { tile_for_test = tile; }

}  // namespace rivulet::kernels
