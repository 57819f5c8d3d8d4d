// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "kernels/cuda/rows/layer_norm_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/row_cases.h"

namespace rivulet::kernels::cuda_layer_norm_test {
namespace {

TEST(CudaLayerNormTest, MatchesTheReferenceClearsThePaddingAndWorksInPlace) {
  for (const int n : kLayerNormSizes) {
    SCOPED_TRACE(n);
    const LayerNormCase c(n, (n + 3) / 4 * 4 + 4);
    const DeviceArray<float> x(c.x), weight(c.weight), bias(c.bias);
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> y(c.x.size()), in_place(c.x);
      const LayerNormArgs args = c.Args(x.data(), y.data(), weight.data(), bias.data());
      ASSERT_EQ(LayerNormCuda(launch, args), cudaSuccess);
      const std::vector<float> got = y.Copy();
      ASSERT_TRUE(Near(got, c.expected, 1e-5));
      ASSERT_EQ(
          LayerNormCuda(launch, c.Args(in_place.data(), in_place.data(), args.weight, args.bias)),
          cudaSuccess);
      ASSERT_TRUE(SameBits(in_place.Copy(), got));
      const DeviceArray<uint16_t> half(c.x.size());
      ASSERT_EQ(LayerNormCuda(launch, args, half.data()), cudaSuccess);
      ASSERT_TRUE(Rounded(half.Copy(), got, [](size_t) { return true; }));
    });
  }
}

TEST(CudaLayerNormTest, ColumnsFromTheWidthOnAreNotTouched) {
  constexpr int kN = 5, kWidth = 8, kLd = 16, kRows = 3;
  const std::vector<float> x = RandomFloats(size_t{kRows} * kLd, 1);
  const DeviceArray<float> device_x(x), y(x.size()), weight(std::vector<float>(kN, 2.0f));
  const DeviceArray<uint16_t> half(x.size());
  const LayerNormArgs args{device_x.data(), y.data(), weight.data(), weight.data(),
                           kRows,           kN,       kLd,           1e-5f};
  ASSERT_EQ(LayerNormCuda({}, args, half.data(), kWidth), cudaSuccess);
  const std::vector<float> got = y.Copy();
  const std::vector<uint16_t> halves = half.Copy();
  for (size_t i = 0; i < got.size(); ++i) {
    const int column = int(i % kLd);
    ASSERT_EQ(std::isnan(got[i]), column >= kWidth) << column;
    ASSERT_EQ(halves[i] == 0xFFFF, column >= kWidth) << column;
    ASSERT_TRUE(column < kN || column >= kWidth || got[i] == 0) << column;
  }
  EXPECT_EQ(LayerNormCuda({}, args, nullptr, 4), cudaErrorInvalidValue);
  EXPECT_EQ(LayerNormCuda({}, args, nullptr, 20), cudaErrorInvalidValue);
}

TEST(CudaLayerNormTest, AConstantRowBecomesTheBias) {
  const DeviceArray<float> x(std::vector<float>(20, 3.0f)), weight(std::vector<float>(20, 2.0f)),
      bias(std::vector<float>(20, 0.25f)), y(20);
  ASSERT_EQ(LayerNormCuda({}, {x.data(), y.data(), weight.data(), bias.data(), 1, 20, 20, 1e-5f}),
            cudaSuccess);
  for (const float v : y.Copy()) EXPECT_EQ(v, 0.25f);
}

// A constant row becomes the bias, and so does its rounding to F16.
TEST(CudaLayerNormTest, HalvesEndAtTheLargestAndWhatIsNotFiniteBecomesNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {65504, -65519, 65520,    -65520,
                                     3e38f, -3e38f, infinity, -infinity};
  const int n = int(values.size());
  const DeviceArray<float> x(std::vector<float>(values.size(), 3.0f)), bias(values),
      y(values.size()), weight(std::vector<float>(values.size(), 2.0f));
  const DeviceArray<uint16_t> half(values.size());
  ASSERT_EQ(LayerNormCuda({}, {x.data(), y.data(), weight.data(), bias.data(), 1, n, n, 1e-5f},
                          half.data()),
            cudaSuccess);
  const std::vector<uint16_t> halves = half.Copy();
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(F16ToF32(halves[i]), values[i] > 0 ? 65504.0f : -65504.0f) << values[i];
  }
  for (size_t i = 6; i < 8; ++i) EXPECT_TRUE(std::isnan(F16ToF32(halves[i]))) << values[i];
}

TEST(CudaLayerNormTest, MisalignedRowsAreRefused) {
  const DeviceArray<float> x(64);
  EXPECT_EQ(LayerNormCuda({}, {x.data(), x.data(), x.data(), x.data(), 1, 5, 5, 1e-5f}),
            cudaErrorInvalidValue);
  EXPECT_EQ(LayerNormCuda({}, {x.data() + 1, x.data(), x.data(), x.data(), 1, 5, 8, 1e-5f}),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_layer_norm_test
