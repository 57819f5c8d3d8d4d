// SPDX-License-Identifier: Apache-2.0
//   S <- g S + a k v^T     z <- g z + a k     y = q^T S / n(q . z)
//
// One head of one row within a step of Fused(), by one warp, S through its ring: the operations of
// linear_attention_cuda.cu in their order (linear_attention_shape_cuda.h). Included by
// fused_*cuda.cu only.
#pragma once

#include "kernels/feature_map_cuda.h"
#include "kernels/fused_stream_cuda.h"

namespace rivulet::kernels {

// What a (row, head) unit reads and writes beside its ring. All but the state in shared memory.
struct HeadUnit {
  const float *q, *k, *v;  // features, features, values
  GateFactors gate;
  float *s, *z;   // in the slot
  uint32_t* out;  // the head's values as F16 pairs
};

// z of the piece that was taken: on its way to the slot, and q . z.
template <class Order, class Stream>
__device__ __forceinline__ float AdvanceUnitZ(const Stream& stream, const HeadUnit& unit) {
  const float* taken = stream.TakenZ();
  float dot = 0;
#pragma unroll
  for (int i = 0; i < Order::kZ; ++i) {
    const int f = LaneIndex() + i * kWarpLanes;
    const float z = fmaf(unit.gate.g, taken[i * kWarpLanes], unit.gate.a * unit.k[f]);
    dot = fmaf(unit.q[f], z, dot);
    unit.z[f] = z;
  }
  return WarpSum(dot);
}

// S of the lane's features of a piece, of which `first` is the lowest; and their share of y.
template <class Order>
__device__ __forceinline__ void AdvanceUnitS(const HeadUnit& unit, int first,
                                             const uint4 (&taken)[8],
                                             const float4 (&v)[PieceShape<Order>::kBlocks],
                                             float4 (&y)[PieceShape<Order>::kBlocks]) {
  using Shape = PieceShape<Order>;
  float* const to = unit.s + first * Order::kValues + Shape::LaneOffset();
#pragma unroll
  for (int i = 0; i < Shape::kDown; ++i) {
    const int f = first + LaneIndex() / Shape::kAcross + i * Order::kGroups;
    const float kf = unit.gate.a * unit.k[f], qf = unit.q[f], g = unit.gate.g;
#pragma unroll
    for (int b = 0; b < Shape::kBlocks; ++b) {
      const uint4 old = taken[i * Shape::kBlocks + b];
      const float4 s = make_float4(fmaf(kf, v[b].x, g * __uint_as_float(old.x)),
                                   fmaf(kf, v[b].y, g * __uint_as_float(old.y)),
                                   fmaf(kf, v[b].z, g * __uint_as_float(old.z)),
                                   fmaf(kf, v[b].w, g * __uint_as_float(old.w)));
      y[b].x = fmaf(qf, s.x, y[b].x);
      y[b].y = fmaf(qf, s.y, y[b].y);
      y[b].z = fmaf(qf, s.z, y[b].z);
      y[b].w = fmaf(qf, s.w, y[b].w);
      *reinterpret_cast<float4*>(to + Shape::Offset(i, b)) = s;
    }
  }
}

template <class Order, class Stream>
__device__ __forceinline__ void AttendUnit(const CudaAttentionArgs& p, Stream& stream,
                                           const HeadUnit& unit) {
  using Shape = PieceShape<Order>;
  const int across = LaneIndex() % Shape::kAcross * 4;
  float4 v[Shape::kBlocks], y[Shape::kBlocks];
#pragma unroll
  for (int b = 0; b < Shape::kBlocks; ++b) {
    v[b] = *reinterpret_cast<const float4*>(unit.v + b * Shape::kColumns + across);
    y[b] = make_float4(0, 0, 0, 0);
  }
  float dot = 0;
#pragma unroll 1
  for (int piece = 0; piece < Shape::kPieces; ++piece) {
    const uint4* at = stream.TakeState();
    uint4 taken[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) taken[i] = at[i * kWarpLanes];
    if (piece == 0) dot = AdvanceUnitZ<Order>(stream, unit);
    stream.Done();
    AdvanceUnitS<Order>(unit, piece * Shape::kFeatures, taken, v, y);
  }
  const float inverse = InverseOf(p, dot);
#pragma unroll
  for (int b = 0; b < Shape::kBlocks; ++b) {
#pragma unroll
    for (int lanes = Shape::kAcross; lanes < kWarpLanes; lanes *= 2) {
      y[b].x += __shfl_xor_sync(kAllLanes, y[b].x, lanes);
      y[b].y += __shfl_xor_sync(kAllLanes, y[b].y, lanes);
      y[b].z += __shfl_xor_sync(kAllLanes, y[b].z, lanes);
      y[b].w += __shfl_xor_sync(kAllLanes, y[b].w, lanes);
    }
    if (LaneIndex() < Shape::kAcross) {
      *reinterpret_cast<uint2*>(unit.out + (b * Shape::kColumns + across) / 2) =
          make_uint2(PackHalves(y[b].x * inverse, y[b].y * inverse),
                     PackHalves(y[b].z * inverse, y[b].w * inverse));
    }
  }
}

}  // namespace rivulet::kernels
