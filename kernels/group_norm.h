// SPDX-License-Identifier: Apache-2.0
// Group normalisation: mean and variance of each group of a row, in RWKV-7 of each head:
//
//   y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias                     [Wu & He 2018]
//
// var is the biased variance. A row is `groups` groups of `size` values; columns from groups * size
// on are left alone. Sums run over 16 virtual lanes in a fixed tree, so a group's bits depend on
// the group alone. Thread: any. Tested by: tests/parity/group_norm_test.cc
#pragma once

#include <cstddef>

namespace rivulet::kernels {

struct GroupNormArgs {
  const float* x = nullptr;       // [rows, x_stride]
  float* y = nullptr;             // [rows, y_stride]; may be x with the same stride
  const float* weight = nullptr;  // [groups, size]; null: 1
  const float* bias = nullptr;    // [groups, size]; null: 0
  size_t x_stride = 0, y_stride = 0;
  int rows = 0, groups = 1, size = 0;
  float eps = 0;
};

void GroupNormRef(const GroupNormArgs& args);  // double; tests only
void GroupNormCpu(const GroupNormArgs& args);

}  // namespace rivulet::kernels
