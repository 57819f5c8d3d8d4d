// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/row_cases.h"

namespace rivulet::kernels::cuda_element_rows_test {
namespace {

TEST(CudaElementRowsTest, EveryActivationMatchesTheReferenceAndWorksInPlace) {
  ForEachActivation(12, [](const ActivationCase& c) {
    SCOPED_TRACE(int(c.args.kind));
    const std::vector<float> expected = c.InPlace(ActivationRef);
    const DeviceArray<float> times(c.times), bias(c.bias);
    ActivationArgs args = c.args;
    if (args.times != nullptr) args.times = times.data();
    if (args.bias != nullptr) args.bias = bias.data();
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> y(c.x);
      const DeviceArray<uint16_t> half(c.x.size());
      args.x = args.y = y.data();
      ASSERT_EQ(ActivationCuda(launch, args, {half.data(), args.y_stride}), cudaSuccess);
      ASSERT_TRUE(SameBits(y.Copy(), c.x)) << "y is not written beside F16";
      ASSERT_EQ(ActivationCuda(launch, args), cudaSuccess);
      const std::vector<float> got = y.Copy();
      ASSERT_TRUE(Rounded(half.Copy(), got, [&](size_t i) { return !c.InPadding(i); }));
      ASSERT_TRUE(Near(got, expected, AtLeastOne(1e-6)));
    });
  });
}

TEST(CudaElementRowsTest, EveryDecayMatchesTheReference) {
  ForEachDecay(-3, [](const DecayCase& c) {
    SCOPED_TRACE(int(c.args.kind));
    const std::vector<float> expected = c.InPlace(DecayRef);
    const DeviceArray<float> bias(c.bias), scale(c.scale);
    DecayArgs args = c.args;
    if (args.bias != nullptr) args.bias = bias.data();
    args.scale = scale.data();
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> y(c.x);
      args.x = args.y = y.data();
      ASSERT_EQ(DecayCuda(launch, args), cudaSuccess);
      ASSERT_TRUE(Near(y.Copy(), expected, AtLeastOne(3e-6)));
    });
  });
}

TEST(CudaElementRowsTest, LargeValuesStayFiniteAndNaNStaysNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {-200, 200, nan};
  const DeviceArray<float> in(x), y(3);
  ActivationArgs args;
  args.rows = 1;
  args.n = 3;
  args.x = in.data();
  args.y = y.data();
  args.x_stride = args.y_stride = 3;
  const auto check = [&](Activation kind, float low, float high) {
    args.kind = kind;
    ASSERT_EQ(ActivationCuda({}, args), cudaSuccess);
    const std::vector<float> got = y.Copy();
    EXPECT_NEAR(got[0], low, 1e-30) << int(kind);
    EXPECT_EQ(got[1], high) << int(kind);
    EXPECT_TRUE(std::isnan(got[2])) << int(kind);
  };
  check(Activation::kSigmoid, 0, 1);
  check(Activation::kSilu, 0, 200);
  check(Activation::kSoftplus, 0, 200);
  check(Activation::kTanh, -1, 1);
  check(Activation::kSquaredRelu, 0, 40000);
  args.x_stride = 2;
  args.rows = 2;
  EXPECT_EQ(ActivationCuda({}, args), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_element_rows_test
