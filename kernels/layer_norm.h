// SPDX-License-Identifier: Apache-2.0
// Layer normalisation: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias      [Ba et al. 2016]
//   x, y [rows, ld] float32, y may be x; weight, bias [n]; var is the biased variance.
// Columns n .. ld - 1 of y become 0. Sums run over 16 virtual lanes in a fixed tree, so a row's
// bits depend on the row alone. On the CPU this is group_norm.h with one group.
// Thread: any. Tested by: tests/parity/cuda_layer_norm_test.cc
#pragma once

namespace rivulet::kernels {

struct LayerNormArgs {
  const float* x = nullptr;
  float* y = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int rows = 0, n = 0, ld = 0;
  float eps = 0;
};

void LayerNormRef(const LayerNormArgs& args);  // double; tests only

}  // namespace rivulet::kernels
