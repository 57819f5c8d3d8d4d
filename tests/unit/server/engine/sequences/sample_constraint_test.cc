// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/sample_constraint.h"

#include <gtest/gtest.h>

namespace rivulet {
namespace {

struct Matcher final : ConstraintMatcher {
  explicit Matcher(std::vector<std::vector<int32_t>>* all) : pushes(*all) {}
  const ConstraintStep* step() const override { return nullptr; }
  std::vector<std::unique_ptr<TokenMask>> Try(std::span<const int32_t> tokens) override {
    return std::vector<std::unique_ptr<TokenMask>>(tokens.size());
  }
  void DoPush(std::span<const int32_t> tokens) override {
    pushes.emplace_back(tokens.begin(), tokens.end());
  }
  std::vector<std::vector<int32_t>>& pushes;
};

struct SampleConstraintTest : ::testing::Test {
  std::vector<std::vector<int32_t>> pushes;
  SampleConstraint constraint{std::make_unique<Matcher>(&pushes), /*late_masks=*/true};
};

TEST_F(SampleConstraintTest, TokensOfARowArePushedTogether) {
  std::vector<const TokenMask*> masks;
  const std::vector<int32_t> drafts = {5, 6};
  using Tokens = std::vector<int32_t>;
  for (const Tokens& drawn : std::vector<Tokens>{{5, 6, 7}, {5, 7}, {7}}) {
    constraint.Try(drafts, &masks);
    for (const int32_t token : drawn) constraint.OnDrawn(token);
    EXPECT_EQ(pushes.back(), drawn);
  }
  constraint.Try(drafts, &masks);
  constraint.OnDrawn(5);
  constraint.OnLate();
  EXPECT_EQ(pushes.size(), 4);
  EXPECT_EQ(pushes.back(), Tokens{5});
  constraint.OnDrawn(5);  // no draft any more
  EXPECT_EQ(pushes.size(), 5);
  constraint.Try(drafts, &masks);
  constraint.OnLate();
  constraint.OnDrawn(5);  // likewise
  EXPECT_EQ(pushes.size(), 6);
}

TEST_F(SampleConstraintTest, ALateMaskLeavesTheNextRowWithoutDrafts) {
  EXPECT_TRUE(constraint.MayDraft());
  constraint.OnLate();
  EXPECT_FALSE(constraint.MayDraft());
  constraint.OnDrawn(1);
  EXPECT_FALSE(constraint.MayDraft()) << "the last mask was late";
  constraint.OnDrawn(1);
  EXPECT_TRUE(constraint.MayDraft());
  EXPECT_FALSE(SampleConstraint(std::make_unique<Matcher>(&pushes), false).MayDraft());
}

}  // namespace
}  // namespace rivulet
