// SPDX-License-Identifier: Apache-2.0
// The order of additions in the kernels of linear attention for single shapes. Step and prefill
// share it, so their bits are the same. Included by linear_attention*_cuda.* only.
//
//   y[c] = tree over the groups d of ( sum over i, ascending, of q[f] S[f][c], f = d + i kGroups )
//   q . z = butterfly over 32 lanes l of ( sum over i, ascending, of q[f] z[f], f = l + 32 i )
// The tree adds neighbours, then neighbours of neighbours: ((y0 + y1) + (y2 + y3)) + ...; the
// butterfly adds lanes 16 apart first. y is then multiplied by 1 / n(q . z).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {

template <int kF, int kV, int kG>
struct AttentionShape {
  static constexpr int kFeatures = kF, kValues = kV;
  static constexpr int kGroups = kG;      // of features; a power of two
  static constexpr int kGroup = kF / kG;  // features of a group
  static constexpr int kZ = kF / 32;      // features of a lane of q . z
  static_assert(kF % 32 == 0 && kF % kG == 0);

  // The place of feature f when the features of a group stand side by side.
  static constexpr int Place(int f) { return f % kG * kGroup + f / kG; }
};

// Loads past the first-level cache, for values that were written two launches ago or earlier: these
// may be read before the wait for the predecessor (launch_cuda.h says why).
__device__ __forceinline__ CudaSegment EarlySegment(const CudaSegment* segments, int index) {
  static_assert(sizeof(CudaSegment) == sizeof(int4));
  const int4 v = __ldcg(reinterpret_cast<const int4*>(segments) + index);
  return {v.x, v.y, v.z, v.w};
}
__device__ __forceinline__ float4 EarlyVector(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

// Stores four values of y, beginning at `column` of a token row.
__device__ __forceinline__ void StoreAttention(const CudaAttentionArgs& p, int row, int column,
                                               float4 y) {
  const size_t at = At(row, p.ld_out, column);
  if (p.out_half != nullptr) {
    *reinterpret_cast<uint2*>(p.out_half + at) =
        make_uint2(PackHalves(y.x, y.y), PackHalves(y.z, y.w));
  } else {
    *reinterpret_cast<float4*>(p.out + at) = y;
  }
}

__device__ __forceinline__ float InverseOf(const CudaAttentionArgs& p, float dot) {
  return 1.0f / (p.clamp ? (dot < p.normalizer ? p.normalizer : dot) : dot + p.normalizer);
}

using Attention32x32 = AttentionShape<32, 32, 4>;
using Attention64x32 = AttentionShape<64, 32, 4>;
using Attention64x64 = AttentionShape<64, 64, 8>;
using Attention128x64 = AttentionShape<128, 64, 8>;

// A row of CudaAttentionArgs::features: per head phi(query), then a phi(key), with the features of
// a group side by side (Place); after all heads one g per head.
__host__ __device__ inline int FeatureFloats(const StateLayout& layout) {
  return (layout.heads * (2 * layout.features + 1) + 3) / 4 * 4;
}
// Call once per device, before the first launch.
cudaError_t PrepareAttentionFeatures();
// Fills rows 0 .. rows - 1 in this layout, and later rows with z of the long segments, all heads.
cudaError_t StartAttentionFeatures(const CudaLaunch& launch, const CudaAttentionArgs& args,
                                   int groups);

// Long segments, features included. REQUIRES: num_long > 0, features set.
template <class Order>
cudaError_t PrepareLongAttention();
template <class Order>
cudaError_t StartLongAttention(const CudaLaunch& launch, const CudaAttentionArgs& args);

// Calls f(AttentionShape<...>()) if there is a kernel for just this shape, else otherwise().
template <class F, class Otherwise>
cudaError_t ForAttentionShape(const CudaAttentionArgs& args, F f, Otherwise otherwise) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  constexpr int kMaxKeyDim = 256;  // x of a few tokens lies in shared memory
  const StateLayout& layout = args.layout;
  const bool vectors = 2 * layout.heads * args.map.key_dim % 4 == 0 && args.ld_qkv % 4 == 0 &&
                       args.ld_out % 4 == 0 && aligned(args.qkv) && aligned(args.out) &&
                       aligned(args.out_half) && aligned(args.states) &&
                       args.map.key_dim <= kMaxKeyDim;
  const auto is = [&](int features, int values) {
    return vectors && layout.features == features && layout.value_dim == values;
  };
  if (is(32, 32)) return f(Attention32x32());
  if (is(64, 32)) return f(Attention64x32());
  if (is(64, 64)) return f(Attention64x64());
  if (is(128, 64)) return f(Attention128x64());
  return otherwise();
}

}  // namespace rivulet::kernels
