// SPDX-License-Identifier: Apache-2.0
//   y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
#include <cstdint>

#include "kernels/device_cuda.h"
#include "kernels/layer_norm_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kRowsPerBlock = kThreads / kWarpLanes;

__global__ void __launch_bounds__(kThreads) LayerNorm(LayerNormArgs args) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + WarpIndex();
  if (row >= args.rows) return;  // whole warps; no block barrier follows
  const float* x = args.x + At(row, args.ld);
  float* y = args.y + At(row, args.ld);
  const RowStatistics statistics = NormalizeStatistics(x, args.n, args.eps);
  // y may be x: a lane reads and writes its own columns, and the sums above are complete.
  for (int i = LaneIndex(); i < args.ld; i += kWarpLanes) {
    y[i] = i < args.n ? Normalized(x[i], statistics, args.weight[i], args.bias[i]) : 0.0f;
  }
}

}  // namespace

cudaError_t LayerNormCuda(const CudaLaunch& launch, const LayerNormArgs& args) {
  const bool aligned =
      (reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.y)) % 16 == 0;
  if (args.rows < 0 || args.n < 1 || args.ld < args.n || args.ld % 4 != 0 || !aligned) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int blocks = (args.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const KernelConfig config(launch, dim3(static_cast<unsigned>(blocks)), kThreads, 0);
  return cudaLaunchKernelEx(config.get(), LayerNorm, args);
}

}  // namespace rivulet::kernels
