// SPDX-License-Identifier: Apache-2.0
// Shared helpers for the tests of kernels with a recurrent state: sequences whose tokens are given
// in one call or in several calls.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

struct RowsAndStates {
  std::vector<float> y, states;
};

// Elements of y that a kernel must not write stay 7.
template <class Case>
RowsAndStates Start(const Case& c) {
  return {std::vector<float>(c.y_size(), 7.0f), c.states};
}

// Result of `reference`. Every second sequence has no tokens.
template <class Case, class Args>
RowsAndStates Expected(const Case& c, void (*reference)(const Args&)) {
  RowsAndStates result = Start(c);
  for (int slot = 0; slot < c.slots; slot += 2) {
    reference(c.Args(slot, 0, c.tokens, result.y.data(), result.states.data()));
  }
  return result;
}

// Sequence 0, `chunk` tokens per call.
template <class Case, class Kernel>
RowsAndStates RunCpu(const Case& c, int chunk, const Kernel& kernel) {
  const RowsAndStates start = Start(c);
  GuardedFloats y(start.y), states(start.states);
  for (int t = 0; t < c.tokens; t += chunk) {
    kernel(c.Args(0, t, std::min(chunk, c.tokens - t), y.data(), states.data()));
  }
  EXPECT_TRUE(y.Intact() && states.Intact());
  return {y.Copy(), states.Copy()};
}

// Chunks of any size give the same bits on every CPU target with fused multiply-add.
template <class Case, class Kernel>
void ExpectTheSameInEveryChunk(const Case& c, const Kernel& kernel,
                               const std::vector<int>& chunks = {1, 2, 3, 7, 16, 1000}) {
  const RowsAndStates reference = RunCpu(c, 1, kernel);
  ForEachCpuTarget([&](const std::string& target) {
    if (!CpuTargetFuses()) return;
    for (const int chunk : chunks) {
      const RowsAndStates result = RunCpu(c, chunk, kernel);
      ASSERT_TRUE(SameBits(result.y, reference.y)) << target << " chunk " << chunk;
      ASSERT_TRUE(SameBits(result.states, reference.states)) << target << " chunk " << chunk;
    }
  });
}

}  // namespace rivulet::kernels
