// SPDX-License-Identifier: Apache-2.0
// The equations of mixer_rows.h.
#include <cmath>
#include <initializer_list>

#include "kernels/cuda/blocks/mixer_rows_cuda.h"
#include "kernels/cuda/common/element_math_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpLanes;

// A block takes a row, a thread a pair, whose angle serves q and k of all heads.
__global__ void __launch_bounds__(kThreads) RotateHeads(RotateHeadsArgs p) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x);
  const int step = p.interleaved ? 2 : 1, to_second = p.interleaved ? 1 : p.pairs;
  for (int i = static_cast<int>(threadIdx.x); i < p.pairs; i += kThreads) {
    // In double, because positions may be large; in units of pi, so that the reduction to one turn
    // is exact.
    const double x = static_cast<double>(p.positions[row]) * p.frequencies[i];
    const float cosine = static_cast<float>(cospi(x) * p.factor),
                sine = static_cast<float>(sinpi(x) * p.factor);
    for (int h = 0; h < p.heads + p.key_heads; ++h) {
      const int head = h < p.heads ? h : h - p.heads;
      float* const v = (h < p.heads ? p.q : p.k) + At(row, p.ld, head * p.key_dim + i * step);
      const float first = v[0], second = v[to_second];
      v[0] = first * cosine - second * sine;
      v[to_second] = second * cosine + first * sine;
    }
  }
}

__global__ void __launch_bounds__(kThreads) LowerBoundKeys(LowerBoundKeysArgs p) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < p.n; i += kThreads) {
    float* const q = p.q + At(row, p.ld, i);
    float* const k = p.k + At(row, p.ld, i);
    const float w = p.bound[i] + (1.0f - p.bound[i]) * SigmoidOf(*k);
    p.w[At(row, p.ld_w, i)] = w;
    *k = 1.0f - w;
    *q = SiluOf(*q);
  }
}

// This warp's row and head.
struct RowHead {
  int row, head;
  __device__ explicit RowHead(int heads) {
    const int item = static_cast<int>(blockIdx.x) * kWarps + WarpIndex();
    row = item / heads;
    head = item % heads;
  }
};

__global__ void __launch_bounds__(kThreads) Rwkv7Heads(Rwkv7HeadsArgs p) {
  WaitForPredecessor();
  const RowHead at(p.heads);
  if (at.row >= p.rows) return;  // whole warps; no block barrier follows
  const int first = at.head * p.head_dim;
  float* const k = p.k + At(at.row, p.ld, first);
  float* const kk = p.kk + At(at.row, p.ld_w, first);
  float squares = 0;
  for (int i = LaneIndex(); i < p.head_dim; i += kWarpLanes) {
    kk[i] = k[i] * p.k_k[first + i];  // read below by this lane alone
    squares = fmaf(kk[i], kk[i], squares);
  }
  const float scale = 1.0f / sqrtf(WarpSum(squares) + 1e-24f);
  for (int i = LaneIndex(); i < p.head_dim; i += kWarpLanes) {
    const size_t here = At(at.row, p.ld_w, first + i);
    float* const v = p.v + At(at.row, p.ld, first + i);
    // Loads first: the compiler cannot move loads ahead of stores that may alias them.
    const bool mixes = p.v_mix != nullptr;
    const float rate = p.rate[here], unit = kk[i] * scale, key = k[i], k_a = p.k_a[first + i],
                w = p.w[here], w_scale = p.scale[first + i], value = *v,
                of_first = mixes ? p.first[here] : 0.0f, v_mix = mixes ? p.v_mix[here] : 0.0f;
    const float alpha = SigmoidOf(rate);
    kk[i] = unit;
    p.minus[here] = -(unit * alpha);
    k[i] = key * (1.0f + (alpha - 1.0f) * k_a);
    p.w[here] = DecayOf(DecayKind::kSigmoid, w, w_scale, -INFINITY);
    if (mixes) {
      *v = value + (of_first - value) * SigmoidOf(v_mix);
    } else {
      p.first[here] = value;
    }
  }
}

