// SPDX-License-Identifier: Apache-2.0
// How the blocks of Latency() share a model: stages, and the layout of shared memory and of the
// exchange.
#include <algorithm>

#include "kernels/cuda/attention/linear_attention_shape_cuda.h"
#include "kernels/cuda/latency/latency_slices_cuda.h"
#include "kernels/cuda/sample/categorical_cuda.h"

namespace rivulet::kernels {
namespace {

int RoundUp(int n, int to) { return (n + to - 1) / to * to; }

struct ShareBytes {
  int units = 0;
  size_t weights = 0;
};

// The largest share of any block.
ShareBytes LargestShare(const StepModel& model, const LatencyPlan& plan) {
  // Only shapes matter here, and all layers have the same shapes.
  StepLayer layer;
  const CudaAttentionArgs& p = model.attention;
  layer.qkv = layer.ffn1 = CudaMatrix{WeightType::kF16, model.hidden, 0, nullptr, nullptr};
  layer.out =
      CudaMatrix{WeightType::kF16, p.layout.heads * p.layout.value_dim, 0, nullptr, nullptr};
  layer.ffn2 = CudaMatrix{WeightType::kF16, model.ffn, 0, nullptr, nullptr};
  ShareBytes largest;
  for (int block = 0; block < plan.blocks(); ++block) {
    size_t bytes = 0;
    const int units = BlockShare(model, plan, block)
                          .ForEachSlice(
                              plan.rows, [&](int) -> const StepLayer& { return layer; },
                              [&](const CudaMatrix& m, const Tiles& tiles) {
                                bytes += static_cast<size_t>(tiles.all()) * TileBytes(m.type, m.k);
                              });
    largest.units = std::max(largest.units, units);
    largest.weights = std::max(largest.weights, bytes);
  }
  return largest;
}

// The order in which AttentionCuda adds for this model: that of a kernel for this shape, or that of
// the generic kernel, where a group is a warp's features.
void SetOrder(const StepModel& model, LatencyPlan* plan) {
  plan->tree = false;
  plan->groups = plan->dots = 4;
  (void)ForAttentionShape(
      model.attention,
      [&](auto shape) {
        plan->tree = true;
        plan->groups = decltype(shape)::kGroups;
        plan->dots = 1;
        return cudaSuccess;
      },
      [] { return cudaSuccess; });
}

void PlaceInShared(const StepModel& model, LatencyPlan* p) {
  const StateLayout& layout = model.attention.layout;
  const int key = model.attention.map.key_dim, f = layout.features, v = layout.value_dim;
  int at = 0;
  const auto place = [&](int* where, int floats) {
    *where = at;
    at += RoundUp(floats, 4);
  };
  // Each row begins 4 banks after the row before, so that a fragment uses all banks.
  const int widest = std::max({model.hidden, model.ffn, layout.heads * v});
  p->ld_a = RoundUp(RoundUp(widest, 32) / 2, 32) + 4;
  place(&p->a, p->rows * p->ld_a);
  p->ld_qkv = 2 * key + v + 1;
  place(&p->qkv, p->rows * p->ld_qkv);
  place(&p->phi, p->rows * 2 * f);
  place(&p->sums, p->rows * p->groups * v);
  place(&p->dot, p->rows * p->dots);
  // The arrays above are used only within a layer, and sampling uses the same memory.
  at = std::max(at, static_cast<int>(sizeof(RowShared) / sizeof(float)));
  p->ld_x = RoundUp(model.hidden, 4) + 4;
  place(&p->x, p->rows * p->ld_x);
  place(&p->outputs, model.head.n <= kLocalHead ? model.head.n : 0);
  place(&p->rows_at, kLatencyMaxRows * 4);  // positions, tokens, slots
  p->ld_state = RoundUp(f * v + f, 4);
  p->states = p->weights = at;
  p->shared_bytes = static_cast<size_t>(at) * sizeof(float);
}

void PlaceInExchange(const StepModel& model, LatencyPlan* p) {
  const StateLayout& layout = model.attention.layout;
  p->ld_attention = RoundUp(layout.heads * ((layout.value_dim + 1) / 2), 2);
  p->ld_y = RoundUp(model.hidden, 2);
  p->ld_ffn = RoundUp((model.ffn + 1) / 2, 2);
  p->ld_outputs = RoundUp(model.head.n, 2);
  const auto rows = static_cast<size_t>(p->rows);
  p->layer_words = rows * static_cast<size_t>(p->ld_attention + 2 * p->ld_y + p->ld_ffn);
  p->outputs_at = static_cast<size_t>(layout.layers) * p->layer_words;
  p->tokens_at = p->outputs_at + rows * static_cast<size_t>(p->ld_outputs);
  p->words = p->tokens_at + static_cast<size_t>(RoundUp(p->rows, 2));
}

// Adds weights, and states if `states`, to shared memory if they fit.
bool Keep(bool states, size_t limit, const ShareBytes& share, LatencyPlan* p) {
  const size_t state_bytes = states ? static_cast<size_t>(share.units * p->rows) *
                                          static_cast<size_t>(p->ld_state) * sizeof(float)
                                    : 0;
  const size_t bytes = p->shared_bytes + state_bytes + share.weights;
  if (bytes > limit) return false;
  p->states_stay = states;
  p->weights = p->states + static_cast<int>(state_bytes / sizeof(float));
  p->shared_bytes = bytes;
  return true;
}

}  // namespace

LatencyPlan PlanLatency(const StepModel& model, int rows, int multiprocessors,
                        size_t shared_limit) {
  LatencyPlan plan;
  plan.rows = rows;
  SetOrder(model, &plan);
  PlaceInShared(model, &plan);
  PlaceInExchange(model, &plan);
  for (const bool states : {true, false}) {
    for (int stages = std::min(model.attention.layout.layers, multiprocessors); stages > 0;
         --stages) {
      plan.stages = stages;
      plan.stage_blocks = multiprocessors / stages;
      if (Keep(states, shared_limit, LargestShare(model, plan), &plan)) return plan;
    }
  }
  return {};
}

}  // namespace rivulet::kernels
