// SPDX-License-Identifier: Apache-2.0
// Sequences whose tokens are given in one launch or in several launches, for the tests of CUDA
// kernels with a recurrent state.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/cuda/common/launch_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuts.h"

namespace rivulet::kernels {

// Sequence i has slot i and token rows from i kCutTokens on. Sequence 1 has no tokens.
constexpr int kCutTokens = 11, kCutSlots = 3, kCutBefore = 4, kCutRows = kCutSlots * kCutTokens;

// Calls `launch(args)` for every `chunk` tokens (or fewer) of the sequences in a pass of `rows`
// rows. With chunks of 3, a piece begins with the last of 16 rows.
template <class Args, class Case, class Launch>
RowsAndStates RunCuts(const Case& c, int chunk, int rows, const Launch& launch) {
  const RowsAndStates start = Start(c);
  const DeviceArray<float> x(c.x), y(start.y), states(start.states);
  for (int t = 0; t < kCutTokens; t += chunk) {
    const int count = std::min(chunk, kCutTokens - t);
    const DeviceArray<CudaSegment> segments(std::vector<CudaSegment>{
        {2, 2 * kCutTokens + t, count, 0}, {1, kCutTokens, 0, 0}, {0, t, count, 0}});
    Args args;
    args.segments = segments.data();
    args.num_segments = 3;
    args.rows = rows;
    args.x = x.data();
    args.y = y.data();
    args.ld_x = c.ld_x();
    args.ld_y = c.ld_y();
    args.states = states.data();
    args.floats_per_slot = c.floats_per_slot();
    args.offset = size_t(c.before);
    EXPECT_EQ(launch(args), cudaSuccess);  // ~DeviceArray of `segments` waits for it
  }
  return {y.Copy(), states.Copy()};
}

// `run(launch, chunk, rows)` returns RowsAndStates. y equals `expected` within `tolerance`, the
// states exactly. Pieces of any size give the bits of one launch; so do passes with enough `rows`
// that blocks take rows instead of segments.
template <class F>
void ExpectTheSameInEveryCut(const RowsAndStates& expected, double tolerance, const F& run) {
  ForEachOrder([&](const CudaLaunch& launch) {
    const RowsAndStates whole = run(launch, kCutTokens, kCutRows);
    ASSERT_TRUE(Near(whole.y, expected.y, tolerance));
    ASSERT_TRUE(SameBits(whole.states, expected.states));
    for (const int chunk : {1, 2, 3, 5, kCutTokens}) {
      for (const int rows : {kCutRows, kCutRows + 67}) {
        const RowsAndStates cut = run(launch, chunk, rows);
        ASSERT_TRUE(SameBits(cut.y, whole.y)) << "in chunks of " << chunk << ", " << rows;
        ASSERT_TRUE(SameBits(cut.states, whole.states)) << "in chunks of " << chunk << ", " << rows;
      }
    }
  });
}

}  // namespace rivulet::kernels
