// SPDX-License-Identifier: Apache-2.0
// Weights of a product as tests of CUDA kernels need them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda_packing.h"
#include "kernels/gemm.h"

namespace rivulet::kernels {

// `w` [n, k], packed for the GPU. Of kInt8 w becomes what the integers are.
inline std::vector<uint8_t> PackedForCuda(WeightType type, int k, int n, std::vector<float>& w) {
  const WeightType host = type == WeightType::kInt8 ? type : WeightType::kF32;
  std::vector<float> panels(PackedSize(host, k, n) / sizeof(float));
  EXPECT_TRUE(PackWeights(host, w.data(), n, k, 0, panels.data()));
  const PackedMatrix from = {host, k, n, panels.data()};
  std::vector<uint8_t> packed(CudaPackedSize(type, k, n));
  EXPECT_TRUE(PackForCuda(type, from, 0, n, 0, packed.data()));
  for (int i = 0; i < n; ++i) UnpackColumn(from, i, &w[size_t(i) * size_t(k)]);
  return packed;
}

}  // namespace rivulet::kernels
