// SPDX-License-Identifier: Apache-2.0
// A matrix product on the CPU with its data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/gemm.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// A packed matrix `w` [n, k] and its bias.
struct HostMatrix {
  HostMatrix(WeightType type, int k, int n)
      : HostMatrix(type, k, n, RandomFloats(size_t(n) * size_t(k), 1, -0.2f, 0.2f)) {}
  // `pack`: for types whose weights are not made by rounding.
  using Pack = void (*)(WeightType, const float* w, int n, int k, void* panels);
  HostMatrix(WeightType type, int k, int n, const std::vector<float>& w, Pack pack = nullptr)
      : panels(std::vector<float>(PackedSize(type, k, n) / sizeof(float) + 1)),
        bias(size_t(PaddedColumns(n))) {
    if (pack != nullptr) {
      pack(type, w.data(), n, k, panels.data());
    } else {
      EXPECT_TRUE(PackWeights(type, w.data(), n, k, 0, panels.data()));
    }
    const std::vector<float> b = RandomFloats(size_t(n), 2);
    std::copy(b.begin(), b.end(), bias.begin());
    packed = {type, k, n, panels.data()};
  }
  // All panels; y is the residual, too. kScatter adds each row to itself, scaled.
  GemmArgs Args(const std::vector<float>& x, int ldx, int rows, float* y, Epilogue epilogue) const {
    GemmArgs args;
    args.w = packed;
    args.bias = bias.data();
    args.x = x.data();
    args.y = y;
    args.residual = y;
    static const std::vector<float> kScales = RandomFloats(256, 5);
    static const std::vector<int32_t> kRows = [] {
      std::vector<int32_t> all(256);
      std::iota(all.begin(), all.end(), 0);
      return all;
    }();
    args.scatter = {kRows.data(), kScales.data()};
    args.rows = rows;
    args.ldx = ldx;
    args.ldy = PaddedColumns(packed.n);
    args.epilogue = epilogue;
    args.panel_end = NumPanels(packed.n);
    return args;
  }
  GuardedFloats panels;
  std::vector<float> bias;
  PackedMatrix packed;
};

}  // namespace rivulet::kernels
