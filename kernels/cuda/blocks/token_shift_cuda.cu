// SPDX-License-Identifier: Apache-2.0
//   y[m][t] = x[t] + (x[t - 1] - x[t]) * mix[m]
#include "kernels/cuda/blocks/token_shift_cuda.h"
#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 64, kAhead = 4;

__global__ void __launch_bounds__(kThreads) TokenShift(CudaTokenShiftArgs p) {
  WaitForPredecessor();
  const int across = (p.n + kThreads - 1) / kThreads, b = static_cast<int>(blockIdx.x);
  const CudaSegment segment = p.segments[b / across];
  const int i = b % across * kThreads + static_cast<int>(threadIdx.x);
  if (segment.num_rows == 0 || i >= p.n) return;
  float* const state =
      p.states + static_cast<size_t>(segment.slot) * p.floats_per_slot + p.offset + i;
  float mix[kMaxCudaMixes];
#pragma unroll
  for (int m = 0; m < kMaxCudaMixes; ++m) mix[m] = m < p.mixes ? p.mix[At(m, p.n, i)] : 0.0f;
  float before = *state;
  for (int t = 0; t < segment.num_rows; t += kAhead) {
    float x[kAhead];
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      x[s] = t + s < segment.num_rows ? p.x[At(segment.first_row + t + s, p.ld_x, i)] : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (t + s >= segment.num_rows) break;
      const float step = before - x[s];
      float* const y = p.y + At(segment.first_row + t + s, p.ld_y, i);
#pragma unroll
      for (int m = 0; m < kMaxCudaMixes; ++m) {
        if (m < p.mixes) y[At(m, p.mix_stride)] = fmaf(step, mix[m], x[s]);
      }
      before = x[s];
    }
  }
  *state = before;
}

}  // namespace

cudaError_t PrepareTokenShiftCuda() { return PrepareKernels(TokenShift); }

cudaError_t TokenShiftCuda(const CudaLaunch& launch, const CudaTokenShiftArgs& args) {
  const bool sizes = args.num_segments >= 0 && args.n >= 1 && args.mixes >= 1 &&
                     args.mixes <= kMaxCudaMixes && args.ld_x >= args.n && args.ld_y >= args.n &&
                     (args.mixes == 1 || args.mix_stride >= args.n);
  const bool arrays = args.segments != nullptr && args.x != nullptr && args.y != nullptr &&
                      args.mix != nullptr && args.states != nullptr && args.x != args.y;
  if (!sizes || !arrays) return cudaErrorInvalidValue;
  const int64_t across = (args.n + kThreads - 1) / kThreads;
  return LaunchBlocks(launch, TokenShift, across * args.num_segments, kThreads, 0, args);
}

}  // namespace rivulet::kernels
