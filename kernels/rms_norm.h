// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation of groups of a row, each by itself:
//
//   y = x / sqrt(mean(x^2) + eps) * weight                               [Zhang & Sennrich 2019]
//
// A row is `groups` groups of `size` values: one group for a norm of the whole row, one per head
// for a norm of heads, n_groups for Mamba-2. Columns from groups * size on are left alone.
// Sums run over 16 virtual lanes in a fixed tree, so a group's bits depend on the group alone.
// Thread: any. Tested by: tests/parity/rms_norm_test.cc
#pragma once

#include <cstddef>

namespace rivulet::kernels {

struct RmsNormArgs {
  const float* x = nullptr;       // [rows, x_stride]
  float* y = nullptr;             // [rows, y_stride]; may be x with the same stride
  const float* weight = nullptr;  // group g's begins at weight + g * weight_stride; null: 1
  size_t x_stride = 0, y_stride = 0;
  size_t weight_stride = 0;  // 0: all groups share [size]; size: [groups, size]
  int rows = 0, groups = 1, size = 0;
  float eps = 0;
};

void RmsNormRef(const RmsNormArgs& args);  // double; tests only
void RmsNormCpu(const RmsNormArgs& args);

}  // namespace rivulet::kernels
