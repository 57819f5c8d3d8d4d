// SPDX-License-Identifier: Apache-2.0
// Attention of one head within a step of Latency(): one token of every row. It repeats the
// operations of linear_attention_cuda.cu (or, for other shapes, of the generic kernel) in their
// order. Each thread computes the sum of a column over one group of features; the sums are added in
// the same order. Included by latency_*.cu only.
#pragma once

#include "kernels/cuda/attention/feature_map_cuda.h"
#include "kernels/cuda/attention/linear_attention_shape_cuda.h"
#include "kernels/cuda/latency/latency_exchange_cuda.h"
#include "kernels/cuda/latency/latency_product_cuda.h"

namespace rivulet::kernels {

struct HeadState {
  float *s, *z;
};
// The state of a head in its slot ...
__device__ __forceinline__ HeadState SlotState(const LatencyArgs& p, int layer, int head,
                                               int32_t slot) {
  const StateLayout& layout = p.model.attention.layout;
  float* state = p.model.attention.states + static_cast<size_t>(slot) * layout.floats_per_slot();
  return {state + layout.s_offset(layer, head), state + layout.z_offset(layer, head)};
}
// ... or in shared memory: the block's `unit`-th (layer, head).
__device__ __forceinline__ HeadState KeptState(const LatencyArgs& p, float* shared, int unit,
                                               int row) {
  const StateLayout& layout = p.model.attention.layout;
  float* s = shared + p.plan.states + (unit * p.plan.rows + row) * p.plan.ld_state;
  return {s, s + layout.features * layout.value_dim};
}

// Computes phi of q and k of every row, [rows][q, k][features].
__device__ __noinline__ inline void HeadFeatures(const LatencyArgs& p, float* shared,
                                                 const float* omega, uint32_t alive) {
  const FeatureMapArgs& map = p.model.attention.map;
  const int features = p.model.attention.layout.features, key_dim = map.key_dim;
  const bool elu = map.kind == FeatureMapKind::kElu;
  const int each = elu ? key_dim : map.columns;
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
    if ((alive >> r & 1u) == 0) continue;
    const float* qkv = shared + p.plan.qkv + r * p.plan.ld_qkv;
    float* phi = shared + p.plan.phi + r * 2 * features;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < 2 * each; i += kLatencyThreads) {
      if (elu) {
        phi[i] = EluFeature(qkv[i]);  // features = key_dim
      } else {
        const int which = i / each;
        ProjectedFeature(map, omega, qkv + which * key_dim, i % each, phi + which * features);
      }
    }
  }
}

// Updates a part of z of `row`, and stores that part's share of q . z.
__device__ inline void AdvanceZ(const LatencyArgs& p, float* shared, const float* phi, float* z,
                                GateFactors gate, int row, int part) {
  const int features = p.model.attention.layout.features, dots = p.plan.dots;
  const float *q = phi, *k = phi + features;
  float dot = 0;
  for (int f = part * kWarpLanes + LaneIndex(); f < features; f += dots * kWarpLanes) {
    z[f] = fmaf(gate.g, z[f], gate.a * k[f]);
    dot = fmaf(q[f], z[f], dot);
  }
  dot = WarpSum(dot);
  if (LaneIndex() == 0) shared[p.plan.dot + row * dots + part] = dot;
}

// Reads q, k, v and gates of all rows from shared memory and leaves the sums there. The caller has
// a barrier before; this ends with one.
__device__ inline void AttendHead(const LatencyArgs& p, float* shared, const float* omega,
                                  int layer, int head, int unit, const int32_t* slots,
                                  uint32_t alive) {
  const CudaAttentionArgs& attention = p.model.attention;
  const StateLayout& layout = attention.layout;
  const int features = layout.features, values = layout.value_dim, groups = p.plan.groups;
  const int gate_at = 2 * attention.map.key_dim + values;
  HeadFeatures(p, shared, omega + static_cast<size_t>(head) * attention.omega_per_head, alive);
  __syncthreads();
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
    if ((alive >> r & 1u) == 0) continue;
    const HeadState state =
        p.plan.states_stay ? KeptState(p, shared, unit, r) : SlotState(p, layer, head, slots[r]);
    const float* qkv = shared + p.plan.qkv + r * p.plan.ld_qkv;
    const float* phi = shared + p.plan.phi + r * 2 * features;
    const GateFactors gate = attention.gated ? GateOf(qkv[gate_at]) : GateFactors{1, 1};
    for (int part = (WarpIndex() + kLatencyWarps - r % kLatencyWarps) % kLatencyWarps;
         part < p.plan.dots; part += kLatencyWarps) {
      AdvanceZ(p, shared, phi, state.z, gate, r, part);
    }
    const float *q = phi, *k = phi + features, *value = qkv + 2 * attention.map.key_dim;
    float* sums = shared + p.plan.sums + r * groups * values;
    for (int i = static_cast<int>(threadIdx.x); i < groups * values; i += kLatencyThreads) {
      const int c = i % values;
      const float v = value[c];
      float sum = 0;
#pragma unroll 8
      for (int f = i / values; f < features; f += groups) {
        float& s = state.s[f * values + c];
        const float next = fmaf(gate.a * k[f], v, gate.g * s);
        s = next;
        sum = fmaf(q[f], next, sum);
      }
      sums[i] = sum;
    }
  }
  __syncthreads();
}

// One value of y: the sums of the groups, `values` floats apart, times 1 / n(q . z).
__device__ __forceinline__ float HeadValue(const LatencyPlan& plan, const float* sums, int values,
                                           float inverse) {
  float y = 0;
  if (plan.tree) {
    y = (sums[0] + sums[values]) + (sums[2 * values] + sums[3 * values]);
    if (plan.groups == 8) {
      const float* rest = sums + 4 * values;
      y += (rest[0] + rest[values]) + (rest[2 * values] + rest[3 * values]);
    }
  } else {
    for (int g = 0; g < plan.groups; ++g) y += sums[g * values];
  }
  return y * inverse;
}

// Sends y of the head to the other blocks, in F16, two values per word.
__device__ inline void SendHead(const LatencyArgs& p, const float* shared, int head, uint64_t* to,
                                uint32_t flag, uint32_t alive) {
  const CudaAttentionArgs& attention = p.model.attention;
  const LatencyPlan& plan = p.plan;
  const int values = attention.layout.value_dim, each = (values + 1) / 2;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < p.rows * each; i += kLatencyThreads) {
    const int r = i / each, j = i % each;
    if ((alive >> r & 1u) == 0) continue;
    const float* dots = shared + plan.dot + r * plan.dots;
    const float dot = plan.dots == 1 ? dots[0] : (dots[0] + dots[1]) + (dots[2] + dots[3]);
    const float inverse = InverseOf(attention, dot);
    const float* sums = shared + plan.sums + r * plan.groups * values;
    uint64_t* word = to + r * plan.ld_attention + head * each + j;
    const float first = HeadValue(plan, sums + 2 * j, values, inverse);
    const float second =
        2 * j + 1 < values ? HeadValue(plan, sums + 2 * j + 1, values, inverse) : 0.0f;
    Send(word, PackHalves(first, second), flag);
  }
}

}  // namespace rivulet::kernels
