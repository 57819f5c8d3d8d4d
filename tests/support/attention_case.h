// SPDX-License-Identifier: Apache-2.0
// One layer of linear attention with its data, for the tests of the CPU kernel and the CUDA kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/linear_attention.h"
#include "kernels/state_layout.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

struct AttentionShape {
  FeatureMapKind kind = FeatureMapKind::kElu;
  int heads = 1, key_dim = 1, value_dim = 1, columns = 0;
  bool gated = false;
  uint32_t seed = 1;
};

// A layer, with inputs for several token rows.
struct AttentionCase {
  AttentionCase(const AttentionShape& shape, int token_rows) : s(shape), rows(token_rows) {
    map.kind = s.kind;
    map.key_dim = s.key_dim;
    map.columns = s.columns;
    const int n = std::max(2 * s.columns, 1);
    if (s.kind == FeatureMapKind::kRandomFourier) map.out_scale = std::sqrt(2.0f / float(n));
    if (s.kind == FeatureMapKind::kSmoothedRandomFourier) {
      map.out_scale = std::sqrt(2.0f / float(n));
      map.smoothing = 1;
    }
    if (s.kind == FeatureMapKind::kFavor) map.out_scale = std::log(float(n)) / 2;
    if (s.kind == FeatureMapKind::kRfa) map.out_scale = 1 / std::sqrt(float(s.columns));
    map.x_scale = s.kind == FeatureMapKind::kElu || s.kind == FeatureMapKind::kRfa ? 1 : 0.6f;
    layout = {2, s.heads, KeyFeatures(s.kind, s.key_dim, s.columns), s.value_dim};
    omega =
        RandomFloats(size_t(s.heads * s.key_dim * std::max(s.columns, 1)), s.seed + 1, -1.5f, 1.5f);
    const int width = s.heads * (2 * s.key_dim + s.value_dim + 1);
    ld = (width + 3) / 4 * 4;
    qkv = RandomFloats(size_t(rows * ld), s.seed + 2, -2, 2);
  }

  // Omega of one head: its own for rfa, else the first.
  size_t OmegaAt(int head) const {
    return s.kind == FeatureMapKind::kRfa ? size_t(head * s.key_dim * s.columns) : 0;
  }

  int LdOut() const { return (s.heads * s.value_dim + 3) / 4 * 4 + 4; }
  size_t y_size() const { return size_t(rows * LdOut()); }

  // `count` tokens of a head from a row on; `slot`: holds the state of the sequence.
  LinearAttentionArgs HeadArgs(int first_row, int count, float* out, float* slot,
                               int head = 0) const {
    LinearAttentionArgs args;
    args.map = map;
    args.map.omega = omega.data() + OmegaAt(head);
    const float* const row = qkv.data() + first_row * ld;
    args.query = row + head * s.key_dim;
    args.key = row + (s.heads + head) * s.key_dim;
    args.value = row + 2 * s.heads * s.key_dim + head * s.value_dim;
    args.gate = s.gated ? row + GateAt(head) : nullptr;
    args.out = out + first_row * LdOut() + head * s.value_dim;
    args.s = slot + layout.s_offset(1, head);
    args.z = slot + layout.z_offset(1, head);
    args.ld = size_t(ld);
    args.ld_out = size_t(LdOut());
    args.tokens = count;
    args.features = layout.features;
    args.value_dim = s.value_dim;
    args.clamp = s.gated;
    args.normalizer = s.gated ? 0.01f : 1e-6f;
    return args;
  }
  int GateAt(int head) const { return s.heads * (2 * s.key_dim + s.value_dim) + head; }

  AttentionShape s;
  int rows, ld;
  FeatureMapArgs map;
  StateLayout layout;
  std::vector<float> omega, qkv;
};

inline const std::vector<AttentionShape>& AttentionShapes() {
  using K = FeatureMapKind;
  static const std::vector<AttentionShape> shapes = {
      {K::kElu, 3, 32, 32, 0, false, 1},
      {K::kElu, 2, 64, 64, 0, false, 2},
      {K::kRfa, 2, 64, 64, 64, true, 3},
      {K::kRfa, 3, 32, 32, 32, true, 4},
      {K::kElu, 2, 8, 8, 0, false, 5},
      {K::kElu, 3, 3, 5, 0, true, 6},
      {K::kElu, 1, 1, 1, 0, false, 7},
      {K::kRandomFourier, 2, 8, 8, 8, false, 8},
      {K::kSmoothedRandomFourier, 2, 7, 9, 8, false, 9},
      {K::kFavor, 2, 8, 8, 8, false, 10},
      {K::kGeneralizedRandomRelu, 2, 8, 8, 12, false, 11},
      {K::kGeneralizedRandomRelu, 2, 6, 32, 32, true, 12},  // 32 x 32 from another map
      {K::kFavor, 3, 3, 32, 16, false, 13},                 // 32 x 32 with odd offsets
      {K::kElu, 1, 130, 200, 0, false, 14},                 // several blocks of columns
      {K::kRandomFourier, 1, 40, 33, 150, false, 15},
      {K::kElu, 1, 64, 64, 0, true, 16},
      {K::kElu, 1, 7, 5, 0, false, 17},
      {K::kElu, 2, 17, 33, 0, true, 18},
      {K::kElu, 1, 48, 80, 0, true, 19},
  };
  return shapes;
}

// States of `slots` sessions after some tokens.
inline std::vector<float> StatesOf(const AttentionCase& c, int slots) {
  std::vector<float> states = RandomFloats(size_t(slots) * c.layout.floats_per_slot(), 9, 0, 1);
  for (int slot = 0; slot < slots; ++slot) {
    for (int h = 0; h < c.s.heads; ++h) {  // z well above zero
      float* z = &states[size_t(slot) * c.layout.floats_per_slot() + c.layout.z_offset(1, h)];
      for (int f = 0; f < c.layout.features; ++f) z[f] += 1;
    }
  }
  return states;
}

}  // namespace rivulet::kernels
