// SPDX-License-Identifier: Apache-2.0
// One causal convolution with its data, for the tests of the CPU kernel and the CUDA kernel.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/causal_conv.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// `slots` sequences of `tokens` rows each. Rows of x and y are wider than the channels: the
// convolution reads a part of a product's output. `before` floats precede a sequence's state.
struct CausalConvCase {
  CausalConvCase(int taps, int count, int length, bool with_bias, bool with_silu, int sequences = 1,
                 int floats_before = 0)
      : width(taps),
        channels(count),
        tokens(length),
        slots(sequences),
        before(floats_before),
        silu(with_silu),
        x(RandomFloats(size_t(slots * tokens * ld_x()), 1, -3, 3)),
        weight(RandomFloats(size_t(taps * count), 2)),
        bias(with_bias ? RandomFloats(size_t(count), 3) : std::vector<float>()),
        states(RandomFloats(size_t(slots) * floats_per_slot(), 4, -3, 3)) {}

  int ld_x() const { return channels + 3; }
  int ld_y() const { return channels + 2; }
  size_t y_size() const { return size_t(slots * tokens * ld_y()); }
  size_t floats_per_slot() const {
    return size_t(before + (width - 1) * channels + (before == 0 ? 0 : 3));
  }
  // `count` tokens of sequence `slot` from `first` on; `y` and `states` are of all sequences.
  CausalConvArgs Args(int slot, int first, int count, float* y, float* all_states) const {
    const int row = slot * tokens + first;
    CausalConvArgs args;
    args.x = x.data() + row * ld_x();
    args.weight = weight.data();
    args.bias = bias.empty() ? nullptr : bias.data();
    args.y = y + row * ld_y();
    args.state = all_states + size_t(slot) * floats_per_slot() + before;
    args.x_stride = size_t(ld_x());
    args.y_stride = size_t(ld_y());
    args.tokens = count;
    args.channels = channels;
    args.width = width;
    args.silu = silu;
    return args;
  }

  int width, channels, tokens, slots, before;
  bool silu;
  std::vector<float> x, weight, bias, states;
};

// Every width at odd shapes, with and without bias and SiLU.
inline std::vector<CausalConvCase> CausalConvCases(int slots = 1, int before = 0, int tokens = 0) {
  std::vector<CausalConvCase> cases;
  for (const auto& [width, channels, length] :
       {std::array{4, 45, 23}, {1, 7, 5}, {2, 16, 9}, {3, 33, 2}, {4, 128, 1}, {8, 20, 30}}) {
    for (const int options : {0, 1, 2, 3}) {
      cases.emplace_back(width, channels, tokens == 0 ? length : tokens, options % 2 == 1,
                         options / 2 == 1, slots, before);
    }
  }
  return cases;
}

}  // namespace rivulet::kernels
