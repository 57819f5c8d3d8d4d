// SPDX-License-Identifier: Apache-2.0
// RWKV's token shift: each token mixed with the one before, in several proportions at once.
//
//   y[m][t] = x[t] + (x[t - 1] - x[t]) * mix[m]                                    [Peng 2025]
//
// The state holds x before this call's first token: the last x of earlier calls, zero at the start.
// A row's bits depend on x[t - 1], x[t] and mix alone; several tokens in one call give the same
// bits as calls of one token each. Thread: any; calls on different states may run at once.
// Tested by: tests/parity/token_shift_test.cc
#pragma once

#include <cstddef>

namespace rivulet::kernels {

struct TokenShiftArgs {
  const float* x = nullptr;    // [tokens, x_stride]
  const float* mix = nullptr;  // [mixes, n]
  float* y = nullptr;          // mix m of token t at y + m * mix_stride + t * y_stride; no overlaps
  float* state = nullptr;      // [n] in-out
  size_t x_stride = 0, y_stride = 0, mix_stride = 0;
  int tokens = 0, mixes = 0, n = 0;
};

void TokenShiftRef(const TokenShiftArgs& args);  // double; tests only
// Cost: 4 * tokens * n * (2 + mixes) bytes of activations.
void TokenShiftCpu(const TokenShiftArgs& args);

}  // namespace rivulet::kernels
