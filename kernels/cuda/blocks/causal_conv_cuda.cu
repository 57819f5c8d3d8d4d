// SPDX-License-Identifier: Apache-2.0
//   y[t][c] = f(bias[c] + sum_j weight[j][c] x[t - width + 1 + j][c])
#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "kernels/cuda/blocks/element_math_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 64, kAhead = 4;

__global__ void __launch_bounds__(kThreads) CausalConv(CudaCausalConvArgs p) {
  WaitForPredecessor();
  const int across = (p.channels + kThreads - 1) / kThreads, b = static_cast<int>(blockIdx.x);
  const CudaSegment segment = p.segments[b / across];
  const int c = b % across * kThreads + static_cast<int>(threadIdx.x);
  if (segment.num_rows == 0 || c >= p.channels) return;
  float* const state =
      p.states + static_cast<size_t>(segment.slot) * p.floats_per_slot + p.offset + c;
  const float bias = p.bias == nullptr ? 0.0f : p.bias[c];
  // The taps that exist are the last ones: input[kMaxConvWidth - 1] is the current token's.
  const int first = kMaxConvWidth - p.width;
  float weight[kMaxConvWidth], input[kMaxConvWidth];
#pragma unroll
  for (int j = 0; j < kMaxConvWidth; ++j) {
    weight[j] = j >= first ? p.weight[At(j - first, p.channels, c)] : 0.0f;
    input[j] = j > first ? state[At(j - first - 1, p.channels)] : 0.0f;
  }
  for (int t = 0; t < segment.num_rows; t += kAhead) {
    float x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      x[i] = t + i < segment.num_rows ? p.x[At(segment.first_row + t + i, p.ld_x, c)] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (t + i >= segment.num_rows) break;
#pragma unroll
      for (int j = 0; j + 1 < kMaxConvWidth; ++j) input[j] = input[j + 1];
      input[kMaxConvWidth - 1] = x[i];
      float sum = bias;
#pragma unroll
      for (int j = 0; j < kMaxConvWidth; ++j) {
        if (j >= first) sum = fmaf(weight[j], input[j], sum);
      }
      p.y[At(segment.first_row + t + i, p.ld_y, c)] = p.silu ? SiluOf(sum) : sum;
    }
  }
#pragma unroll
  for (int j = 1; j < kMaxConvWidth; ++j) {
    if (j > first) state[At(j - first - 1, p.channels)] = input[j];
  }
}

}  // namespace

cudaError_t PrepareCausalConvCuda() { return PrepareKernels(CausalConv); }

cudaError_t CausalConvCuda(const CudaLaunch& launch, const CudaCausalConvArgs& args) {
  const bool sizes = args.num_segments >= 0 && args.channels >= 1 && args.width >= 1 &&
                     args.width <= kMaxConvWidth && args.ld_x >= args.channels &&
                     args.ld_y >= args.channels;
  const bool arrays = args.segments != nullptr && args.x != nullptr && args.y != nullptr &&
                      args.weight != nullptr && args.states != nullptr && args.x != args.y;
  if (!sizes || !arrays) return cudaErrorInvalidValue;
  const int64_t across = (args.channels + kThreads - 1) / kThreads;
  return LaunchBlocks(launch, CausalConv, across * args.num_segments, kThreads, 0, args);
}

}  // namespace rivulet::kernels
