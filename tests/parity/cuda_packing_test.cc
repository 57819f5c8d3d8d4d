// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_packing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/half.h"
#include "kernels/quantized.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_packing_test {
namespace {

// A matrix as the host has it.
struct Host {
  Host(WeightType type, int k, int n, std::vector<float> w)
      : panels(PackedSize(type, k, n) / sizeof(float)) {
    EXPECT_TRUE(PackWeights(type, w.data(), n, k, 0, panels.data()));
    matrix = {type, k, n, panels.data()};
  }
  std::vector<float> panels;
  PackedMatrix matrix;
};

// The weight (column, k) of packed F16 or F32, by the words of cuda_packing.h.
float WeightAt(WeightType type, const std::vector<uint8_t>& packed, int all_k, int column, int k) {
  if (type == WeightType::kF32) {
    const size_t block = size_t(column / 32) * size_t((all_k + 3) / 4) + size_t(k / 4);
    float value = 0;
    std::memcpy(&value, &packed[((block * 32 + size_t(column % 32)) * 4 + size_t(k % 4)) * 4], 4);
    return value;
  }
  // k = 16 j + 2 t + {0, 1, 8, 9}
  const int j = k % 32 / 16, in_half = k % 16, high = in_half / 8, t = in_half % 8 / 2;
  const size_t block = size_t(column / 8) * size_t(CudaSteps(all_k)) + size_t(k / 32);
  const size_t lane = size_t(column % 8 * 4 + t), place = size_t(4 * j + 2 * high + k % 2);
  uint16_t half = 0;
  std::memcpy(&half, &packed[((block * 32 + lane) * 8 + place) * 2], 2);
  return F16ToF32(half);
}

TEST(CudaPackingTest, EveryTypeOfTheHostComesToItsPlace) {
  constexpr int kK = 75, kN = 90, kFirst = 3, kCount = 70, kTo = 13;
  for (const WeightType from : {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                WeightType::kInt8, WeightType::kInt4}) {
    const Host host(from, kK, kN, RandomFloats(size_t{kK} * kN, 1));
    for (const WeightType type : {WeightType::kF32, WeightType::kF16}) {
      std::vector<uint8_t> packed(CudaPackedSize(type, kK, kTo + kCount));
      ASSERT_TRUE(PackForCuda(type, host.matrix, kFirst, kCount, kTo, packed.data()));
      double sum = 0, expected_sum = 0;
      for (int c = 0; c < kCount; ++c) {
        float column[kK];
        UnpackColumn(host.matrix, kFirst + c, column);
        for (int k = 0; k < kK; ++k) {
          const float expected =
              type == WeightType::kF32 ? column[k] : F16ToF32(F32ToF16(column[k]));
          ASSERT_EQ(WeightAt(type, packed, kK, kTo + c, k), expected)
              << int(from) << " to " << int(type) << " at " << c << ", " << k;
          expected_sum += double{expected};
        }
      }
      // All other places, the padding of k among them, are zeros.
      for (int c = 0; c < (kTo + kCount + 7) / 8 * 8; ++c) {
        for (int k = 0; k < (type == WeightType::kF32 ? 76 : 96); ++k) {
          sum += double{WeightAt(type, packed, kK, c, k)};
        }
      }
      EXPECT_NEAR(sum, expected_sum, 1e-9);
    }
  }
}

TEST(CudaPackingTest, PiecesSideBySideAreWhatTheWholeIs) {
  constexpr int kK = 40, kN = 100;
  const Host host(WeightType::kInt8, kK, kN, RandomFloats(size_t{kK} * kN, 1));
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kInt8}) {
    std::vector<uint8_t> whole(CudaPackedSize(type, kK, kN)), parts(whole.size());
    ASSERT_TRUE(PackForCuda(type, host.matrix, 0, kN, 0, whole.data()));
    for (const auto& [first, count] : {std::pair{0, 17}, {17, 3}, {20, 80}}) {
      ASSERT_TRUE(PackForCuda(type, host.matrix, first, count, first, parts.data()));
    }
    EXPECT_EQ(whole, parts);
  }
}

TEST(CudaPackingTest, AWeightThatIsTooLargeForF16IsNotedInItsColumnAlone) {
  std::vector<float> w(size_t{40} * 33, 1.0f);
  w[2 * 33 + 32] = -70000.0f;  // of column 2
  const Host host(WeightType::kF32, 33, 40, w);
  std::vector<uint8_t> packed(CudaPackedSize(WeightType::kF32, 33, 40));
  EXPECT_TRUE(PackForCuda(WeightType::kF32, host.matrix, 0, 40, 0, packed.data()));
  EXPECT_FALSE(PackForCuda(WeightType::kF16, host.matrix, 0, 40, 0, packed.data()));
  EXPECT_FALSE(PackForCuda(WeightType::kF16, host.matrix, 2, 1, 2, packed.data()));
  EXPECT_TRUE(PackForCuda(WeightType::kF16, host.matrix, 3, 37, 3, packed.data()));
  for (const float scale : {515.0f, 516.0f}) {  // 127 x 515 = 65405
    QuantizedGroup group;
    group.d = scale;
    group.q[5] = 127;
    std::vector<float> panels(PackedSize(WeightType::kInt8, 32, 1) / sizeof(float));
    PackGroup(WeightType::kInt8, group, 32, 0, 0, panels.data());
    EXPECT_EQ(PackForCuda(WeightType::kInt8, {WeightType::kInt8, 32, 1, panels.data()}, 0, 1, 0,
                          packed.data()),
              scale == 515.0f);
  }
}

}  // namespace
}  // namespace rivulet::kernels::cuda_packing_test
