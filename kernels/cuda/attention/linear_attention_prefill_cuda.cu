// SPDX-License-Identifier: Apache-2.0
//   S <- g S + a k v^T     z <- g z + a k     y = q^T S / n(q . z)       long segments
//
// Tokens follow each other, so the time is a token's longest path through one warp. There are two
// launches. The first computes what needs no state: q = phi(query), a k = a phi(key) and g of every
// token, features of a group side by side; and it copies the current z. In the second a block takes
// some columns of a head of a segment and walks over tiles of kTokens tokens. Each of its warps has
// one of three roles, and all warps meet at one barrier per tile:
//   state   S in registers, per token only loads from shared memory, fused multiply-adds, and a
//           store of y by groups
//   z       q . z of the tile before anybody needs it: all tokens' sums over lanes at once
//   move    bring the next tile into shared memory, add the groups of the last tile, write y out
// Every block of a head computes z for itself, from the copy. One block writes z back.
//
// There are two arrangements with the same sums in the same order. kMany: a lane has four columns
// and all features of its group. kFew, where segments and heads would not fill the machine: a lane
// has one column, a block four, and two lanes share a group. The first lane does half of the
// group's features for a few tokens and passes the sums to the second lane, which does the other
// half while the first takes the next tokens.
#include <cstdint>

#include "kernels/cuda/attention/linear_attention_prefill_cuda.h"

namespace rivulet::kernels {
namespace {

// Adds 2 kHalf values of one thread in the order of WarpSum.
template <int kHalf>
__device__ __forceinline__ float Butterfly(float (&v)[kWarpLanes]) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) v[i] += v[i + kHalf];
  if constexpr (kHalf > 1) Butterfly<kHalf / 2>(v);
  return v[0];
}

// z, a lane kZ features.
template <class Shape, bool kGated>
class ZWarp {
 public:
  __device__ void Load(const float* from) {
#pragma unroll
    for (int i = 0; i < Shape::Order::kZ; ++i) z_[i] = from[LaneIndex() + i * kWarpLanes];
  }
  __device__ void Store(float* to) const {
#pragma unroll
    for (int i = 0; i < Shape::Order::kZ; ++i) to[LaneIndex() + i * kWarpLanes] = z_[i];
  }
  __device__ void Run(const CudaAttentionArgs& p, const float* input, int tokens, float* products,
                      float* inverse) {
    const int lane = LaneIndex();
    for (int t = 0; t < tokens; ++t) {
      const float* q = input + t * 2 * Shape::kF;
      const float* k = q + Shape::kF;
      const float g = kGated ? input[Shape::kPhi + Shape::kV + t] : 1.0f;
      float dot = 0;
#pragma unroll
      for (int i = 0; i < Shape::Order::kZ; ++i) {
        const int f = Shape::Order::Place(lane + i * kWarpLanes);
        z_[i] = fmaf(g, z_[i], k[f]);
        dot = fmaf(q[f], z_[i], dot);
      }
      products[t * (kWarpLanes + 1) + lane] = dot;
    }
    __syncwarp();
    if (lane < tokens) {  // one token a lane
      float sum[kWarpLanes];
#pragma unroll
      for (int i = 0; i < kWarpLanes; ++i) sum[i] = products[lane * (kWarpLanes + 1) + i];
      inverse[lane] = InverseOf(p, Butterfly<kWarpLanes / 2>(sum));
    }
    __syncwarp();
  }

 private:
  float z_[Shape::Order::kZ] = {};
};

// Copies a tile into shared memory; `thread` counts over the warps that move.
template <class Shape, bool kGated>
__device__ __forceinline__ void Bring(const CudaAttentionArgs& p, const BlockWork<Shape>& at,
                                      int tile, int thread) {
  constexpr int kMovers = Shape::kMoveWarps * kWarpLanes;
  const int heads = p.layout.heads, tokens = at.tokens(tile), ld = FeatureFloats(p.layout);
  const int row = at.first_row + tile * Shape::kTokens;
  float* input = at.input(tile);
  const float* phi = p.features + At(row, ld, 2 * at.head * Shape::kF);
  for (int i = thread; i < tokens * 2 * Shape::kF / 4; i += kMovers) {
    const int t = i / (2 * Shape::kF / 4), part = i % (2 * Shape::kF / 4) * 4;
    CopyAsync<16>(input + t * 2 * Shape::kF + part, phi + At(t, ld, part));
  }
  const float* v =
      p.qkv +
      At(row, p.ld_qkv, 2 * heads * p.map.key_dim + at.head * Shape::Order::kValues + at.column);
  for (int i = thread; i < tokens * Shape::kColumns / 4; i += kMovers) {
    const int t = i / (Shape::kColumns / 4), part = i % (Shape::kColumns / 4) * 4;
    CopyAsync<16>(input + Shape::kPhi + t * Shape::kColumns + part, v + At(t, p.ld_qkv, part));
  }
  if (kGated && thread < tokens) {
    CopyAsync<4>(input + Shape::kPhi + Shape::kV + thread,
                 p.features + At(row + thread, ld, 2 * heads * Shape::kF + at.head));
  }
  CommitCopies();
}

