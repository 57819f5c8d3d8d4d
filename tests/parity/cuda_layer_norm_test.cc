// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "kernels/cuda/rows/layer_norm_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

TEST(CudaLayerNormTest, MatchesTheReferenceClearsThePaddingAndWorksInPlace) {
  for (const int n : {1, 2, 3, 5, 31, 45, 127, 128, 129, 256, 384, 1000}) {
    const int ld = (n + 3) / 4 * 4 + 4, rows = 7;
    const std::vector<float> x = RandomFloats(size_t(rows * ld), 1, -3, 5);
    const std::vector<float> weight = RandomFloats(size_t(n), 2, 0.5f, 1.5f),
                             bias = RandomFloats(size_t(n), 3);
    std::vector<float> expected(x.size());
    LayerNormRef({x.data(), expected.data(), weight.data(), bias.data(), rows, n, ld, 1e-5f});
    const DeviceArray<float> device_x(x), device_weight(weight), device_bias(bias);
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> y(x.size()), in_place(x);
      LayerNormArgs args{
          device_x.data(), y.data(), device_weight.data(), device_bias.data(), rows, n, ld, 1e-5f};
      ASSERT_EQ(LayerNormCuda(launch, args), cudaSuccess);
      const std::vector<float> got = y.Copy();
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << "n " << n;
      args.x = args.y = in_place.data();
      ASSERT_EQ(LayerNormCuda(launch, args), cudaSuccess);
      ASSERT_TRUE(SameBits(in_place.Copy(), got));
      args.y = y.data();
      args.x = device_x.data();
      const DeviceArray<uint16_t> half(x.size());
      ASSERT_EQ(LayerNormCuda(launch, args, half.data()), cudaSuccess);
      const std::vector<uint16_t> halves = half.Copy();
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(halves[i], F32ToF16(got[i])) << "n " << n;
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
}  // namespace rivulet::kernels
