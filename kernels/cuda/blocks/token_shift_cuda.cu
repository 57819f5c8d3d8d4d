// SPDX-License-Identifier: Apache-2.0
//   y[m][t] = x[t] + (x[t - 1] - x[t]) * mix[m]
#include "kernels/cuda/blocks/segment_rows_cuda.h"
#include "kernels/cuda/blocks/token_shift_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kAhead = 4;

// Tokens first .. first + count - 1 of a segment, in column i.
__device__ __forceinline__ void Shift(const CudaTokenShiftArgs& p, const CudaSegment& segment,
                                      int first, int count, int i,
                                      const float (&mix)[kMaxCudaMixes]) {
  const int first_row = segment.first_row + first;
  float before;
  if (first == 0) {
    float* const state =
        p.states + static_cast<size_t>(segment.slot) * p.floats_per_slot + p.offset + i;
    before = *state;
    *state = p.x[At(segment.first_row + segment.num_rows - 1, p.ld_x, i)];
  } else {
    before = p.x[At(first_row - 1, p.ld_x, i)];
  }
  for (int t = 0; t < count; t += kAhead) {
    float x[kAhead];
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      x[s] = t + s < count ? p.x[At(first_row + t + s, p.ld_x, i)] : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (t + s >= count) break;
      const float step = before - x[s];
      float* const y = p.y + At(first_row + t + s, p.ld_y, i);
#pragma unroll
      for (int m = 0; m < kMaxCudaMixes; ++m) {
        if (m < p.mixes) y[At(m, p.mix_stride)] = fmaf(step, mix[m], x[s]);
      }
      before = x[s];
    }
  }
}

template <bool kRows>
__global__ void __launch_bounds__(kColumnThreads) TokenShift(CudaTokenShiftArgs p) {
  WaitForPredecessor();
  ForEachShare<kRows>(p.segments, p.num_segments, p.n, 1,
                      [&](const CudaSegment& segment, int first, int count, int i) {
                        if (i >= p.n) return;
                        float mix[kMaxCudaMixes];
#pragma unroll
                        for (int m = 0; m < kMaxCudaMixes; ++m) {
                          mix[m] = m < p.mixes ? p.mix[At(m, p.n, i)] : 0.0f;
                        }
                        Shift(p, segment, first, count, i, mix);
                      });
}

}  // namespace

cudaError_t PrepareTokenShiftCuda() { return PrepareKernels(TokenShift<false>, TokenShift<true>); }

cudaError_t TokenShiftCuda(const CudaLaunch& launch, const CudaTokenShiftArgs& args) {
  const bool sizes = args.num_segments >= 0 && args.rows >= 0 && args.n >= 1 && args.mixes >= 1 &&
                     args.mixes <= kMaxCudaMixes && args.ld_x >= args.n && args.ld_y >= args.n &&
                     (args.mixes == 1 || args.mix_stride >= args.n);
  const bool arrays = args.segments != nullptr && args.x != nullptr && args.y != nullptr &&
                      args.mix != nullptr && args.states != nullptr && args.x != args.y;
  if (!sizes || !arrays) return cudaErrorInvalidValue;
  return LaunchColumns(launch, TokenShift<false>, TokenShift<true>, args, args.n);
}

}  // namespace rivulet::kernels
