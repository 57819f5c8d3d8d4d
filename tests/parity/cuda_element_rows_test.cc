// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

constexpr int kRows = 7;

TEST(CudaElementRowsTest, EveryActivationMatchesTheReferenceAndWorksInPlace) {
  for (const Activation kind :
       {Activation::kIdentity, Activation::kSigmoid, Activation::kSilu, Activation::kSoftplus,
        Activation::kTanh, Activation::kSquaredRelu}) {
    for (const int n : {1, 37, 130}) {
      ActivationArgs args;
      args.kind = kind;
      args.rows = kRows;
      args.n = n;
      args.x_stride = args.y_stride = args.times_stride = size_t(n) + 3;
      const size_t all = kRows * args.x_stride;
      const std::vector<float> x = RandomFloats(all, 1, -12, 12), times = RandomFloats(all, 2),
                               bias = RandomFloats(size_t(n), 3);
      const DeviceArray<float> device_times(times), device_bias(bias);
      for (const bool more : {false, true}) {
        std::vector<float> expected = x;
        args.x = args.y = expected.data();
        args.times = more ? times.data() : nullptr;
        args.bias = more ? bias.data() : nullptr;
        ActivationRef(args);
        ForEachOrder([&](const CudaLaunch& launch) {
          const DeviceArray<float> y(x);
          const DeviceArray<uint16_t> half(all);
          args.x = args.y = y.data();
          args.times = more ? device_times.data() : nullptr;
          args.bias = more ? device_bias.data() : nullptr;
          ASSERT_EQ(ActivationCuda(launch, args, {half.data(), args.y_stride}), cudaSuccess);
          ASSERT_TRUE(SameBits(y.Copy(), x)) << "y is not written beside F16";
          ASSERT_EQ(ActivationCuda(launch, args), cudaSuccess);
          const std::vector<float> got = y.Copy();
          const std::vector<uint16_t> halves = half.Copy();
          for (size_t i = 0; i < all; ++i) {
            const bool written = int(i % args.x_stride) < n;
            ASSERT_EQ(halves[i], written ? F32ToF16(got[i]) : 0xFFFF) << i;
          }
          for (size_t i = 0; i < all; ++i) {
            ASSERT_NEAR(got[i], expected[i], 1e-6 * std::max(1.0f, std::fabs(expected[i])))
                << int(kind) << " of " << x[i];
          }
        });
      }
    }
  }
}

TEST(CudaElementRowsTest, EveryDecayMatchesTheReference) {
  for (const DecayKind kind : {DecayKind::kIdentity, DecayKind::kSoftplus, DecayKind::kSigmoid}) {
    for (const bool negate : {false, true}) {
      DecayArgs args;
      args.kind = kind;
      args.negate = negate;
      args.rows = kRows;
      args.n = 37;
      args.x_stride = args.y_stride = 40;
      args.floor = negate ? -0.25f : args.floor;
      const std::vector<float> x = RandomFloats(kRows * 40, 1, -3, 3), bias = RandomFloats(37, 2),
                               scale = RandomFloats(37, 3, 0, 2);
      const DeviceArray<float> device_bias(bias), device_scale(scale);
      std::vector<float> expected = x;
      args.x = args.y = expected.data();
      args.bias = bias.data();
      args.scale = scale.data();
      DecayRef(args);
      ForEachOrder([&](const CudaLaunch& launch) {
        const DeviceArray<float> y(x);
        args.x = args.y = y.data();
        args.bias = device_bias.data();
        args.scale = device_scale.data();
        ASSERT_EQ(DecayCuda(launch, args), cudaSuccess);
        const std::vector<float> got = y.Copy();
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], expected[i], 3e-6 * std::max(1.0f, expected[i])) << int(kind);
        }
      });
    }
  }
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
}  // namespace rivulet::kernels
