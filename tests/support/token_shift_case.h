// SPDX-License-Identifier: Apache-2.0
// One token shift with its data, for the tests of the CPU kernel and the CUDA kernel.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/token_shift.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// `slots` sequences of `tokens` rows each. A row of y has all mixes side by side, and rows of x and
// y are wider than the computed part. `before` floats precede a sequence's state.
struct TokenShiftCase {
  TokenShiftCase(int columns, int count, int length, int sequences = 1, int floats_before = 0)
      : n(columns),
        mixes(count),
        tokens(length),
        slots(sequences),
        before(floats_before),
        x(RandomFloats(size_t(slots * tokens * ld_x()), 1, -3, 3)),
        mix(RandomFloats(size_t(count * columns), 2, 0, 1)),
        states(RandomFloats(size_t(slots) * floats_per_slot(), 3, -3, 3)) {}

  int ld_x() const { return n + 3; }
  int mix_stride() const { return n + 2; }
  int ld_y() const { return mixes * mix_stride(); }
  size_t y_size() const { return size_t(slots * tokens * ld_y()); }
  size_t floats_per_slot() const { return size_t(before + n + (before == 0 ? 0 : 3)); }
  // `count` tokens of sequence `slot` from `first` on; `y` and `states` are of all sequences.
  TokenShiftArgs Args(int slot, int first, int count, float* y, float* all_states) const {
    const int row = slot * tokens + first;
    TokenShiftArgs args;
    args.x = x.data() + row * ld_x();
    args.mix = mix.data();
    args.y = y + row * ld_y();
    args.state = all_states + size_t(slot) * floats_per_slot() + before;
    args.x_stride = size_t(ld_x());
    args.y_stride = size_t(ld_y());
    args.mix_stride = size_t(mix_stride());
    args.tokens = count;
    args.mixes = mixes;
    args.n = n;
    return args;
  }

  int n, mixes, tokens, slots, before;
  std::vector<float> x, mix, states;
};

// Odd shapes, with one mix and with RWKV-7's number of mixes.
inline std::vector<TokenShiftCase> TokenShiftCases(int slots = 1, int before = 0, int tokens = 0) {
  std::vector<TokenShiftCase> cases;
  for (const auto& [n, mixes, length] :
       {std::array{1, 1, 5}, {16, 6, 9}, {45, 6, 4}, {64, 1, 1}, {33, 2, 20}, {70, 6, 3}}) {
    cases.emplace_back(n, mixes, tokens == 0 ? length : tokens, slots, before);
  }
  return cases;
}

}  // namespace rivulet::kernels
