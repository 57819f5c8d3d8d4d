// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation.h"

#include <algorithm>
#include <limits>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

constexpr Activation kAll[] = {Activation::kIdentity, Activation::kSigmoid,
                               Activation::kSilu,     Activation::kSoftplus,
                               Activation::kTanh,     Activation::kSquaredRelu};

// One row without bias and factor.
ActivationArgs Row(Activation kind, const std::vector<float>& x, float* y) {
  ActivationArgs args;
  args.kind = kind;
  args.rows = 1;
  args.n = int(x.size());
  args.x = x.data();
  args.y = y;
  return args;
}

TEST(ActivationTest, MatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  for (const Activation kind : kAll) {
    for (const int n : {1, 7, 16, 45}) {
      for (const int options : {0, 1, 2, 3}) {
        const size_t rows = 3, stride = size_t(n) + 5;
        const std::vector<float> x = RandomFloats(rows * stride, 1, -6, 6),
                                 times = RandomFloats(rows * stride, 2),
                                 bias = RandomFloats(size_t(n), 3);
        std::vector<float> expected(x.size()), first;
        ActivationArgs args = Row(kind, x, expected.data());
        args.rows = int(rows);
        args.n = n;
        args.bias = options % 2 == 1 ? bias.data() : nullptr;
        args.times = options / 2 == 1 ? times.data() : nullptr;
        args.x_stride = args.times_stride = args.y_stride = stride;
        ActivationRef(args);
        ForEachCpuTarget([&](const std::string& target) {
          GuardedFloats y(x.size());
          args.y = y.data();
          ActivationCpu(args);
          ASSERT_TRUE(y.Intact()) << target;
          for (size_t i = 0; i < x.size(); ++i) {
            if (i % stride >= size_t(n)) {
              ASSERT_TRUE(std::isnan(y[i])) << "outside of the row";
            } else {
              // x + bias is rounded: that moves f by up to 12 * 4e-7.
              ASSERT_NEAR(y[i], expected[i], 6e-6) << target << " kind " << int(kind);
            }
          }
          if (!CpuTargetFuses()) return;
          if (first.empty()) first = y.Copy();
          ASSERT_TRUE(SameBits(y.Copy(), first)) << target << " kind " << int(kind);
        });
      }
    }
  }
}

// The accuracy that the header states, over all magnitudes.
TEST(ActivationTest, RelativeErrorIsBelowThreeTenMillionths) {
  std::vector<float> x;
  for (float magnitude = 1e-30f; magnitude < 110; magnitude *= 1.0007f) {
    x.push_back(magnitude);
    x.push_back(-magnitude);
  }
  for (const Activation kind : kAll) {
    ForEachCpuTarget([&](const std::string& target) {
      std::vector<float> y(x.size()), expected(x.size());
      ActivationRef(Row(kind, x, expected.data()));
      ActivationCpu(Row(kind, x, y.data()));
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = double{expected[i]};
        if (std::fabs(exact) < 2e-36) {
          EXPECT_NEAR(y[i], exact, 2e-38) << target << " kind " << int(kind) << " of " << x[i];
          continue;
        }
        worst = std::max(worst, std::fabs(y[i] - exact) / std::fabs(exact));
      }
      EXPECT_LT(worst, 3e-7) << target << " kind " << int(kind);
    });
  }
}

TEST(ActivationTest, LimitsAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, 200, -200, infinity, -infinity, std::nanf("")};
  const auto check = [&](Activation kind, const std::vector<float>& expected) {
    ForEachCpuTarget([&](const std::string& target) {
      std::vector<float> y(x.size());
      ActivationCpu(Row(kind, x, y.data()));
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(y[i], expected[i]) << target << " kind " << int(kind) << " of " << x[i];
      EXPECT_TRUE(std::isnan(y.back())) << target << " kind " << int(kind);
    });
  };
  check(Activation::kIdentity, {0, 200, -200, infinity, -infinity});
  check(Activation::kSigmoid, {0.5f, 1, 0, 1, 0});
  check(Activation::kSilu, {0, 200, -0.0f, infinity});  // -infinity * 0 is NaN
  check(Activation::kTanh, {0, 1, -1, 1, -1});
  check(Activation::kSquaredRelu, {0, 40000, 0, infinity, 0});
  check(Activation::kSoftplus, {std::log(2.0f), 200, 0, infinity, 0});
}

TEST(ActivationTest, SwigluMayReplaceEitherHalf) {
  const std::vector<float> gate = RandomFloats(37, 1, -4, 4), up = RandomFloats(37, 2, -4, 4);
  std::vector<float> expected(37), in_gate = gate, in_up = up;
  ActivationArgs args = Row(Activation::kSilu, gate, expected.data());
  args.times = up.data();
  ActivationCpu(args);
  for (size_t i = 0; i < 37; ++i) {
    EXPECT_NEAR(expected[i], gate[i] / (1 + std::exp(-gate[i])) * up[i], 3e-6);
  }
  args.x = args.y = in_gate.data();
  ActivationCpu(args);
  EXPECT_TRUE(SameBits(in_gate, expected));
  args.x = gate.data();
  args.times = args.y = in_up.data();
  ActivationCpu(args);
  EXPECT_TRUE(SameBits(in_up, expected));
}

}  // namespace
}  // namespace rivulet::kernels
