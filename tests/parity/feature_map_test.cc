// SPDX-License-Identifier: Apache-2.0
#include "kernels/feature_map.h"

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::feature_map_test {
namespace {

FeatureMapArgs Map(FeatureMapKind kind, int key_dim, int columns, const std::vector<float>& omega) {
  FeatureMapArgs args;
  args.kind = kind;
  args.key_dim = key_dim;
  args.columns = kind == FeatureMapKind::kElu ? 0 : columns;
  args.x_scale = 0.6f;
  args.out_scale = kind == FeatureMapKind::kFavor ? 1.4f : 0.3f;
  args.smoothing = 0.75f;
  args.omega = omega.data();
  return args;
}

constexpr FeatureMapKind kAll[] = {FeatureMapKind::kElu,
                                   FeatureMapKind::kRandomFourier,
                                   FeatureMapKind::kSmoothedRandomFourier,
                                   FeatureMapKind::kFavor,
                                   FeatureMapKind::kGeneralizedRandomRelu,
                                   FeatureMapKind::kRfa};

TEST(FeatureMapTest, EveryMapMatchesTheReferenceAndHasTheSameBitsOnEveryFusingTarget) {
  for (const FeatureMapKind kind : kAll) {
    for (const auto& [key_dim, columns] :
         {std::pair{1, 1}, {8, 8}, {21, 13}, {32, 64}, {64, 70}, {33, 17}, {64, 39}}) {
      const std::vector<float> omega = RandomFloats(size_t(key_dim * columns), 1);
      const std::vector<float> x = RandomFloats(size_t(key_dim), 2, -4, 4);
      const FeatureMapArgs args = Map(kind, key_dim, columns, omega);
      const size_t features = size_t(KeyFeatures(kind, key_dim, args.columns));
      std::vector<double> expected(features);
      FeatureMapRef(args, x.data(), expected.data());
      SCOPED_TRACE(int(kind));
      ExpectOnEveryCpuTarget(expected, AtLeastOne(5e-6),
                             [&](float* out) { FeatureMapCpu(args, x.data(), out); });
    }
  }
}

TEST(FeatureMapTest, EluKeepsTheRelativePrecisionOfTinyFeatures) {
  std::vector<float> x = {-32, -30.5f, -20, -10, -1e-3f, -1e-8f, 0, 1e-8f, 3};
  std::vector<float> out(x.size());
  FeatureMapCpu(Map(FeatureMapKind::kElu, int(x.size()), 0, {}), x.data(), out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = x[i] > 0 ? double{x[i]} + 1 : std::exp(double{x[i]});
    EXPECT_NEAR(out[i] / exact, 1, 3e-7) << x[i];
  }
}

TEST(FeatureMapTest, RfaOfTheZeroVectorIsFinite) {
  const std::vector<float> omega = RandomFloats(8 * 4, 1), x(8, 0.0f);
  std::vector<float> out(8);
  FeatureMapCpu(Map(FeatureMapKind::kRfa, 8, 4, omega), x.data(), out.data());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(out[size_t(i)], 0.0f);
    EXPECT_NEAR(out[size_t(i) + 4], 0.3f, 1e-6);
  }
}

}  // namespace
}  // namespace rivulet::kernels::feature_map_test
