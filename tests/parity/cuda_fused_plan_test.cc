// SPDX-License-Identifier: Apache-2.0
// What PlanFused and ListFusedPieces say, for a device that nobody has here.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "kernels/fused_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr size_t kShared = 227 << 10;  // an H200

StepModel Model(int layers, int hidden, int heads, int dim, int ffn) {
  StepModel model;
  model.hidden = hidden;
  model.ffn = ffn;
  model.head.n = 30;
  model.attention.layout = {layers, heads, dim, dim};
  model.attention.map.key_dim = dim;
  return model;
}
StepModel MnistLinear() { return Model(8, 256, 8, 32, 1024); }

std::vector<StepLayer> Layers(const StepModel& model) {
  std::vector<StepLayer> layers(size_t(model.attention.layout.layers));
  const int values = model.attention.layout.heads * model.attention.layout.value_dim;
  uintptr_t next = 1 << 20;
  const auto matrix = [&](int k, int n) {
    const CudaMatrix made = {WeightType::kF16, k, n, reinterpret_cast<void*>(next), nullptr};
    next += CudaPackedSize(WeightType::kF16, k, n);
    return made;
  };
  for (StepLayer& layer : layers) {
    layer.qkv = matrix(model.hidden, 3 * values);
    layer.out = matrix(values, model.hidden);
    layer.ffn1 = matrix(model.hidden, model.ffn);
    layer.ffn2 = matrix(model.ffn, model.hidden);
  }
  return layers;
}

// As measured on an H200: 66 clusters of two blocks, 30 of four.
constexpr FusedResident kResident = {{132, 132, 120}};

TEST(CudaFusedPlanTest, RowsSpreadInFewWavesThenInLargeClustersThenEvenly) {
  struct Case {
    int rows, each, cluster;
  };
  for (const Case& c : {Case{1, 1, 4},
                        {120, 1, 4},
                        {121, 2, 4},
                        {1024, 9, 4},
                        {3840, 32, 4},
                        {3841, 30, 2},
                        {4096, 32, 2},
                        {7680, 32, 4},
                        {16384, 32, 2}}) {
    const FusedSpread spread = SpreadFused(c.rows, 32, kResident);
    EXPECT_EQ(spread.rows, c.each) << c.rows;
    EXPECT_EQ(spread.cluster, c.cluster) << c.rows;
  }
  EXPECT_EQ(SpreadFused(1024, 32, {{132, 0, 0}}).rows, 8);
  EXPECT_EQ(SpreadFused(1024, 32, {{132, 0, 0}}).cluster, 1);
  EXPECT_EQ(SpreadFused(4096, 13, {{132, 0, 0}}).rows, 11);  // three waves
}

TEST(CudaFusedPlanTest, SharedMemoryIsForDeepRingsFirstAndThenForHeadsARound) {
  FusedPlan plan = PlanFused(MnistLinear(), 32, kShared);
  EXPECT_EQ(plan.depth, 3);
  EXPECT_EQ(plan.round_heads, 4);
  plan = PlanFused(MnistLinear(), 9, kShared);
  EXPECT_EQ(plan.depth, 5);
  EXPECT_EQ(plan.round_heads, 8);
  // The rings and everything else, to the byte.
  EXPECT_EQ(plan.shared_bytes,
            size_t(plan.ring) * sizeof(float) + size_t(kFusedWarps * plan.depth * plan.slot_bytes));
  EXPECT_EQ(plan.slot_bytes, 4096 + 32 * 4);
}

TEST(CudaFusedPlanTest, WideModelsHaveFewerRowsABlockUntilNotOneFits) {
  const FusedPlan wide = PlanFused(Model(12, 768, 12, 64, 3072), 32, kShared);
  EXPECT_GT(wide.rows, 8);
  EXPECT_LT(wide.rows, 16);
  const StepModel wider = Model(1, 12288, 96, 64, 49152);
  EXPECT_EQ(PlanFused(wider, 32, kShared).rows, 0);
  EXPECT_GT(LeastFusedBytes(wider), kShared);
  EXPECT_EQ(PlanFused(wider, 32, LeastFusedBytes(wider)).rows, 1);
  EXPECT_EQ(PlanFused(wider, 32, LeastFusedBytes(wider) - 1).rows, 0);
}

TEST(CudaFusedPlanTest, TheListsOfTheWarpsHoldEveryWeightAndEveryStateOnce) {
  for (const int rows : {1, 9, 32}) {
    const StepModel model = MnistLinear();
    const std::vector<StepLayer> layers = Layers(model);
    const FusedPlan plan = PlanFused(model, rows, kShared);
    std::vector<FusedPiece> pieces(size_t(plan.pieces()));
    ListFusedPieces(model, layers.data(), plan, pieces.data());
    std::map<uint64_t, int> weights, states;  // by block of 512 bytes; by row and place
    size_t z = 0;
    for (const FusedPiece& piece : pieces) {
      for (int j = 0; piece.row == FusedPiece::kWeights && j < piece.tiles; ++j) {
        for (int s = 0; s < piece.steps; ++s) {
          ++weights[piece.at + uint64_t(j) * piece.stride + uint64_t(s) * 512];
        }
      }
      if (piece.row < 0) continue;
      ++states[uint64_t(piece.row) << 32 | piece.at];
      if (piece.stride != FusedPiece::kNoZ) ++z;
    }
    size_t blocks = 0;
    for (const StepLayer& l : layers) {
      for (const CudaMatrix& w : {l.qkv, l.out, l.ffn1, l.ffn2}) {
        const auto first = reinterpret_cast<uint64_t>(w.packed);
        for (size_t at = 0; at < CudaPackedSize(w.type, w.k, w.n); at += 512, ++blocks) {
          ASSERT_EQ(weights[first + at], 1);
        }
      }
    }
    EXPECT_EQ(weights.size(), blocks);
    EXPECT_EQ(states.size(), size_t(8 * 8 * plan.rows));
    EXPECT_EQ(z, states.size());
    for (const auto& [at, count] : states) ASSERT_EQ(count, 1) << at;
  }
}

// Else a state would be asked for again before its new values are written.
TEST(CudaFusedPlanTest, AListIsLongerThanItsRingIsDeep) {
  const StepModel tiny = Model(1, 8, 1, 32, 8);
  const std::vector<StepLayer> layers = Layers(tiny);
  const FusedPlan plan = PlanFused(tiny, 1, kShared);
  EXPECT_EQ(plan.depth, kFusedMaxDepth);
  std::vector<FusedPiece> pieces(size_t(plan.pieces()));
  ListFusedPieces(tiny, layers.data(), plan, pieces.data());
  for (int w = 0; w < kFusedWarps; ++w) EXPECT_EQ(plan.begin[w + 1] - plan.begin[w], 7);
  EXPECT_EQ(pieces.back().row, FusedPiece::kIdle);
}

TEST(CudaFusedPlanTest, WhatNoKernelTakesIsSaid) {
  StepModel model = MnistLinear();
  EXPECT_EQ(CheckFusedCuda(model), nullptr);
  model.type = WeightType::kF32;
  EXPECT_STREQ(CheckFusedCuda(model), "it needs fp16 products (precision \"default\")");
  EXPECT_NE(CheckFusedCuda(Model(8, 256, 8, 24, 1024)), nullptr);
}

}  // namespace
}  // namespace rivulet::kernels
