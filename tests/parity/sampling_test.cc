// SPDX-License-Identifier: Apache-2.0
// Philox, both heads and their filters: against published vectors, brute force and the exact
// distribution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "kernels/categorical.h"
#include "kernels/mixture_of_logistics.h"
#include "kernels/philox.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::sampling_test {
namespace {

TEST(PhiloxTest, GivesThePublishedKnownAnswers) {
  const auto check = [](PhiloxWords counter, uint32_t k0, uint32_t k1,
                        std::vector<uint32_t> expected) {
    const PhiloxWords out = Philox4x32(counter, k0, k1);
    EXPECT_EQ(std::vector<uint32_t>(out.word, out.word + 4), expected);
  };
  check({{0, 0, 0, 0}}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  check({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  check({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(PhiloxTest, UniformIsInsideTheOpenInterval) {
  EXPECT_GT(UniformOpen(0, 0), 0.0);
  EXPECT_LT(UniformOpen(~0u, ~0u), 1.0);
  EXPECT_NE(UniformOpen(5, 0), UniformOpen(5, 1u << 31));
}

TEST(PhiloxTest, SeedPositionSampleAndDrawAllMatter) {
  std::vector<uint32_t> firsts;
  for (const auto& w :
       {DrawWords(1, 2, 3, 4), DrawWords(1ull << 32, 2, 3, 4), DrawWords(1, 1ull << 32, 3, 4),
        DrawWords(1, 2, 4, 4), DrawWords(1, 2, 3, 5)}) {
    firsts.push_back(w.word[0]);
  }
  std::sort(firsts.begin(), firsts.end());
  EXPECT_EQ(std::unique(firsts.begin(), firsts.end()), firsts.end());
}

// Kept ids by definition, with a sort.
std::vector<float> FilteredByDefinition(std::vector<float> weights, const CategoricalParams& p) {
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  size_t kept = order.size();
  if (p.top_k > 0) kept = std::min(kept, size_t(p.top_k));
  if (p.top_p < 1) {
    double total = 0, cumulative = 0;
    for (size_t i = 0; i < kept; ++i) total += double{weights[order[i]]};
    for (size_t i = 0; i < kept; ++i) {
      cumulative += double{weights[order[i]]};
      if (cumulative >= double{p.top_p} * total) {
        kept = i + 1;
        break;
      }
    }
  }
  std::vector<float> result(weights.size());
  for (size_t i = 0; i < kept; ++i) {
    if (weights[order[i]] >= p.min_p) result[order[i]] = weights[order[i]];
  }
  return result;
}

TEST(SamplingTest, DrawsFollowTheFilteredDistribution) {
  const int n = 23;
  std::vector<float> logits = RandomFloats(size_t(n), 3, -2, 2);
  logits[7] = logits[3];  // a tie at whatever edge
  for (const CategoricalParams& p :
       {CategoricalParams{}, CategoricalParams{.temperature = 0.5f}, CategoricalParams{.top_k = 5},
        CategoricalParams{.top_p = 0.6f}, CategoricalParams{.min_p = 0.3f},
        CategoricalParams{.banned = 4},
        CategoricalParams{
            .temperature = 1.7f, .top_k = 12, .top_p = 0.8f, .min_p = 0.1f, .banned = 0},
        CategoricalParams{.top_k = 1}, CategoricalParams{.top_p = 1e-6f}}) {
    std::vector<float> weights(logits.size());
    float max = -1e9f;
    for (int i = 0; i < n; ++i) max = i == p.banned ? max : std::max(max, logits[size_t(i)]);
    for (int i = 0; i < n; ++i) {
      weights[size_t(i)] = i == p.banned ? 0 : std::exp((logits[size_t(i)] - max) / p.temperature);
    }
    const std::vector<float> expected = FilteredByDefinition(weights, p);
    const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
    std::vector<int> count(logits.size());
    constexpr int kDraws = 40000;
    for (int i = 0; i < kDraws; ++i) {
      std::vector<float> scratch = logits;
      ++count[size_t(SampleCategorical(p, scratch.data(), n, DrawWords(9, uint64_t(i), 0, 0)))];
    }
    for (int i = 0; i < n; ++i) {
      const double probability = double{expected[size_t(i)]} / total;
      EXPECT_TRUE(probability > 0 || count[size_t(i)] == 0) << i;
      EXPECT_NEAR(count[size_t(i)] / double(kDraws), probability,
                  5 * std::sqrt(probability / kDraws) + 1e-9)
          << i;
    }
  }
}

TEST(SamplingTest, KeepLargestEqualsASortOnRandomWeightsWithTies) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::vector<float> weights = RandomFloats(40, seed, 0, 1);
    for (float& w : weights) w = std::round(w * 8) / 8;  // many ties, zeros and ones
    weights[seed % 40] = 1;
    CategoricalParams by_count{.top_k = int32_t(1 + seed % 40)},
        by_mass{.top_p = 0.02f + 0.0049f * float(seed)};
    for (const CategoricalParams& p : {by_count, by_mass}) {
      std::vector<float> kept = weights;
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      KeepLargest(kept.data(), 40, p.top_k > 0, p.top_k > 0 ? p.top_k : double{p.top_p} * total);
      EXPECT_EQ(kept, FilteredByDefinition(weights, p)) << seed;
    }
  }
}

TEST(SamplingTest, AFilterThatRemovesNothingChangesNoDraw) {
  const std::vector<float> logits = RandomFloats(65, 5, -3, 3);
  for (uint64_t i = 0; i < 2000; ++i) {
    std::vector<float> a = logits, b = logits;
    CategoricalParams all{.top_k = 65, .min_p = 1e-9f};
    EXPECT_EQ(SampleCategorical({}, a.data(), 65, DrawWords(1, i, 0, 0)),
              SampleCategorical(all, b.data(), 65, DrawWords(1, i, 0, 0)));
  }
}

TEST(SamplingTest, TemperatureZeroTakesTheFirstLargestThatIsNotBanned) {
  std::vector<float> logits = {1, 5, 5, 2};
  EXPECT_EQ(SampleCategorical({.temperature = 0}, logits.data(), 4, {}), 1);
  EXPECT_EQ(SampleCategorical({.temperature = 0, .banned = 1}, logits.data(), 4, {}), 2);
  EXPECT_EQ(ArgMax(logits.data(), 4, 0), 1);
  std::vector<float> first = {9, 1};
  EXPECT_EQ(ArgMax(first.data(), 2, 0), 1);
}

TEST(SamplingTest, PenaltiesFollowTheirDefinitions) {
  const CategoricalParams p{
      .repetition_penalty = 2, .frequency_penalty = 0.5f, .presence_penalty = 0.25f};
  EXPECT_EQ(AdjustLogit(p, 3, false, 0), 3.0f);
  EXPECT_EQ(AdjustLogit(p, 3, true, 0), 1.5f);
  EXPECT_EQ(AdjustLogit(p, -3, true, 0), -6.0f);
  EXPECT_EQ(AdjustLogit(p, 3, false, 2), 1.5f - 1.0f - 0.25f);
}

TEST(SamplingTest, LogSumExpNormalisesAndSurvivesLargeLogits) {
  const std::vector<float> logits = {1000, 999, -1000};
  EXPECT_NEAR(LogSumExp(logits.data(), 3), 1000 + std::log1p(std::exp(-1.0)), 1e-7);
}

// The likelihood in long double, straight from its definition.
double ExactLogProb(const std::vector<float>& head, int k_count, int level, int levels) {
  const auto sigmoid = [](long double v) { return 1 / (1 + std::exp(-v)); };
  long double total = 0, normalizer = 0;
  for (int k = 0; k < k_count; ++k) normalizer += std::exp((long double)head[size_t(k)]);
  for (int k = 0; k < k_count; ++k) {
    const long double mean = head[size_t(k_count + k)];
    const long double scale = std::exp(std::max((long double)head[size_t(2 * k_count + k)], -7.0L));
    const long double half = 1.0L / (levels - 1), x = 2.0L * level * half - 1;
    const long double above = (x - mean + half) / scale, below = (x - mean - half) / scale;
    long double bin;
    if (level == 0) {
      bin = sigmoid(above);
    } else if (level == levels - 1) {
      bin = sigmoid(-below);
    } else {
      // sigmoid(above) - sigmoid(below), without cancellation
      bin = sigmoid(above) * sigmoid(-below) * -std::expm1(below - above);
      if (bin <= 1e-5L) {
        const long double middle = (x - mean) / scale;
        bin = sigmoid(middle) * sigmoid(-middle) / scale * 2 * half;
      }
    }
    total += std::exp((long double)head[size_t(k)]) / normalizer * bin;
  }
  return double(std::log(total));
}

TEST(MixtureTest, LikelihoodMatchesItsDefinitionOnEveryLevelAndFarTail) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const int k = 1 + int(seed % 10), levels = seed % 3 == 0 ? 2 : 256;
    std::vector<float> head = RandomFloats(size_t(3 * k), seed, -1, 1);
    for (int i = 0; i < k; ++i)
      head[size_t(2 * k + i)] = -9.0f + float(seed % 10) + float(i) * 0.1f;
    const MixtureHead m{k, levels};
    double sum = 0;
    for (int level = 0; level < levels; ++level) {
      const double exact = ExactLogProb(head, k, level, levels);
      EXPECT_NEAR(MixtureLogProb(m, head.data(), level), exact, 1e-4 * (1 + std::fabs(exact)))
          << seed << " " << level;
      sum += std::exp(double{MixtureLogProb(m, head.data(), level)});
    }
    EXPECT_NEAR(sum, 1, 2e-2);  // the density rule makes it not quite 1
  }
}

TEST(MixtureTest, AConstantAddedToEveryLogitChangesNoLikelihood) {
  std::vector<float> head = {0.5f, -1.25f, 0.25f, 0.1f, -0.4f, 0.7f, -3, -2, -4};
  std::vector<float> shifted = head;
  for (int k = 0; k < 3; ++k) shifted[size_t(k)] += 65536;  // the quarters above stay exact
  for (int level = 0; level < 256; ++level) {
    EXPECT_EQ(MixtureLogProb({3, 256}, shifted.data(), level),
              MixtureLogProb({3, 256}, head.data(), level))
        << level;
  }
}

TEST(MixtureTest, SamplesFollowTheLikelihood) {
  // Two separate components with scales wide enough that no bin takes the density rule.
  const std::vector<float> head = {0.5f, -0.5f, -0.6f, 0.5f, -2.0f, -1.5f};
  const MixtureHead m{2, 64};
  std::vector<int> count(64);
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i)
    ++count[size_t(SampleMixture(m, head.data(), 1, DrawWords(3, uint64_t(i), 0, 0)))];
  for (int level = 0; level < 64; ++level) {
    const double p = std::exp(double{MixtureLogProb(m, head.data(), level)});
    EXPECT_NEAR(count[size_t(level)] / double(kDraws), p, 5 * std::sqrt(p / kDraws) + 1e-4)
        << level;
  }
}

TEST(MixtureTest, TemperatureZeroIsTheMeanOfTheLikeliestComponent) {
  const std::vector<float> head = {0, 2, 1, -1, 0.5f, 1, 0, 0, 0};
  EXPECT_EQ(SampleMixture({3, 256}, head.data(), 0, DrawWords(1, 1, 0, 0)),
            191);  // (0.5 + 1) / 2 * 255 = 191.25
}

TEST(MixtureTest, EluScaleDrawsWithEluPlusOne) {
  const std::vector<float> head = {0, 0, -0.9f};
  MixtureHead exp_head{1, 4001}, elu_head{1, 4001, true};
  double exp_spread = 0, elu_spread = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    // 0.2: keeps clipping rare, the ratio of the spreads is that of the scales
    exp_spread +=
        std::abs(SampleMixture(exp_head, head.data(), 0.2f, DrawWords(1, i, 0, 0)) - 2000);
    elu_spread +=
        std::abs(SampleMixture(elu_head, head.data(), 0.2f, DrawWords(1, i, 0, 0)) - 2000);
  }
  EXPECT_NEAR(elu_spread / exp_spread, (std::expm1(-0.9) + 1.0001) / std::exp(-0.9), 0.02);
}

TEST(MixtureTest, ABannedLevelIsNeverDrawn) {
  for (const int32_t banned : {0, 5, 9}) {
    const std::vector<float> head = {0, float(banned) / 4.5f - 1, -3};
    for (uint64_t i = 0; i < 500; ++i) {
      const int32_t level =
          SampleMixture({1, 10, false, banned}, head.data(), 1, DrawWords(1, i, 0, 0));
      EXPECT_NE(level, banned);
      EXPECT_TRUE(level >= 0 && level < 10);
    }
  }
}

}  // namespace
}  // namespace rivulet::kernels::sampling_test