// Adds the groups of a tile, divides, and writes y out.
template <class Shape>
__device__ __forceinline__ void WriteOut(const CudaAttentionArgs& p, const BlockWork<Shape>& at,
                                         int tile, int thread) {
  constexpr int kAcross = Shape::kColumns / 4;
  const float* sums = at.output(tile);
  const float* inverse = at.inverse(tile);
  const int tokens = at.tokens(tile);
  for (int i = thread; i < tokens * kAcross; i += Shape::kMoveWarps * kWarpLanes) {
    const int t = i / kAcross, column = i % kAcross * 4;
    float4 y[Shape::kGroups];
#pragma unroll
    for (int d = 0; d < Shape::kGroups; ++d) {
      y[d] = *reinterpret_cast<const float4*>(sums + (d * Shape::kTokens + t) * Shape::kColumns +
                                              column);
    }
#pragma unroll
    for (int step = 1; step < Shape::kGroups; step *= 2) {
#pragma unroll
      for (int d = 0; d < Shape::kGroups; d += 2 * step) {
        y[d] = make_float4(y[d].x + y[d + step].x, y[d].y + y[d + step].y, y[d].z + y[d + step].z,
                           y[d].w + y[d + step].w);
      }
    }
    const float n = inverse[t];
    StoreAttention(p, at.first_row + tile * Shape::kTokens + t,
                   at.head * Shape::Order::kValues + at.column + column,
                   make_float4(y[0].x * n, y[0].y * n, y[0].z * n, y[0].w * n));
  }
}

// One barrier per tile suffices for two buffers of each kind: what round i writes was last read in
// round i - 1, and all threads have passed the barrier between.
template <class Shape, bool kGated>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    LongAttention(CudaAttentionArgs p, int wave) {
  const int block = static_cast<int>(blockIdx.x), unit = block / Shape::kTiles;
  const int index = unit / p.layout.heads, head = unit % p.layout.heads;
  const CudaSegment segment = EarlySegment(p.segments, index);
  // Neighbouring blocks on a multiprocessor have their state warps in different quarters of it.
  const int role = (WarpIndex() + block / wave) % Shape::kWarps;
  const bool of_state = role < Shape::kStateWarps, of_z = role == Shape::kStateWarps;
  const int mover = (role - Shape::kStateWarps - 1) * kWarpLanes + LaneIndex();
  const BlockWork<Shape> work = {static_cast<float*>(SharedMemory()), head,
                                 block % Shape::kTiles * Shape::kColumns, segment.first_row,
                                 segment.num_rows};
  const int tiles = work.tiles();
  float* slot = p.states + static_cast<size_t>(segment.slot) * p.layout.floats_per_slot();
  StateWarp<Shape, kGated> state(role);
  float* s = slot + p.layout.s_offset(p.layer, head) + work.column;
  if (of_state && tiles > 0) state.Load(s);
  WaitForPredecessor();
  if (tiles == 0) return;  // the whole block

  ZWarp<Shape, kGated> z;
  if (of_z) {
    z.Load(p.features + At(p.rows + index, FeatureFloats(p.layout), head * Shape::kF));
  } else if (!of_state) {
    Bring<Shape, kGated>(p, work, 0, mover);
  }
  for (int i = 0; i <= tiles; ++i) {
    if (!of_state && !of_z) WaitForCopies<0>();
    __syncthreads();
    if (of_state) {
      if (i < tiles) state.Run(work.input(i), work.tokens(i), work.output(i));
    } else if (of_z) {
      if (i < tiles) z.Run(p, work.input(i), work.tokens(i), work.products(), work.inverse(i));
    } else {
      if (i + 1 < tiles) Bring<Shape, kGated>(p, work, i + 1, mover);
      if (i > 0) WriteOut<Shape>(p, work, i - 1, mover);
    }
  }
  if (of_state) state.Store(s);
  if (of_z && work.column == 0) z.Store(slot + p.layout.z_offset(p.layer, head));
}

template <class Shape>
void (*LongKernel(bool gated))(CudaAttentionArgs, int) {
  return gated ? LongAttention<Shape, true> : LongAttention<Shape, false>;
}

template <class Shape>
cudaError_t Prepare() {
  constexpr size_t kBytes = Shape::kShared * sizeof(float);
  return FirstError({PrepareLargeKernel(LongKernel<Shape>(false), kBytes),
                     PrepareLargeKernel(LongKernel<Shape>(true), kBytes)});
}

template <class Shape>
cudaError_t Start(const CudaLaunch& launch, const CudaAttentionArgs& args) {
  const int64_t blocks = int64_t{args.num_long} * args.layout.heads * Shape::kTiles;
  return LaunchBlocks(launch, LongKernel<Shape>(args.gated), blocks, Shape::kThreads,
                      size_t{Shape::kShared} * sizeof(float), args, launch.multiprocessors);
}

}  // namespace

template <class Order>
cudaError_t StartLongAttention(const CudaLaunch& launch, const CudaAttentionArgs& args) {
  const cudaError_t error = StartAttentionFeatures(launch, args, Order::kGroups);
  if (error != cudaSuccess) return error;
  using Few = LongShape<Order, true>;
  const int64_t few = int64_t{args.num_long} * args.layout.heads * Few::kTiles;
  if (few <= 2 * int64_t{launch.multiprocessors}) return Start<Few>(launch, args);
  return Start<LongShape<Order, false>>(launch, args);
}

template <class Order>
cudaError_t PrepareLongAttention() {
  return FirstError({Prepare<LongShape<Order, true>>(), Prepare<LongShape<Order, false>>()});
}

#define RIVULET_LONG_ATTENTION(Order)                 \
  template cudaError_t PrepareLongAttention<Order>(); \
  template cudaError_t StartLongAttention<Order>(const CudaLaunch&, const CudaAttentionArgs&)
RIVULET_LONG_ATTENTION(Attention32x32);
RIVULET_LONG_ATTENTION(Attention64x32);
RIVULET_LONG_ATTENTION(Attention64x64);
RIVULET_LONG_ATTENTION(Attention128x64);

}  // namespace rivulet::kernels
