// SPDX-License-Identifier: Apache-2.0
//   y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
#include <cstdint>

#include "kernels/cuda/common/row_statistics_cuda.h"
#include "kernels/cuda/rows/layer_norm_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kRowsPerBlock = kThreads / kWarpLanes;

__global__ void __launch_bounds__(kThreads)
    LayerNorm(LayerNormArgs args, uint16_t* half, int width) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + WarpIndex();
  if (row >= args.rows) return;  // whole warps; no block barrier follows
  const float* x = args.x + At(row, args.ld);
  const RowStatistics statistics = NormalizeStatistics(x, args.n, args.eps);
  // y may be x: a lane reads and writes its own columns, and the sums above are complete.
  for (int first = 4 * LaneIndex(); first < width; first += 4 * kWarpLanes) {
    const float4 v = *reinterpret_cast<const float4*>(x + first);
    float y[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = first + j;
      y[j] = i < args.n ? Normalized(y[j], statistics, args.weight[i], args.bias[i]) : 0.0f;
    }
    *reinterpret_cast<float4*>(args.y + At(row, args.ld, first)) =
        make_float4(y[0], y[1], y[2], y[3]);
    if (half != nullptr) {
      *reinterpret_cast<uint2*>(half + At(row, args.ld, first)) =
          make_uint2(PackHalves(y[0], y[1]), PackHalves(y[2], y[3]));
    }
  }
}

}  // namespace

cudaError_t PrepareLayerNormCuda() { return PrepareKernels(LayerNorm); }

cudaError_t LayerNormCuda(const CudaLaunch& launch, const LayerNormArgs& args, uint16_t* half,
                          int width) {
  if (width == 0) width = args.ld;
  const bool aligned =
      (reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.y)) % 16 == 0;
  if (reinterpret_cast<uintptr_t>(half) % 8 != 0) return cudaErrorInvalidValue;
  if (args.rows < 0 || args.n < 1 || args.ld < args.n || args.ld % 4 != 0 || !aligned) {
    return cudaErrorInvalidValue;
  }
  if (width < args.n || width > args.ld || width % 4 != 0) return cudaErrorInvalidValue;
  const int blocks = (args.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  return LaunchBlocks(launch, LayerNorm, blocks, kThreads, 0, args, half, width);
}

}  // namespace rivulet::kernels
