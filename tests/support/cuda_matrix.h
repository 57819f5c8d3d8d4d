// SPDX-License-Identifier: Apache-2.0
// Weights of a matrix product, for tests of CUDA kernels.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "kernels/cuda_packing.h"
#include "kernels/gemm.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// Restores the kernels' own choice of tiles at the end.
class TileGuard {
 public:
  ~TileGuard() {
    SetCudaGemmTileForTest(-1);
    SetCudaWideGemmTileForTest(-1);
  }
};

// Rows [rows, ld], with NaN in the padding, which must have no effect.
struct PaddedRows {
  PaddedRows(int count, int width, int stride, uint32_t seed)
      : rows(count),
        n(width),
        ld(stride),
        values(size_t(count) * size_t(stride), std::numeric_limits<float>::quiet_NaN()) {
    const std::vector<float> random = RandomFloats(size_t(rows) * size_t(n), seed);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < n; ++c) at(r, c) = random[size_t(r) * size_t(n) + size_t(c)];
    }
  }
  float& at(int r, int c) { return values[size_t(r) * size_t(ld) + size_t(c)]; }
  float at(int r, int c) const { return values[size_t(r) * size_t(ld) + size_t(c)]; }
  int rows, n, ld;
  std::vector<float> values;
};

inline std::vector<uint16_t> HalvesOf(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (const float v : values) halves.push_back(F32ToF16(v));
  return halves;
}

// A matrix `w` [n, k], packed on the device, and its bias. If the type is kInt8, w becomes the
// values of the integers.
struct DeviceMatrix {
  DeviceMatrix(WeightType weight_type, int keys, int columns, uint32_t seed = 1, float most = 0.3f)
      : DeviceMatrix(weight_type, keys, columns,
                     RandomFloats(size_t(columns) * size_t(keys), seed, -most, most), seed + 1) {}
  DeviceMatrix(WeightType weight_type, int keys, int columns, std::vector<float> weights,
               uint32_t bias_seed = 2)
      : type(weight_type),
        k(keys),
        n(columns),
        w(std::move(weights)),
        bias(RandomFloats(size_t(n), bias_seed)),
        packed(Packed()),
        device_bias(bias) {}
  CudaMatrix device() const { return {type, k, n, packed.data(), device_bias.data()}; }

  WeightType type;
  int k, n;
  std::vector<float> w, bias;
  DeviceArray<uint8_t> packed;
  DeviceArray<float> device_bias;

 private:
  std::vector<uint8_t> Packed() {
    const WeightType host = type == WeightType::kInt8 ? type : WeightType::kF32;
    std::vector<float> panels(PackedSize(host, k, n) / sizeof(float));
    EXPECT_TRUE(PackWeights(host, w.data(), n, k, 0, panels.data()));
    const PackedMatrix from = {host, k, n, panels.data()};
    std::vector<uint8_t> bytes(CudaPackedSize(type, k, n));
    EXPECT_TRUE(PackForCuda(type, from, 0, n, 0, bytes.data()));
    for (int i = 0; i < n; ++i) UnpackColumn(from, i, &w[size_t(i) * size_t(k)]);
    return bytes;
  }
};

}  // namespace rivulet::kernels
