// SPDX-License-Identifier: Apache-2.0
// What holds for every kernel that normalises groups of rows.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// Rows of `args.groups` groups of `args.size` values with a padding behind them: the results of
// `fast` are within `tolerance` of those of `reference`, the padding is left alone, and every CPU
// target that fuses gives the same bits. Sets args.y; strides of x and y must be equal.
template <class Args>
void ExpectRowsNormalised(Args args, void (*reference)(const Args&), void (*fast)(const Args&),
                          double tolerance) {
  const size_t stride = args.y_stride, used = size_t(args.groups * args.size);
  std::vector<float> expected(size_t(args.rows) * stride);
  args.y = expected.data();
  reference(args);
  std::vector<float> first;
  ForEachCpuTarget([&](const std::string& target) {
    GuardedFloats y(expected.size());
    args.y = y.data();
    fast(args);
    ASSERT_TRUE(y.Intact()) << target;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (i % stride >= used) {
        ASSERT_TRUE(std::isnan(y[i])) << "outside of the groups";
      } else {
        ASSERT_NEAR(y[i], expected[i], tolerance) << target << " size " << args.size;
      }
    }
    if (!CpuTargetFuses()) return;
    if (first.empty()) first = y.Copy();
    ASSERT_TRUE(SameBits(y.Copy(), first)) << target;
  });
}

}  // namespace rivulet::kernels
