// SPDX-License-Identifier: Apache-2.0
//   S <- g S + a k v^T     z <- g z + a k     y = q^T S / n(q . z)
//   k = phi(key), q = phi(query)
//
// S of one head in registers, sums in the order of linear_attention_shape_cuda.h. A warp owns
// kColumns of the value_dim columns and all features; a lane owns four columns and every
// kLanesDown-th feature, so that a load of the warp covers whole rows of S. The warps of one head
// (a *team*) share the feature maps of kTokens tokens at a time in shared memory. z, a value a
// feature, is kept by every warp of the team; the first one writes it back.
#include <cstdint>

#include "kernels/cuda/attention/feature_map_cuda.h"
#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/attention/linear_attention_generic_cuda.h"
#include "kernels/cuda/attention/linear_attention_shape_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kTokens = 4;            // tokens whose feature maps are computed together
constexpr int kSmallTeamsABlock = 4;  // teams of one warp share a block

template <class Order>
struct TeamShape {
  static constexpr int kFeatures = Order::kFeatures, kValues = Order::kValues;
  static constexpr int kLanesDown = Order::kGroups;        // lanes below each other
  static constexpr int kAcross = kWarpLanes / kLanesDown;  // lanes side by side
  static constexpr int kColumns = 4 * kAcross;             // of a warp
  static constexpr int kWarps = kValues / kColumns;
  static constexpr int kTeams = kWarps == 1 ? kSmallTeamsABlock : 1;  // in one block
  static constexpr int kThreads = kTeams * kWarps * kWarpLanes;
  static constexpr int kVectors = Order::kGroup;  // float4 of S that a lane has
  static constexpr int kZ = Order::kZ;            // values of z that a lane has
  static_assert(kValues % kColumns == 0);

  // Floats of a team: phi [kTokens][q, k][kFeatures], x [kTokens][q, k][key_dim].
  static int SharedFloats(int key_dim) { return kTokens * 2 * (kFeatures + key_dim); }
};

template <int kWarps>
__device__ __forceinline__ void TeamBarrier() {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// phi of `tokens` tokens from `row` on. Begins and ends with a barrier: other warps may still read
// phi of the last tokens.
template <class Shape>
__device__ __forceinline__ void TeamFeatures(const CudaAttentionArgs& p, int row, int tokens,
                                             int head, int thread, float* phi, float* x) {
  constexpr int kTeamThreads = Shape::kWarps * kWarpLanes, kFeatures = Shape::kFeatures;
  const int key_dim = p.map.key_dim, heads = p.layout.heads;
  TeamBarrier<Shape::kWarps>();
  for (int i = thread; i < tokens * 2 * key_dim; i += kTeamThreads) {
    const int token = i / (2 * key_dim), which = i / key_dim % 2, d = i % key_dim;
    const float v = p.qkv[At(row + token, p.ld_qkv, (which * heads + head) * key_dim + d)];
    if (p.map.kind == FeatureMapKind::kElu) {
      phi[(token * 2 + which) * kFeatures + d] = EluFeature(v);
    } else {
      x[i] = v;
    }
  }
  TeamBarrier<Shape::kWarps>();
  if (p.map.kind == FeatureMapKind::kElu) return;
  const float* omega = p.map.omega + static_cast<size_t>(head) * p.omega_per_head;
  for (int i = thread; i < tokens * 2 * p.map.columns; i += kTeamThreads) {
    const int which = i / p.map.columns;
    ProjectedFeature(p.map, omega, x + which * key_dim, i % p.map.columns, phi + which * kFeatures);
  }
  TeamBarrier<Shape::kWarps>();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads) Attention(CudaAttentionArgs p) {
  constexpr int kFeatures = Shape::kFeatures, kValues = Shape::kValues, kColumns = Shape::kColumns;
  constexpr int kTeamThreads = Shape::kWarps * kWarpLanes;
  const int team = static_cast<int>(threadIdx.x) / kTeamThreads;
  const int thread = static_cast<int>(threadIdx.x) % kTeamThreads;
  const int64_t unit = int64_t{blockIdx.x} * Shape::kTeams + team;
  const int index = static_cast<int>(unit / p.layout.heads);
  const int head = static_cast<int>(unit % p.layout.heads);
  CudaSegment segment;
  if (index < p.num_segments) segment = EarlySegment(p.segments, index);

  float* phi =
      static_cast<float*>(SharedMemory()) + team * kTokens * 2 * (kFeatures + p.map.key_dim);
  float* x = phi + kTokens * 2 * kFeatures;
  const int lane = LaneIndex(), down = lane / Shape::kAcross;
  const int column = thread / kWarpLanes * kColumns + lane % Shape::kAcross * 4;
  float* slot = p.states + static_cast<size_t>(segment.slot) * p.layout.floats_per_slot();
  float* s_at = slot + p.layout.s_offset(p.layer, head) + down * kValues + column;
  float* z_at = slot + p.layout.z_offset(p.layer, head) + lane;
  float4 s[Shape::kVectors];
  float z[Shape::kZ];
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    s[i] = segment.num_rows == 0 ? make_float4(0, 0, 0, 0)
                                 : EarlyVector(s_at + i * Shape::kLanesDown * kValues);
  }
#pragma unroll
  for (int i = 0; i < Shape::kZ; ++i) {
    z[i] = segment.num_rows == 0 ? 0.0f : __ldcg(z_at + i * kWarpLanes);
  }
  WaitForPredecessor();
  if (segment.num_rows == 0) return;  // whole teams; only teams have barriers

  const int values = 2 * p.layout.heads * p.map.key_dim + head * kValues + column;
  const int gates = p.layout.heads * (2 * p.map.key_dim + kValues) + head;
  for (int first = 0; first < segment.num_rows; first += kTokens) {
    const int left = segment.num_rows - first, tokens = left < kTokens ? left : kTokens;
    TeamFeatures<Shape>(p, segment.first_row + first, tokens, head, thread, phi, x);
    for (int t = 0; t < tokens; ++t) {
      const int row = segment.first_row + first + t;
      const float* in = p.qkv + At(row, p.ld_qkv);
      const GateFactors gate = p.gated ? GateOf(in[gates]) : GateFactors{1, 1};
      const float* q = phi + t * 2 * kFeatures;
      const float* k = q + kFeatures;
      float dot = 0;
#pragma unroll
      for (int i = 0; i < Shape::kZ; ++i) {
        z[i] = fmaf(gate.g, z[i], gate.a * k[lane + i * kWarpLanes]);
        dot = fmaf(q[lane + i * kWarpLanes], z[i], dot);
      }
      dot = WarpSum(dot);
      const float4 v = *reinterpret_cast<const float4*>(in + values);
      float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < Shape::kVectors; ++i) {
        const int f = down + i * Shape::kLanesDown;
        const float kf = gate.a * k[f], qf = q[f];
        s[i].x = fmaf(kf, v.x, gate.g * s[i].x);
        s[i].y = fmaf(kf, v.y, gate.g * s[i].y);
        s[i].z = fmaf(kf, v.z, gate.g * s[i].z);
        s[i].w = fmaf(kf, v.w, gate.g * s[i].w);
        y.x = fmaf(qf, s[i].x, y.x);
        y.y = fmaf(qf, s[i].y, y.y);
        y.z = fmaf(qf, s[i].z, y.z);
        y.w = fmaf(qf, s[i].w, y.w);
      }
#pragma unroll
      for (int lanes = Shape::kAcross; lanes < kWarpLanes; lanes *= 2) {
        y.x += __shfl_xor_sync(kAllLanes, y.x, lanes);
        y.y += __shfl_xor_sync(kAllLanes, y.y, lanes);
        y.z += __shfl_xor_sync(kAllLanes, y.z, lanes);
        y.w += __shfl_xor_sync(kAllLanes, y.w, lanes);
      }
      if (down == 0) {
        const float inverse = InverseOf(p, dot);
        StoreAttention(p, row, head * kValues + column,
                       make_float4(y.x * inverse, y.y * inverse, y.z * inverse, y.w * inverse));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    *reinterpret_cast<float4*>(s_at + i * Shape::kLanesDown * kValues) = s[i];
  }
  if (thread < kWarpLanes) {
#pragma unroll
    for (int i = 0; i < Shape::kZ; ++i) z_at[i * kWarpLanes] = z[i];
  }
}

template <class Shape>
cudaError_t Start(const CudaLaunch& launch, const CudaAttentionArgs& args) {
  const int64_t units = int64_t{args.num_segments} * args.layout.heads;
  const int64_t blocks = (units + Shape::kTeams - 1) / Shape::kTeams;
  const int floats = Shape::kTeams * Shape::SharedFloats(args.map.key_dim);
  return LaunchBlocks(launch, Attention<Shape>, blocks, Shape::kThreads,
                      static_cast<size_t>(floats) * sizeof(float), args);
}

}  // namespace

