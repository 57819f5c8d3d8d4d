// SPDX-License-Identifier: Apache-2.0
// A model's attention layer with random inputs: what the tests of its CUDA kernels share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/linear_attention.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

struct AttentionCaseShape {
  FeatureMapKind kind = FeatureMapKind::kElu;
  int heads = 1, key_dim = 1, value_dim = 1, columns = 0;
  bool gated = false;
  uint32_t seed = 1;
};

// A model's attention layer, with inputs for some token rows.
struct AttentionCase {
  AttentionCase(const AttentionCaseShape& shape, int token_rows) : s(shape), rows(token_rows) {
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

  CudaAttentionArgs Args(const DeviceArray<CudaSegment>& segments, const DeviceArray<float>& in,
                         const DeviceArray<float>& om, const DeviceArray<float>& states,
                         const DeviceArray<float>& out) const {
    CudaAttentionArgs args;
    args.segments = segments.data();
    args.num_segments = int(segments.size());
    args.qkv = in.data();
    args.out = out.data();
    args.ld_qkv = ld;
    args.ld_out = LdOut();
    args.states = states.data();
    args.layout = layout;
    args.layer = 1;
    args.map = map;
    args.map.omega = om.data();
    args.omega_per_head = OmegaAt(1);
    args.gated = s.gated;
    args.clamp = s.gated;
    args.normalizer = s.gated ? 0.01f : 1e-6f;
    return args;
  }
  int LdOut() const { return (s.heads * s.value_dim + 3) / 4 * 4 + 4; }

  // The reference's outputs and states for the same segments; untouched rows stay as they are.
  void Reference(const std::vector<CudaSegment>& segments, std::vector<float>* states,
                 std::vector<float>* out) const {
    for (const CudaSegment& segment : segments) {
      for (int h = 0; h < s.heads && segment.num_rows > 0; ++h) {
        LinearAttentionArgs args;
        args.map = map;
        args.map.omega = omega.data() + OmegaAt(h);
        const float* row = qkv.data() + segment.first_row * ld;
        args.query = row + h * s.key_dim;
        args.key = row + (s.heads + h) * s.key_dim;
        args.value = row + 2 * s.heads * s.key_dim + h * s.value_dim;
        args.gate = s.gated ? row + s.heads * (2 * s.key_dim + s.value_dim) + h : nullptr;
        args.out = out->data() + segment.first_row * LdOut() + h * s.value_dim;
        float* slot = states->data() + size_t(segment.slot) * layout.floats_per_slot();
        args.s = slot + layout.s_offset(1, h);
        args.z = slot + layout.z_offset(1, h);
        args.ld = size_t(ld);
        args.ld_out = size_t(LdOut());
        args.tokens = segment.num_rows;
        args.features = layout.features;
        args.value_dim = s.value_dim;
        args.clamp = s.gated;
        args.normalizer = s.gated ? 0.01f : 1e-6f;
        LinearAttentionRef(args);
      }
    }
  }

  AttentionCaseShape s;
  int rows, ld;
  FeatureMapArgs map;
  StateLayout layout;
  std::vector<float> omega, qkv;
};

// States of `slots` sessions as they have them after a while.
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