__global__ void __launch_bounds__(kThreads) Rwkv7Outputs(Rwkv7OutputsArgs p, CudaHalfRows half) {
  WaitForPredecessor();
  const RowHead at(p.heads);
  if (at.row >= p.rows) return;  // whole warps; no block barrier follows
  const int first = at.head * p.head_dim;
  float* const o = p.o + At(at.row, p.ld_o, first);
  const size_t in = At(at.row, p.ld, first);
  const auto n = static_cast<float>(p.head_dim);
  float sum = 0, bonus = 0, squares = 0;
  for (int i = LaneIndex(); i < p.head_dim; i += kWarpLanes) {
    sum += o[i];
    bonus = fmaf(p.r[in + static_cast<size_t>(i)] * p.k[in + static_cast<size_t>(i)],
                 p.r_k[first + i], bonus);
  }
  const float mean = WarpSum(sum) / n;
  bonus = WarpSum(bonus);
  for (int i = LaneIndex(); i < p.head_dim; i += kWarpLanes) {
    squares = fmaf(o[i] - mean, o[i] - mean, squares);
  }
  const float scale = 1.0f / sqrtf(WarpSum(squares) / n + p.eps);
  for (int i = LaneIndex(); i < p.head_dim; i += kWarpLanes) {
    const float normed = fmaf((o[i] - mean) * scale, p.weight[first + i], p.bias[first + i]);
    const float y = fmaf(bonus, p.v[in + static_cast<size_t>(i)], normed) *
                    p.gate[At(at.row, p.ld_o, first + i)];
    if (half.data == nullptr) {
      o[i] = y;
    } else {
      half.data[static_cast<size_t>(at.row) * half.stride + static_cast<size_t>(first + i)] =
          RoundF16(y);
    }
  }
}

template <class Args, class... More>
cudaError_t Start(const CudaLaunch& launch, void (*kernel)(Args, More...), const Args& args,
                  int64_t blocks, bool valid, const More&... more) {
  return valid ? LaunchBlocks(launch, kernel, blocks, kThreads, 0, args, more...)
               : cudaErrorInvalidValue;
}

bool AllSet(std::initializer_list<const void*> arrays) {
  for (const void* const array : arrays) {
    if (array == nullptr) return false;
  }
  return true;
}

// The number of blocks with one warp per head of a row.
int64_t HeadBlocks(int rows, int heads) { return (int64_t{rows} * heads + kWarps - 1) / kWarps; }

}  // namespace

cudaError_t PrepareMixerRowsCuda() {
  return PrepareKernels(RotateHeads, LowerBoundKeys, Rwkv7Heads, Rwkv7Outputs);
}

cudaError_t RotateHeadsCuda(const CudaLaunch& launch, const RotateHeadsArgs& args) {
  return Start(launch, RotateHeads, args, args.rows,
               args.heads >= 1 && args.key_heads >= 1 && args.pairs >= 1 &&
                   args.key_dim >= 2 * args.pairs && args.ld >= args.heads * args.key_dim &&
                   args.ld >= args.key_heads * args.key_dim &&
                   AllSet({args.q, args.k, args.positions, args.frequencies}));
}

cudaError_t LowerBoundKeysCuda(const CudaLaunch& launch, const LowerBoundKeysArgs& args) {
  return Start(launch, LowerBoundKeys, args, args.rows,
               args.n >= 1 && args.ld >= args.n && args.ld_w >= args.n &&
                   AllSet({args.q, args.k, args.w, args.bound}));
}

cudaError_t Rwkv7HeadsCuda(const CudaLaunch& launch, const Rwkv7HeadsArgs& args) {
  const int n = args.heads * args.head_dim;
  return Start(launch, Rwkv7Heads, args, HeadBlocks(args.rows, args.heads),
               args.heads >= 1 && args.head_dim >= 1 && args.ld >= n && args.ld_w >= n &&
                   AllSet({args.k, args.v, args.w, args.rate, args.first, args.kk, args.minus,
                           args.k_k, args.k_a, args.scale}));
}

cudaError_t Rwkv7OutputsCuda(const CudaLaunch& launch, const Rwkv7OutputsArgs& args,
                             const CudaHalfRows& half) {
  const int n = args.heads * args.head_dim;
  if (half.data != nullptr && half.stride < static_cast<size_t>(n)) return cudaErrorInvalidValue;
  return Start(
      launch, Rwkv7Outputs, args, HeadBlocks(args.rows, args.heads),
      args.heads >= 1 && args.head_dim >= 1 && args.ld >= n && args.ld_o >= n &&
          AllSet({args.o, args.r, args.k, args.v, args.gate, args.weight, args.bias, args.r_k}),
      half);
}

}  // namespace rivulet::kernels
