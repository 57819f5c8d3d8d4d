// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_product_rows_test {
namespace {

constexpr int kRows = 5, kLd = 48;
constexpr size_t kSize = size_t{kRows} * kLd;

CudaProductRows Rows(const DeviceArray<float>& array, int rows = kRows) {
  return {array.data() + kProductPrefix, false, kLd, rows};
}
CudaProductRows Rows(const DeviceArray<uint16_t>& array, int rows = kRows) {
  return {array.data() + kProductPrefix, true, kLd, rows};
}

double Joined(const uint16_t (&parts)[3]) {
  return double(F16ToF32(parts[0])) + std::ldexp(double(F16ToF32(parts[1])), -11) +
         std::ldexp(double(F16ToF32(parts[2])), -22);
}

TEST(CudaProductRowsTest, ThreePartsAreTheBiasExactly) {
  std::vector<float> values = RandomFloats(2000, 1, -3, 3);
  for (const float v : RandomFloats(500, 2, -60000, 60000)) values.push_back(v);
  for (int e = -22; e < 16; ++e) {
    values.push_back(std::ldexp(1.0f, e));
    values.push_back(-std::nextafter(std::ldexp(1.0f, e), 0x1p30f));
  }
  values.push_back(0);
  for (const float v : values) {
    uint16_t parts[3];
    SplitBias(v, parts);
    ASSERT_EQ(Joined(parts), double(v)) << v;
  }
}

TEST(CudaProductRowsTest, PackedRowsBeginWithTheBiasAndEndWithZeros) {
  constexpr int kN = 3, kK = 5, kAll = ProductK(kK);
  static_assert(kAll == 24);
  const std::vector<float> w = RandomFloats(size_t{kN} * kK, 3), bias = {0.3f, -7.7f, 1e-5f};
  std::vector<float> full(size_t{kN} * kAll);
  ASSERT_TRUE(PackProductRows(WeightType::kF32, w.data(), bias.data(), kN, kK, full.data()));
  std::vector<uint16_t> half(full.size());
  ASSERT_TRUE(PackProductRows(WeightType::kF16, w.data(), bias.data(), kN, kK, half.data()));
  for (int i = 0; i < kN; ++i) {
    const float* row = full.data() + i * kAll;
    const uint16_t* halves = half.data() + i * kAll;
    EXPECT_EQ(row[0], bias[size_t(i)]);
    EXPECT_EQ(Joined({halves[0], halves[1], halves[2]}), double(bias[size_t(i)]));
    for (int j = 1; j < kProductPrefix; ++j) EXPECT_EQ(row[j], 0) << j;
    for (int j = 3; j < kProductPrefix; ++j) EXPECT_EQ(halves[j], 0) << j;
    for (int j = 0; j < kAll - kProductPrefix; ++j) {
      const float expected = j < kK ? w[size_t(i * kK + j)] : 0;
      EXPECT_EQ(row[kProductPrefix + j], expected);
      EXPECT_EQ(halves[kProductPrefix + j], F32ToF16(expected));
    }
  }
  const std::vector<float> large = {1e5f};
  EXPECT_FALSE(PackProductRows(WeightType::kF16, w.data(), large.data(), 1, kK, half.data()));
  EXPECT_FALSE(PackProductRows(WeightType::kF16, large.data(), bias.data(), 1, 1, half.data()));
}

TEST(CudaProductRowsTest, TheMarkIsThePrefixAndNothingElse) {
  ForEachOrder([](const CudaLaunch& launch) {
    const DeviceArray<float> full(kSize);
    const DeviceArray<uint16_t> half(kSize);
    ASSERT_EQ(MarkProductRowsCuda(launch, Rows(full)), cudaSuccess);
    ASSERT_EQ(MarkProductRowsCuda(launch, Rows(half)), cudaSuccess);
    const std::vector<float> f = full.Copy();
    const std::vector<uint16_t> h = half.Copy();
    for (size_t i = 0; i < kSize; ++i) {
      const int column = int(i % kLd);
      if (column >= kProductPrefix) {
        ASSERT_TRUE(std::isnan(f[i]));
        ASSERT_EQ(h[i], 0xFFFF);
        continue;
      }
      ASSERT_EQ(f[i], column == 0 ? 1.0f : 0.0f);
      ASSERT_EQ(F16ToF32(h[i]), column < 3 ? std::ldexp(1.0f, -11 * column) : 0.0f) << column;
    }
  });
}

TEST(CudaProductRowsTest, TestRowsRepeatAndDifferencesAreCounted) {
  ForEachOrder([](const CudaLaunch& launch) {
    DeviceArray<float> rows(kSize);
    ASSERT_EQ(FillProductRowsCuda(launch, Rows(rows), 20, 2), cudaSuccess);
    std::vector<float> values = rows.Copy();
    const auto at = [](int r, int c) { return size_t(r * kLd + kProductPrefix + c); };
    for (int c = 0; c < 20; ++c) {
      ASSERT_LT(std::fabs(values[at(0, c)]), 1.001f);
      ASSERT_EQ(values[at(0, c)], values[at(2, c)]);
      ASSERT_EQ(values[at(1, c)], values[at(3, c)]);
      ASSERT_NE(values[at(0, c)], values[at(1, c)]);
    }
    ASSERT_TRUE(std::isnan(values[at(0, 20)]));
    const DeviceArray<float> expected(values);
    const DeviceArray<unsigned> different(std::vector<unsigned>{0});
    const auto count = [&] {
      EXPECT_EQ(CountDifferentRowsCuda(launch, Rows(rows), Rows(expected), 20, 2, different.data()),
                cudaSuccess);
      return different.Copy()[0];
    };
    EXPECT_EQ(count(), 0u);
    values[at(4, 19)] = std::nextafter(values[at(4, 19)], 2.0f);
    values[at(1, 0)] = std::numeric_limits<float>::quiet_NaN();
    values[at(1, 20)] = 3;  // not among the columns
    rows.Set(values);
    EXPECT_EQ(count(), 2u);
  });
}

TEST(CudaProductRowsTest, WhatCannotBeIsRefused) {
  const DeviceArray<float> full(kSize);
  const DeviceArray<uint16_t> half(kSize);
  EXPECT_EQ(MarkProductRowsCuda({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(FillProductRowsCuda({}, Rows(full), 1, 0), cudaErrorInvalidValue);
  EXPECT_EQ(CountDifferentRowsCuda({}, Rows(half), Rows(full), 1, 1, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_product_rows_test
