// SPDX-License-Identifier: Apache-2.0
// What the CPU does to every id of a vocabulary with vectors, against the plain functions of
// categorical.h and exact arithmetic.
#include "kernels/categorical.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_target.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::categorical_test {
namespace {

// Distance of `value` from `exact` in units of the last place of a float32 of this size.
double UnitsOff(float value, long double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return double(std::fabs(value - exact) / std::ldexp(1.0L, exponent - 23));
}

TEST(CategoricalTest, RelativeWeightsAreExactToHalfAUnit) {
  // From -0 to -104 by bits, and what is below; a logit above `max` counts as the likeliest.
  std::vector<float> logits = {0.0f, -0.0f, -103.97f, -104.0f, -1e30f, 5.0f};
  for (float x = -1e-30f; x > -104; x *= 1.000931f) logits.push_back(x);
  std::vector<float> first;
  ForEachCpuTarget([&](const std::string& target) {
    GuardedFloats weights(logits.size());
    RelativeWeightsCpu(logits.data(), int32_t(logits.size()), 0, 1, weights.data());
    ASSERT_TRUE(weights.Intact()) << target;
    for (size_t i = 0; i < logits.size(); ++i) {
      const long double exact = std::exp(static_cast<long double>(std::min(logits[i], 0.0f)));
      ASSERT_LE(UnitsOff(weights[i], exact), 0.51) << target << " " << logits[i];
    }
    if (!CpuTargetFuses()) return;
    if (first.empty()) first = weights.Copy();
    ASSERT_TRUE(SameBits(weights.Copy(), first)) << target;
  });
}

TEST(CategoricalTest, RelativeWeightsTakeMaxAndTemperatureAtEverySize) {
  for (size_t n = 1; n < 40; ++n) {
    const std::vector<float> logits = RandomFloats(n, uint32_t(n), -9, 9);
    ForEachCpuTarget([&](const std::string& target) {
      GuardedFloats weights(n);
      RelativeWeightsCpu(logits.data(), int32_t(n), 9, 0.7f, weights.data());
      ASSERT_TRUE(weights.Intact()) << target;
      for (size_t i = 0; i < n; ++i) {
        const float x = (logits[i] - 9) / 0.7f;
        ASSERT_LE(UnitsOff(weights[i], std::exp(static_cast<long double>(x))), 0.51)
            << target << " " << i << " of " << n;
      }
    });
  }
}

TEST(CategoricalTest, ArgMaxWithVectorsTakesTheFirstLargestThatIsNotBanned) {
  for (int32_t n = 1; n < 70; ++n) {
    std::vector<float> logits = RandomFloats(size_t(n), uint32_t(n), -3, 3);
    for (float& logit : logits) logit = std::round(logit);  // many ties, both zeros
    ForEachCpuTarget([&](const std::string& target) {
      for (int32_t banned = -1; banned <= n; ++banned) {
        ASSERT_EQ(ArgMaxCpu(logits.data(), n, banned), ArgMax(logits.data(), n, banned))
            << target << " n " << n << " banned " << banned;
      }
    });
  }
}

TEST(CategoricalTest, LogSumExpWithVectorsSumsEveryId) {
  for (const size_t n : {1, 2, 15, 511, 512, 513, 1500}) {
    const std::vector<float> logits = RandomFloats(n, 7, 400, 409);
    long double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
    ForEachCpuTarget([&](const std::string& target) {
      EXPECT_NEAR(LogSumExpCpu(logits.data(), int32_t(n)), double(std::log(sum)), 1e-6)
          << target << " " << n;
    });
  }
}

TEST(CategoricalTest, KeepLargestWithVectorsKeepsTheSameBits) {
  for (uint32_t seed = 0; seed < 120; ++seed) {
    // Weights over many orders, and ties, zeros and the largest among them; few or many stay.
    const size_t n = 1 + seed * 5;
    std::vector<float> weights = RandomFloats(n, seed, seed % 2 == 0 ? -80 : -3, 0);
    for (float& w : weights) w = std::exp(seed % 3 == 0 ? std::round(w) : w);
    if (seed % 5 == 0) weights[0] = 0;
    weights[n / 2] = 1;
    const double sum = SumOfWeights(weights.data(), int32_t(n));
    for (const bool by_count : {true, false}) {
      for (const double share : {1e-9, 0.2, 0.6, 0.9, 0.999, 1.0}) {
        const double target = by_count ? std::ceil(share * double(n)) : share * sum;
        std::vector<float> plain = weights;
        KeepLargest(plain.data(), int32_t(n), by_count, target);
        ForEachCpuTarget([&](const std::string& target_name) {
          std::vector<float> kept = weights;
          GuardedFloats scratch(n);
          KeepLargestCpu(kept.data(), int32_t(n), by_count, target, scratch.data());
          ASSERT_TRUE(scratch.Intact()) << target_name;
          ASSERT_TRUE(SameBits(kept, plain)) << target_name << " " << seed << " " << share;
        });
      }
    }
  }
}

TEST(CategoricalTest, DrawsWithVectorsAreThePlainOnes) {
  const int32_t n = 77;
  const std::vector<float> logits = RandomFloats(size_t(n), 3, -4, 4);
  for (const CategoricalParams& p :
       {CategoricalParams{}, CategoricalParams{.temperature = 0},
        CategoricalParams{.temperature = 0.5f}, CategoricalParams{.top_k = 5},
        CategoricalParams{.top_p = 0.6f}, CategoricalParams{.min_p = 0.3f},
        CategoricalParams{.banned = ArgMax(logits.data(), n, -1)},
        CategoricalParams{.temperature = 3, .top_k = 30, .top_p = 0.9f, .min_p = 0.01f}}) {
    ForEachCpuTarget([&](const std::string& target) {
      for (uint64_t i = 0; i < 300; ++i) {
        std::vector<float> plain = logits, vectors = logits, scratch(logits.size());
        const PhiloxWords random = DrawWords(5, i, 0, 0);
        ASSERT_EQ(SampleCategoricalCpu(p, vectors.data(), n, random, scratch.data()),
                  SampleCategorical(p, plain.data(), n, random))
            << target << " " << i;
      }
    });
  }
}

TEST(CategoricalTest, OneValueThatIsNotFiniteIsFound) {
  for (int32_t n = 1; n < 40; ++n) {
    ForEachCpuTarget([&](const std::string& target) {
      std::vector<float> x(size_t(n), std::numeric_limits<float>::max());
      EXPECT_TRUE(AllFiniteCpu(x.data(), n)) << target;
      for (float& value : x) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          value = bad;
          EXPECT_FALSE(AllFiniteCpu(x.data(), n)) << target << " " << bad;
        }
        value = 0;
      }
    });
  }
}

}  // namespace
}  // namespace rivulet::kernels::categorical_test
