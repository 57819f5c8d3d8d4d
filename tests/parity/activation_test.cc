// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation.h"

#include <algorithm>
#include <limits>

#include "tests/support/row_cases.h"

namespace rivulet::kernels::activation_test {
namespace {

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
  ForEachActivation(6, [](const ActivationCase& c) {
    SCOPED_TRACE(int(c.args.kind));
    // x + bias is rounded: that moves f by up to 12 * 4e-7.
    ExpectRowsOnEveryCpuTarget(c, ActivationRef, ActivationCpu, 6e-6);
  });
}

// The accuracy that the header states, over all magnitudes.
TEST(ActivationTest, RelativeErrorIsBelowThreeTenMillionths) {
  std::vector<float> x;
  for (float magnitude = 1e-30f; magnitude < 110; magnitude *= 1.0007f) {
    x.push_back(magnitude);
    x.push_back(-magnitude);
  }
  for (const Activation kind : kActivations) {
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
}  // namespace rivulet::kernels::activation_test
