// SPDX-License-Identifier: Apache-2.0
// What the tests of kernels share that carry a state from token to token (causal convolution, token
// shift): sequences whose tokens are given in one launch or in several.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/cuda/common/launch_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// Sequence i has slot i and token rows from i kCutTokens on. Sequence 1 has no tokens.
constexpr int kCutTokens = 11, kCutSlots = 3, kSlotsWithTokens[] = {0, 2};

struct RowsAndStates {
  std::vector<float> y, states;
};

// Calls f(segments, number of segments) for each `chunk` tokens, at most, of the sequences. With
// chunks of 3, a piece begins with the last of 16 rows.
template <class F>
void ForEachCut(int chunk, const F& f) {
  for (int t = 0; t < kCutTokens; t += chunk) {
    const int count = std::min(chunk, kCutTokens - t);
    const DeviceArray<CudaSegment> segments(std::vector<CudaSegment>{
        {2, 2 * kCutTokens + t, count, 0}, {1, kCutTokens, 0, 0}, {0, t, count, 0}});
    f(segments.data(), 3);
  }
}

// `run(launch, chunk, rows)` returns RowsAndStates. y is `expected` within `tolerance`, the states
// are exactly. Pieces of any size have the bits of one launch, and so have passes of so many `rows`
// that blocks take rows instead of segments.
template <class F>
void ExpectTheSameInEveryCut(const RowsAndStates& expected, double tolerance, const F& run) {
  ForEachOrder([&](const CudaLaunch& launch) {
    constexpr int kRows = kCutSlots * kCutTokens, kMoreRows = kRows + 67;
    const RowsAndStates whole = run(launch, kCutTokens, kRows);
    ASSERT_EQ(whole.y.size(), expected.y.size());
    for (size_t i = 0; i < whole.y.size(); ++i) {
      ASSERT_NEAR(whole.y[i], expected.y[i], tolerance) << "at " << i;
    }
    ASSERT_TRUE(SameBits(whole.states, expected.states));
    for (const int chunk : {1, 2, 3, 5, kCutTokens}) {
      for (const int rows : {kRows, kMoreRows}) {
        const RowsAndStates cut = run(launch, chunk, rows);
        ASSERT_TRUE(SameBits(cut.y, whole.y)) << "in chunks of " << chunk << ", " << rows;
        ASSERT_TRUE(SameBits(cut.states, whole.states)) << "in chunks of " << chunk << ", " << rows;
      }
    }
  });
}

}  // namespace rivulet::kernels
