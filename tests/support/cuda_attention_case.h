// SPDX-License-Identifier: Apache-2.0
// The layer of attention_case.h on a device.
#pragma once

#include <vector>

#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "tests/support/attention_case.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuts.h"

namespace rivulet::kernels {

inline CudaAttentionArgs CudaArgsOf(const AttentionCase& c,
                                    const DeviceArray<CudaSegment>& segments,
                                    const DeviceArray<float>& in, const DeviceArray<float>& omega,
                                    const DeviceArray<float>& states,
                                    const DeviceArray<float>& out) {
  CudaAttentionArgs args;
  args.segments = segments.data();
  args.num_segments = int(segments.size());
  args.qkv = in.data();
  args.out = out.data();
  args.ld_qkv = c.ld;
  args.ld_out = c.LdOut();
  args.states = states.data();
  args.layout = c.layout;
  args.layer = 1;
  args.map = c.map;
  args.map.omega = omega.data();
  args.omega_per_head = c.OmegaAt(1);
  args.gated = c.s.gated;
  args.clamp = c.s.gated;
  args.normalizer = c.s.gated ? 0.01f : 1e-6f;
  return args;
}

// Result of the reference, from StatesOf(c, slots) and outputs of 7.
inline RowsAndStates ExpectedOf(const AttentionCase& c, const std::vector<CudaSegment>& segments,
                                int slots) {
  RowsAndStates result = {std::vector<float>(c.y_size(), 7.0f), StatesOf(c, slots)};
  for (const CudaSegment& segment : segments) {
    if (segment.num_rows == 0) continue;
    float* const state = result.states.data() + size_t(segment.slot) * c.layout.floats_per_slot();
    for (int h = 0; h < c.s.heads; ++h) {
      LinearAttentionRef(
          c.HeadArgs(segment.first_row, segment.num_rows, result.y.data(), state, h));
    }
  }
  return result;
}

// A layer whose outputs are initially 7.
struct DeviceAttention {
  DeviceAttention(const AttentionCase& c, const std::vector<CudaSegment>& list,
                  const std::vector<float>& before)
      : segments(list),
        in(c.qkv),
        omega(c.omega),
        states(before),
        out(std::vector<float>(c.y_size(), 7.0f)),
        args(CudaArgsOf(c, segments, in, omega, states, out)) {}

  DeviceArray<CudaSegment> segments;
  DeviceArray<float> in, omega, states, out;
  CudaAttentionArgs args;
};

}  // namespace rivulet::kernels