const char* CheckAttentionCuda(const StateLayout& layout, const FeatureMapArgs& map) {
  return GenericAttentionColumns(layout, map) > 0 ? nullptr : "too many features or key dimensions";
}

cudaError_t PrepareAttentionCuda() {
  return FirstError(
      {PrepareKernels(Attention<TeamShape<Attention32x32>>, Attention<TeamShape<Attention64x32>>,
                      Attention<TeamShape<Attention64x64>>, Attention<TeamShape<Attention128x64>>),
       PrepareAttentionFeatures(), PrepareGenericAttention(),
       PrepareLongAttention<Attention32x32>(), PrepareLongAttention<Attention64x32>(),
       PrepareLongAttention<Attention64x64>(), PrepareLongAttention<Attention128x64>()});
}

// Which kernel runs depends on the model's shape alone, never on segments.
cudaError_t AttentionCuda(const CudaLaunch& launch, const CudaAttentionArgs& args) {
  const StateLayout& layout = args.layout;
  const int width = layout.heads * (2 * args.map.key_dim + layout.value_dim + (args.gated ? 1 : 0));
  if (args.num_segments < 0 || args.ld_qkv < width ||
      args.ld_out < layout.heads * layout.value_dim || args.layer < 0 ||
      args.layer >= layout.layers || CheckAttentionCuda(layout, args.map) != nullptr ||
      layout.features != KeyFeatures(args.map.kind, args.map.key_dim, args.map.columns)) {
    return cudaErrorInvalidValue;
  }
  if (args.num_long < 0 || args.num_long > args.num_segments ||
      (args.out == nullptr) == (args.out_half == nullptr) ||
      (args.num_long > 0 && (args.features == nullptr || args.rows < 1))) {
    return cudaErrorInvalidValue;
  }
  if (args.num_segments == 0) return cudaSuccess;
  return ForAttentionShape(
      args,
      [&](auto order) {
        using Order = decltype(order);
        CudaAttentionArgs rest = args;
        rest.segments += args.num_long;
        rest.num_segments -= args.num_long;
        if (args.num_long > 0) {
          const cudaError_t error = StartLongAttention<Order>(launch, args);
          if (error != cudaSuccess || rest.num_segments == 0) return error;
        }
        return Start<TeamShape<Order>>(launch, rest);
      },
      [&] { return StartGenericAttention(launch, args); });
}

}  // namespace rivulet::kernels
