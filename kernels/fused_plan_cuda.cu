// SPDX-License-Identifier: Apache-2.0
// How Fused() spreads a model over blocks and shared memory, and the order in which warps read it.
#include <algorithm>
#include <vector>

#include "kernels/categorical_cuda.h"
#include "kernels/fused_slices_cuda.h"
#include "kernels/linear_attention_shape_cuda.h"

namespace rivulet::kernels {
namespace {

int RoundUp(int n, int to) { return (n + to - 1) / to * to; }

// Rows of F16 pairs begin 4 words further in the banks than the row before: eight rows of an
// ldmatrix meet them all.
int HalvesLd(int columns) { return RoundUp(RoundUp(columns, 32) / 2, 32) + 4; }

// The shapes of a layer, without addresses.
StepLayer ShapeLayer(const StepModel& model) {
  const CudaAttentionArgs& p = model.attention;
  const StateLayout& layout = p.layout;
  const int qkv = layout.heads * (2 * p.map.key_dim + layout.value_dim + (p.gated ? 1 : 0));
  const auto matrix = [&](int k, int n) { return CudaMatrix{model.type, k, n, nullptr, nullptr}; };
  StepLayer layer;
  layer.qkv = matrix(model.hidden, qkv);
  layer.out = matrix(layout.heads * layout.value_dim, model.hidden);
  layer.ffn1 = matrix(model.hidden, model.ffn);
  layer.ffn2 = matrix(model.ffn, model.hidden);
  return layer;
}

// The pieces of a warp's share of a product.
template <class F>
void ForEachWeights(const CudaMatrix& w, const TileGroups& groups, int warp, const F& f) {
  const int k_steps = (w.k + 31) / 32;
  const size_t tile_bytes = TileBytes(w.type, w.k);
  for (int g = warp; g < groups.count; g += kFusedWarps) {
    const TileRun run = groups.At(g);
    for (int step = 0; step < k_steps; step += kPieceSteps) {
      FusedPiece piece;
      piece.at = reinterpret_cast<uint64_t>(w.packed) +
                 static_cast<uint64_t>(run.first) * tile_bytes + static_cast<uint64_t>(step) * 512;
      piece.stride = static_cast<uint32_t>(tile_bytes);
      piece.row = FusedPiece::kWeights;
      piece.tiles = static_cast<uint8_t>(run.count);
      piece.steps = static_cast<uint8_t>(std::min(kPieceSteps, k_steps - step));
      f(piece);
    }
  }
}

// ... and of the states of a round of heads.
template <class F>
void ForEachState(const StateLayout& layout, const FusedPlan& plan, int layer, int first_head,
                  int warp, const F& f) {
  for (int i = warp; i < RoundUnits(plan); i += kFusedWarps) {
    const Unit unit = UnitAt(plan, i);
    const int head = first_head + unit.head;
    for (size_t at = 0; at < layout.s_floats_per_head(); at += kPieceFloats) {
      FusedPiece piece;
      piece.at = (layout.s_offset(layer, head) + at) * sizeof(float);
      piece.stride = at > 0 ? FusedPiece::kNoZ
                            : static_cast<uint32_t>(layout.z_offset(layer, head) * sizeof(float));
      piece.row = static_cast<int16_t>(unit.row);
      f(piece);
    }
  }
}

// All pieces of a warp in a step, in the order of their use.
template <class F>
void ForEachPiece(const StepModel& model, const StepLayer* layers, const FusedPlan& plan, int warp,
                  const F& f) {
  const StateLayout& layout = model.attention.layout;
  int count = 0;
  const auto counted = [&](const FusedPiece& piece) {
    ++count;
    f(piece);
  };
  for (int l = 0; l < layout.layers; ++l) {
    const StepLayer& layer = layers[l];
    for (int h = 0; h < layout.heads; h += plan.round_heads) {
      const RoundColumns columns(model.attention, h, plan.round_heads);
      ForEachWeights(layer.qkv, TileGroups(columns.Covering(model.type)), warp, counted);
      ForEachState(layout, plan, l, h, warp, counted);
    }
    for (const CudaMatrix* w : {&layer.out, &layer.ffn1, &layer.ffn2}) {
      ForEachWeights(*w, AllTiles(*w), warp, counted);
    }
  }
  // A state is asked for again `depth` pieces ahead of its use in the next step: by then its new
  // values must have been written.
  FusedPiece idle;
  idle.row = FusedPiece::kIdle;
  while (count <= plan.depth) counted(idle);
}

// Where things lie, with rings of `depth`.
void Place(const StepModel& model, int depth, FusedPlan* p) {
  const CudaAttentionArgs& attention = model.attention;
  const StateLayout& layout = attention.layout;
  const int n = p->round_heads, key = attention.map.key_dim;
  const bool elu = attention.map.kind == FeatureMapKind::kElu;
  int at = 0;
  const auto place = [&](int* where, int floats) {
    *where = at;
    at += RoundUp(floats, 4);
  };
  int sampling = 0;  // comes first
  constexpr int kTeams = kFusedThreads / kRowThreads;
  place(&sampling, static_cast<int>((kTeams * sizeof(RowShared) + 3) / 4));
  p->ld_x = RoundUp(model.hidden, 4) + 4;
  place(&p->x, p->rows * p->ld_x);
  p->ld_a = HalvesLd(model.hidden);
  place(&p->a, p->rows * p->ld_a);
  place(&p->rows_at, kFusedMaxRows * 4);  // positions, tokens, slots
  place(&p->barriers, kFusedWarps * 2 * kFusedMaxDepth * 2);
  p->ffn = at;
  p->ld_qkv = RoundUp(n * (2 * key + layout.value_dim + 1), 4);
  place(&p->qkv, p->rows * p->ld_qkv);
  p->ld_phi = elu ? 0 : n * 2 * layout.features;
  place(&p->phi, p->rows * p->ld_phi);
  p->ld_attention = HalvesLd(layout.heads * layout.value_dim);
  place(&p->attention, p->rows * p->ld_attention);
  p->ld_ffn = HalvesLd(model.ffn);
  at = RoundUp(std::max(at, p->ffn + p->rows * p->ld_ffn), 32);
  p->ring = at;
  p->depth = depth;
  p->slot_bytes = (kPieceFloats + RoundUp(layout.features, 32)) * 4;
  p->shared_bytes = static_cast<size_t>(at) * 4 +
                    static_cast<size_t>(kFusedWarps) * static_cast<size_t>(depth * p->slot_bytes);
}

// The deepest rings that fit beside everything else; less than 2: none worth having.
int Deepest(const StepModel& model, size_t shared_limit, FusedPlan* p) {
  for (int depth = kFusedMaxDepth; depth >= 2; --depth) {
    Place(model, depth, p);
    if (p->shared_bytes <= shared_limit) return depth;
  }
  return 0;
}

// Heads a round: as many as leave rings of four pieces, or else those that leave the deepest.
bool Fit(const StepModel& model, size_t shared_limit, FusedPlan* p) {
  constexpr int kEnough = 4;
  const int heads = model.attention.layout.heads;
  int best = 0, best_depth = 0;
  for (int n = heads; n > 0; --n) {
    if (heads % n != 0) continue;
    p->round_heads = n;
    const int depth = std::min(Deepest(model, shared_limit, p), kEnough);
    if (depth > best_depth) best = n, best_depth = depth;
  }
  if (best == 0) return false;
  p->round_heads = best;
  Deepest(model, shared_limit, p);
  return true;
}

}  // namespace

const char* CheckFusedCuda(const StepModel& model) {
  if (model.type != WeightType::kF16) return "it needs fp16 products (precision \"default\")";
  const bool known = ForAttentionShape(
                         model.attention, [](auto) { return cudaSuccess; },
                         [] { return cudaErrorInvalidValue; }) == cudaSuccess;
  return known ? nullptr
               : "it needs states of 32 x 32, 64 x 32, 64 x 64 or 128 x 64 features x values";
}

FusedPlan PlanFused(const StepModel& model, int rows, size_t shared_limit) {
  const std::vector<StepLayer> shapes(static_cast<size_t>(model.attention.layout.layers),
                                      ShapeLayer(model));
  FusedPlan plan;
  for (int each = rows; each > 0; --each) {
    plan.rows = each;
    if (!Fit(model, shared_limit, &plan)) continue;
    for (int w = 0; w < kFusedWarps; ++w) {
      plan.begin[w + 1] = plan.begin[w];
      ForEachPiece(model, shapes.data(), plan, w, [&](const FusedPiece&) { ++plan.begin[w + 1]; });
    }
    return plan;
  }
  return {};
}

FusedSpread SpreadFused(int rows, int most, const FusedResident& resident) {
  FusedSpread best;
  int least_waves = 0;
  for (int i = kFusedClusterSizes - 1; i >= 0; --i) {
    const int blocks = resident.blocks[i];
    if (blocks == 0) continue;
    const int waves = (rows + blocks * most - 1) / (blocks * most);
    if (best.rows > 0 && waves >= least_waves) continue;
    least_waves = waves;
    best = {(rows + blocks * waves - 1) / (blocks * waves), 1 << i};
  }
  return best;
}

size_t LeastFusedBytes(const StepModel& model) {
  FusedPlan plan;
  plan.rows = plan.round_heads = 1;
  Place(model, /*depth=*/2, &plan);
  return plan.shared_bytes;
}

void ListFusedPieces(const StepModel& model, const StepLayer* layers, const FusedPlan& plan,
                     FusedPiece* pieces) {
  for (int w = 0; w < kFusedWarps; ++w) {
    ForEachPiece(model, layers, plan, w, [&](const FusedPiece& piece) { *pieces++ = piece; });
  }
}

}  // namespace rivulet::kernels
