// SPDX-License-Identifier: Apache-2.0
// The phases of a step of one block (fused_block_cuda.h). Included by fused_*cuda.cu only.
#pragma once

#include "kernels/fused_block_cuda.h"

namespace rivulet::kernels {

// phi of queries and keys of a round, where it is not elu.
template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::Project(const float* omega, int first_head) {
  const CudaAttentionArgs& attention = p.model.attention;
  const FeatureMapArgs& map = attention.map;
  const int heads = p.plan.round_heads, values = heads * Order::kValues;
  const int each = map.columns, row_items = heads * 2 * each;
  for (int i = static_cast<int>(threadIdx.x); i < rows_ * row_items; i += kFusedThreads) {
    const int r = i / row_items, vector = i % row_items / each, head = vector / 2;
    if (!Alive(r)) continue;
    const float* x = shared_ + p.plan.qkv + r * p.plan.ld_qkv + values +
                     (vector % 2 * heads + head) * map.key_dim;
    float* phi = shared_ + p.plan.phi + r * p.plan.ld_phi + vector * Order::kFeatures;
    ProjectedFeature(map, omega + static_cast<size_t>(first_head + head) * attention.omega_per_head,
                     x, i % each, phi);
  }
  __syncthreads();
}

template <class Order, int kHigh, bool kClustered>
__device__ HeadUnit FusedBlock<Order, kHigh, kClustered>::UnitOf(Unit unit, int index,
                                                                 int first_head) const {
  const CudaAttentionArgs& attention = p.model.attention;
  const StateLayout& layout = attention.layout;
  const int heads = p.plan.round_heads, key = attention.map.key_dim, head = first_head + unit.head;
  const float* qkv = shared_ + p.plan.qkv + unit.row * p.plan.ld_qkv;
  const float* queries = qkv + heads * Order::kValues;
  HeadUnit u;
  u.v = qkv + unit.head * Order::kValues;
  u.q = queries + unit.head * key;
  u.k = u.q + heads * key;
  u.gate = attention.gated ? GateOf(queries[2 * heads * key + unit.head]) : GateFactors{1, 1};
  if (!Elu()) {
    u.q = shared_ + p.plan.phi + unit.row * p.plan.ld_phi + unit.head * 2 * Order::kFeatures;
    u.k = u.q + Order::kFeatures;
  }
  float* slot =
      attention.states + static_cast<size_t>(slots()[unit.row]) * layout.floats_per_slot();
  u.s = slot + layout.s_offset(index, head);
  u.z = slot + layout.z_offset(index, head);
  u.out = Halves(p.plan.attention) + unit.row * p.plan.ld_attention + head * Order::kValues / 2;
  return u;
}

// q, k, v and attention of the heads of a round.
template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::Round(const StepLayer& layer, int index,
                                                            int first_head) {
  const RoundColumns columns(p.model.attention, first_head, p.plan.round_heads);
  Multiply(layer.qkv, TileGroups(columns.Covering(WeightType::kF16)), p.plan.a, p.plan.ld_a,
           GiveRound{columns, shared_ + p.plan.qkv, p.plan.ld_qkv, Elu()});
  __syncthreads();
  if (!Elu()) Project(layer.omega, first_head);
  for (int i = WarpIndex(); i < RoundUnits(p.plan); i += kFusedWarps) {
    const Unit unit = UnitAt(p.plan, i);
    if (Alive(unit.row)) {
      AttendUnit<Order>(p.model.attention, stream_, UnitOf(unit, index, first_head));
    } else {
      for (int piece = 0; piece < PieceShape<Order>::kPieces; ++piece) stream_.Skip();
    }
  }
  __syncthreads();
}

template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::Layer(int index) {
  const StepLayer& layer = p.model.layers[index];
  const FusedPlan& plan = p.plan;
  for (int h = 0; h < p.model.attention.layout.heads; h += plan.round_heads) {
    Round(layer, index, h);
  }
  const GiveResidual to_x = {shared_ + plan.x, plan.ld_x, p.model.hidden};
  Multiply(layer.out, AllTiles(layer.out), plan.attention, plan.ld_attention, to_x);
  // Behind an odd end of ffn2's input come zeros; nobody reads there before the barrier.
  const int ffn = p.model.ffn, first = (ffn + 1) / 2, end = (ffn + 31) / 32 * 16;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows_ * (end - first); i += kFusedThreads) {
    Halves(plan.ffn)[i / (end - first) * plan.ld_ffn + first + i % (end - first)] = 0;
  }
  NormalizeRows(layer.norm1);
  Multiply(layer.ffn1, AllTiles(layer.ffn1), plan.a, plan.ld_a,
           GiveHalves{Halves(plan.ffn), plan.ld_ffn, ffn, p.model.activation});
  __syncthreads();
  Multiply(layer.ffn2, AllTiles(layer.ffn2), plan.ffn, plan.ld_ffn, to_x);
  __syncthreads();
  NormalizeRows(layer.norm2);
}

template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::Draw() {
  if (p.model.final_norm.weight != nullptr) {
    for (int r = WarpIndex(); r < rows_; r += kFusedWarps) {
      if (Alive(r)) Normalize(X(r), p.model.final_norm);
    }
    __syncthreads();
  }
  const CudaMatrix& head = p.model.head;
  Tiles tiles;
  tiles.count[0] = NumTiles(WeightType::kF32, head.n);
  float* const outputs = const_cast<float*>(p.sample.outputs) + At(first_row_, p.sample.ld_outputs);
  MultiplyF32(
      TileSource<false>{head, tiles, nullptr}, X(0), p.plan.ld_x, rows_,
      [&](int row, int column, float v) { outputs[At(row, p.sample.ld_outputs, column)] = v; },
      kFusedWarps);
  stream_.EndStep();
  __syncthreads();
  for (int r = RowTeam(); r < rows_; r += kFusedTeams) {
    if (Alive(r)) DrawRow(p, first_row_ + r, tokens() + r);
  }
  __syncthreads();
}

template <class Order, int kHigh, bool kClustered>
__global__ void __launch_bounds__(kFusedThreads, 1) Fused(const __grid_constant__ FusedArgs p) {
  FusedBlock<Order, kHigh, kClustered> block(p);
  if (!block.Begin()) return;
  for (int step = 0; step < p.steps && (step == 0 || block.Next()); ++step) {
    block.Embed();
    for (int l = 0; l < p.model.attention.layout.layers; ++l) block.Layer(l);
    block.Draw();
  }
  block.End();
}

// Calls f(kernel) with the one for `model` and so many rows a block.
template <bool kClustered, class F>
cudaError_t WithFusedKernel(const StepModel& model, int rows, const F& f) {
  return ForAttentionShape(
      model.attention,
      [&](auto order) {
        using Order = decltype(order);
        return rows > 16 ? f(Fused<Order, 2, kClustered>) : f(Fused<Order, 1, kClustered>);
      },
      [] { return cudaErrorInvalidValue; });
}

template <bool kClustered>
cudaError_t AllowFused(const StepModel& model, int rows, size_t shared_limit) {
  return WithFusedKernel<kClustered>(model, rows, [&](auto kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(shared_limit));
  });
}

}  // namespace rivulet::kernels
