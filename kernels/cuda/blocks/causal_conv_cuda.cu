// SPDX-License-Identifier: Apache-2.0
//   y[t][c] = f(bias[c] + sum_j weight[j][c] x[t - width + 1 + j][c])      and step sizes
#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "kernels/cuda/blocks/segment_rows_cuda.h"
#include "kernels/cuda/common/element_math_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kAhead = 4;

// The inputs of a segment in channel c: rows of x; the state holds the inputs before the first row.
struct Inputs {
  const CudaCausalConvArgs& p;
  const CudaSegment& segment;
  float* state;
  int c;
  __device__ __forceinline__ float Of(int token) const {
    return token >= 0 ? p.x[At(segment.first_row + token, p.ld_x, c)]
                      : state[At(token + p.width - 1, p.channels)];
  }
};

// Tokens first .. first + count - 1 of a segment, in channel c. The taps that exist are the last
// ones: input[kMaxConvWidth - 1] is the current token's.
__device__ __forceinline__ void Convolve(const CudaCausalConvArgs& p, const CudaSegment& segment,
                                         int first, int count, int c) {
  const Inputs inputs = {
      p, segment, p.states + static_cast<size_t>(segment.slot) * p.floats_per_slot + p.offset + c,
      c};
  const float bias = p.bias == nullptr ? 0.0f : p.bias[c];
  const int taps = kMaxConvWidth - p.width;  // taps that do not exist
  float weight[kMaxConvWidth], input[kMaxConvWidth], last[kMaxConvWidth];
#pragma unroll
  for (int j = 0; j < kMaxConvWidth; ++j) {
    const int back = kMaxConvWidth - j;
    weight[j] = j >= taps ? p.weight[At(j - taps, p.channels, c)] : 0.0f;
    input[j] = j > taps ? inputs.Of(first - back) : 0.0f;
    last[j] = j > taps && first == 0 ? inputs.Of(segment.num_rows - back) : 0.0f;
  }
  // The old state has been read: the new one can be written.
#pragma unroll
  for (int j = 1; j < kMaxConvWidth; ++j) {
    if (j > taps && first == 0) inputs.state[At(j - taps - 1, p.channels)] = last[j];
  }
  const int first_row = segment.first_row + first;
  for (int t = 0; t < count; t += kAhead) {
    float x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      x[i] = t + i < count ? p.x[At(first_row + t + i, p.ld_x, c)] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (t + i >= count) break;
#pragma unroll
      for (int j = 0; j + 1 < kMaxConvWidth; ++j) input[j] = input[j + 1];
      input[kMaxConvWidth - 1] = x[i];
      float sum = bias;
#pragma unroll
      for (int j = 0; j < kMaxConvWidth; ++j) {
        if (j >= taps) sum = fmaf(weight[j], input[j], sum);
      }
      p.y[At(first_row + t + i, p.ld_y, c)] = p.silu ? SiluOf(sum) : sum;
    }
  }
}

// `count` rows of head h from `first_row` on.
__device__ __forceinline__ void StepSizes(const StepSizesArgs& p, int first_row, int count, int h) {
#pragma unroll 1
  for (int row = first_row; row < first_row + count; ++row) {
    float* const dt = p.dt + At(row, p.ld, h);
    const float step = SoftplusOf(*dt + p.bias[h]);
    const float bounded = step < p.least ? p.least : step > p.most ? p.most : step;  // NaN stays
    *dt = bounded;
    p.w[At(row, p.ld_w, h)] = expf(-(p.scale[h] * bounded));
  }
}

// The heads of the step sizes have blocks of their own, behind the blocks of the channels.
__host__ __device__ int FirstHead(const CudaCausalConvArgs& p) {
  return (p.channels + kColumnThreads - 1) / kColumnThreads * kColumnThreads;
}
__host__ __device__ int Columns(const CudaCausalConvArgs& p) {
  return p.steps.heads == 0 ? p.channels : FirstHead(p) + p.steps.heads;
}

template <bool kRows>
__global__ void __launch_bounds__(kColumnThreads) CausalConv(CudaCausalConvArgs p) {
  WaitForPredecessor();
  ForEachShare<kRows>(p.segments, p.num_segments, Columns(p), kMaxConvWidth - 1,
                      [&](const CudaSegment& segment, int first, int count, int c) {
                        const int h = c - FirstHead(p);
                        if (c < p.channels) Convolve(p, segment, first, count, c);
                        if (h >= 0 && h < p.steps.heads) {
                          StepSizes(p.steps, segment.first_row + first, count, h);
                        }
                      });
}

}  // namespace

cudaError_t PrepareCausalConvCuda() { return PrepareKernels(CausalConv<false>, CausalConv<true>); }

cudaError_t CausalConvCuda(const CudaLaunch& launch, const CudaCausalConvArgs& args) {
  const bool sizes = args.num_segments >= 0 && args.rows >= 0 && args.channels >= 1 &&
                     args.width >= 1 && args.width <= kMaxConvWidth && args.ld_x >= args.channels &&
                     args.ld_y >= args.channels;
  const bool arrays = args.segments != nullptr && args.x != nullptr && args.y != nullptr &&
                      args.weight != nullptr && args.states != nullptr && args.x != args.y;
  const StepSizesArgs& steps = args.steps;
  const bool with_steps = steps.heads >= 1 && steps.ld >= steps.heads &&
                          steps.ld_w >= steps.heads && steps.least <= steps.most &&
                          steps.dt != nullptr && steps.w != nullptr && steps.bias != nullptr &&
                          steps.scale != nullptr;
  if (!sizes || !arrays || (steps.heads != 0 && !with_steps)) return cudaErrorInvalidValue;
  return LaunchColumns(launch, CausalConv<false>, CausalConv<true>, args, Columns(args));
}

}  // namespace rivulet::kernels
