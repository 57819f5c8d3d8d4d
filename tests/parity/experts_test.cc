// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::experts_test {
namespace {

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed Route(const Router& router, const std::vector<float>& scores,
             const std::vector<float>& bias = {}, void (*route)(const RouteArgs&) = RouteExperts) {
  const size_t rows = scores.size() / size_t(router.experts);
  Routed out;
  RouterScratch scratch;
  out.experts.resize(rows * size_t(router.chosen));
  out.weights.resize(out.experts.size());
  route({router, scores.data(), bias.empty() ? nullptr : bias.data(), int(rows), router.experts,
         out.experts.data(), out.weights.data(), &scratch});
  return out;
}

TEST(ExpertsTest, ChoicesAndWeightsMatchTheReference) {
  constexpr int kRows = 200;
  const Router routers[] = {
      {.experts = 5, .chosen = 1},
      {.experts = 64, .chosen = 6, .scale = 0.22f},
      {.experts = 7, .chosen = 7},
      {.form = RouterForm::kSigmoid, .experts = 32, .chosen = 4, .epsilon = 1e-6, .scale = 1.7f},
      {.form = RouterForm::kSigmoid, .experts = 32, .chosen = 4, .normalized = false},
      {.form = RouterForm::kSigmoid, .experts = 24, .chosen = 5, .groups = 4, .kept_groups = 2},
      {.form = RouterForm::kSigmoid, .experts = 8, .chosen = 3, .groups = 8, .kept_groups = 3}};
  for (const Router& router : routers) {
    const std::vector<float> scores =
        RandomFloats(size_t(kRows) * size_t(router.experts), 1, -4, 4);
    const bool sigmoid = router.form == RouterForm::kSigmoid;
    // Negative c: a masked expert must not win against them.
    const auto bias =
        sigmoid ? RandomFloats(size_t(router.experts), 2, -2, -1) : std::vector<float>();
    const Routed routed = Route(router, scores, bias),
                 expected = Route(router, scores, bias, RouteExpertsRef);
    EXPECT_EQ(routed.experts, expected.experts);
    for (size_t i = 0; i < routed.weights.size(); ++i) {
      ASSERT_NEAR(routed.weights[i], expected.weights[i], 1e-6f * router.scale);
    }
  }
}

TEST(ExpertsTest, EqualScoresGoToTheLowerNumber) {
  const Routed softmax = Route({.experts = 5, .chosen = 2}, {1, 3, 2, 3, 3});
  EXPECT_EQ(softmax.experts, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(softmax.weights, (std::vector<float>{0.5f, 0.5f}));
  const Routed groups = Route(
      {.form = RouterForm::kSigmoid, .experts = 6, .chosen = 2, .groups = 3, .kept_groups = 1},
      {0, 1, 0, 1, 1, 0});
  EXPECT_EQ(groups.experts, (std::vector<int32_t>{0, 1}));
}

TEST(ExpertsTest, TheBiasChangesTheChoiceAlone) {
  const Router router = {.form = RouterForm::kSigmoid, .experts = 3, .chosen = 2};
  const Routed routed = Route(router, {0, 0, 40}, {31, 30, 29});
  EXPECT_EQ(routed.experts, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(ExpertsTest, ARowWithAScoreThatIsNoNumberChoosesTheFirstExpertsWithWeightsThatAreNone) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const RouterForm form : {RouterForm::kSoftmax, RouterForm::kSigmoid}) {
    const Router router = {.form = form, .experts = 4, .chosen = 2};
    const Routed routed = Route(router, {1, 5, nan, 7, 1, 5, 6, 7});
    EXPECT_EQ(routed.experts, (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_TRUE(std::isnan(routed.weights[0]) && std::isnan(routed.weights[1]));
    EXPECT_TRUE(std::isfinite(routed.weights[2]));
    EXPECT_EQ(Route(router, {-infinity, -infinity, infinity, -infinity}).experts,
              (std::vector<int32_t>{0, 2}));
  }
}

TEST(ExpertsTest, RowsAreListedByExpert) {
  const Router router = {.experts = 4, .chosen = 2};
  const std::vector<int32_t> experts = {1, 3, 0, 3, 1, 3};
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  ExpertRows lists;
  for (int repeat = 0; repeat < 2; ++repeat) {
    lists.Group(router, 3, experts.data(), weights.data());
    EXPECT_EQ(lists.begin, (std::vector<int32_t>{0, 1, 3, 3, 6}));
    EXPECT_EQ(lists.rows, (std::vector<int32_t>{1, 0, 2, 0, 1, 2}));
    EXPECT_EQ(lists.weights, (std::vector<float>{3, 1, 5, 2, 4, 6}));
    EXPECT_EQ(lists.count(2), 0);
  }
}

}  // namespace
}  // namespace rivulet::kernels::experts_test
