// SPDX-License-Identifier: Apache-2.0
// Causal convolution of each channel by itself: the short convolution before the state update of
// Mamba-2 and the delta rules [Gu & Dao 2023, 3.4]. Tokens of one sequence, in order.
//
//   y[t][c] = f(bias[c] + sum_{j = 0 .. width - 1} weight[j][c] x[t - width + 1 + j][c])
//
// The last tap weighs the current token. f is the identity or SiLU. The state holds x before this
// call's first token: the last width - 1 inputs of earlier calls, oldest first, zero at the start.
//
// Numerics: the sum starts at the bias and takes j in ascending order with fused multiply-adds, so
// the bits depend on the channel's own inputs alone; several tokens in one call give the same bits
// as calls of one token each. Thread: any; calls on different states may run at once.
// Tested by: tests/parity/causal_conv_test.cc
#pragma once

#include <cstddef>

namespace rivulet::kernels {

inline constexpr int kMaxConvWidth = 8;  // checkpoints have 4

struct CausalConvArgs {
  const float* x = nullptr;       // [tokens, x_stride]
  const float* weight = nullptr;  // [width, channels]; checkpoints store [channels, 1, width]
  const float* bias = nullptr;    // [channels]; null: 0
  float* y = nullptr;             // [tokens, y_stride]; no array may overlap another
  float* state = nullptr;         // [width - 1, channels] in-out; unused where width is 1
  // x_stride, y_stride >= channels; width: 1 to kMaxConvWidth.
  size_t x_stride = 0, y_stride = 0;
  int tokens = 0, channels = 0, width = 0;
  bool silu = false;
};

void CausalConvRef(const CausalConvArgs& args);  // double; tests only
// Cost: 2 tokens channels width flop; width reads of each input.
void CausalConvCpu(const CausalConvArgs& args);

}  // namespace rivulet::kernels
