// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "server/engine/sequences/cached_prompt.h"

namespace rivulet {
namespace {

using Tokens = std::vector<int32_t>;

class PrefixCacheTest : public ::testing::Test {
 protected:
  StateStore states_{{}, {}, {}, {}, [] {}};
  PrefixCache cache_{PrefixCacheLimits()};

  StatePtr State(float value) { return states_.Keep({value, 0, 0, 0}); }
  void Keep(const std::string& scope, const Tokens& tokens, float value) {
    cache_.Keep(scope, tokens, State(value));
  }
  // The depth of what is found and its value, or (0, -1).
  std::pair<int64_t, float> Find(const std::string& scope, const Tokens& tokens,
                                 int64_t most = 1000) {
    const PrefixCache::Match match = cache_.Find(scope, tokens, most);
    if (match.state == nullptr) return {match.depth, -1};
    return {match.depth, states_.Use(match.state.get())->values()[0]};
  }
  static std::pair<int64_t, float> None() { return {0, -1}; }
};

TEST_F(PrefixCacheTest, FindsTheDeepestStateThatTheTokensBeginWith) {
  Keep("a", {1, 2, 3, 4}, 4);
  Keep("a", {1, 2}, 2);
  Keep("a", {1, 2, 3, 9, 9}, 5);
  using Found = std::pair<int64_t, float>;
  EXPECT_EQ(Find("a", {1, 2, 3, 4, 5}), Found(4, 4));
  EXPECT_EQ(Find("a", {1, 2, 3, 4}, 3), Found(2, 2));
  EXPECT_EQ(Find("a", {1, 2, 3, 9, 9}), Found(5, 5));
  EXPECT_EQ(Find("a", {1, 2, 3, 9}), Found(2, 2));
  EXPECT_EQ(Find("a", {1, 7}), None());
  EXPECT_EQ(Find("a", {}), None());
  EXPECT_EQ(Find("a", {1}, -1), None());
}

TEST_F(PrefixCacheTest, SaysHowFarPromptsAgreeAlsoWhereNoStateIs) {
  Keep("a", {1, 2, 3, 4, 5}, 5);
  EXPECT_EQ(cache_.Find("a", Tokens{1, 2, 3, 8}, 100).shared, 3);
  EXPECT_EQ(cache_.Find("a", Tokens{1, 2, 3, 4, 5, 6}, 100).shared, 5);
  EXPECT_EQ(cache_.Find("a", Tokens{2}, 100).shared, 0);
  EXPECT_EQ(cache_.Find("b", Tokens{1, 2, 3}, 100).shared, 0);
}

TEST_F(PrefixCacheTest, AScopeFindsItsOwnAndWhatIsForAll) {
  Keep(PrefixCache::Scope("a", ""), {1, 2, 3}, 3);
  cache_.Share(Tokens{1, 2}, states_.Pin({2, 0, 0, 0}, 1));
  using Found = std::pair<int64_t, float>;
  EXPECT_EQ(Find(PrefixCache::Scope("a", ""), {1, 2, 3}), Found(3, 3));
  EXPECT_EQ(Find(PrefixCache::Scope("b", ""), {1, 2, 3}), Found(2, 2));
  EXPECT_EQ(Find(PrefixCache::Scope("a", "salt"), {1, 2, 3}), Found(2, 2));
  EXPECT_EQ(cache_.Find(PrefixCache::Scope("b", ""), Tokens{1, 2, 3}, 100).shared, 0)
      << "where tenants' prompts part is nobody's business";
}

TEST(PrefixCacheScopeTest, NamesOfTenantAndSaltCannotBeMixedUp) {
  EXPECT_NE(PrefixCache::Scope("ab", "c"), PrefixCache::Scope("a", "bc"));
  EXPECT_NE(PrefixCache::Scope("", "1:a"), PrefixCache::Scope("1:a", ""));
  EXPECT_NE(PrefixCache::Scope("a", ""), PrefixCache::Scope("", "a"));
}

TEST_F(PrefixCacheTest, AStateThatTheStoreForgotIsNotFoundAndIsReplaced) {
  StateStore small{StateLimits{2 * 16, 0, 0}, {}, {}, {}, [] {}};
  PrefixCache cache{PrefixCacheLimits()};
  cache.Keep("a", Tokens{1}, small.Keep({1, 0, 0, 0}));
  cache.Keep("a", Tokens{1, 2}, small.Keep({2, 0, 0, 0}));
  const StatePtr other = small.Keep({3, 0, 0, 0});
  EXPECT_EQ(cache.Find("a", Tokens{1}, 1).state, nullptr);
  EXPECT_EQ(cache.Find("a", Tokens{1, 2}, 2).depth, 2);
  cache.Keep("a", Tokens{1}, small.Keep({4, 0, 0, 0}));
  EXPECT_EQ(cache.Find("a", Tokens{1}, 1).depth, 1);
}

TEST_F(PrefixCacheTest, WhatWasUsedLongestAgoLeavesFirstAndTakesItsTokensAlong) {
  const Tokens first(100, 1), second(100, 2), third(100, 3);
  Keep("a", first, 1);
  const int64_t one = cache_.bytes();
  PrefixCache small{PrefixCacheLimits{2 * one + 10, 1}};
  small.Keep("a", first, State(1));
  small.Keep("a", second, State(2));
  EXPECT_EQ(small.Find("a", first, 100).depth, 100);
  small.Keep("a", third, State(3));
  EXPECT_EQ(small.Find("a", second, 100).depth, 0);
  EXPECT_EQ(small.Find("a", second, 100).shared, 0);
  EXPECT_EQ(small.Find("a", first, 100).depth, 100);
  EXPECT_EQ(small.Find("a", third, 100).depth, 100);
  EXPECT_EQ(small.num_states(), 2);
  EXPECT_LE(small.bytes(), 2 * one);
}

TEST_F(PrefixCacheTest, WithoutBytesItKeepsNothing) {
  PrefixCache none{PrefixCacheLimits{0, 1}};
  none.Keep("a", Tokens{1}, State(1));
  EXPECT_EQ(none.Find("a", Tokens{1}, 1).state, nullptr);
  EXPECT_EQ(none.bytes(), 0);
}

// Against a list of all prompts: whatever is kept and leaves, in any order.
TEST_F(PrefixCacheTest, FindsWhatASearchThroughAllPromptsFinds) {
  uint64_t random = 99;
  const auto draw = [&random](uint64_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 33) % below;
  };
  const auto prompt = [&] {
    Tokens tokens(1 + draw(8));
    for (int32_t& token : tokens) token = static_cast<int32_t>(draw(3));
    return tokens;
  };
  int64_t most_bytes = 0;
  for (const int64_t limit : {int64_t{1} << 20, int64_t{4000}}) {
    PrefixCache cache{PrefixCacheLimits{limit, 1}};
    std::map<std::pair<std::string, Tokens>, float> kept;
    for (int i = 0; i < 5000; ++i) {
      const std::string scope = draw(2) == 0 ? "a" : "b";
      const Tokens tokens = prompt();
      if (draw(2) == 0) {
        const auto known = kept.emplace(std::pair(scope, tokens), static_cast<float>(i));
        cache.Keep(scope, tokens, State(known.first->second));
        most_bytes = std::max(most_bytes, cache.bytes());
        ASSERT_LE(cache.bytes(), limit);
        continue;
      }
      const int64_t most = static_cast<int64_t>(draw(10));
      const PrefixCache::Match match = cache.Find(scope, tokens, most);
      if (match.state != nullptr) {
        const Tokens seen(tokens.begin(), tokens.begin() + match.depth);
        ASSERT_LE(match.depth, most);
        ASSERT_TRUE(kept.contains({scope, seen}));
        if (limit > 4000) {
          ASSERT_EQ(states_.Use(match.state.get())->values()[0], kept.at({scope, seen}));
        }
      }
      int64_t deepest = 0, shared = 0;
      for (const auto& [key, value] : kept) {
        if (key.first != scope) continue;
        int64_t same = 0;
        while (same < std::ssize(key.second) && same < std::ssize(tokens) &&
               key.second[static_cast<size_t>(same)] == tokens[static_cast<size_t>(same)]) {
          ++same;
        }
        shared = std::max(shared, same);
        if (same == std::ssize(key.second) && same <= most) deepest = std::max(deepest, same);
      }
      if (limit > 4000) {
        ASSERT_EQ(match.depth, deepest) << i;
        ASSERT_EQ(match.shared, shared) << i;
      }
    }
  }
  EXPECT_GT(most_bytes, 4000);
}

TEST(KeepPlanTest, PointsAreMetExactlyAndTheRestBySpacing) {
  KeepPlan plan(10, {15, 18}, 0);
  EXPECT_EQ(plan.DistanceToNextPoint(10), 5);
  EXPECT_EQ(plan.DistanceToNextPoint(15), 3);
  EXPECT_GT(plan.DistanceToNextPoint(18), 1000000);
  EXPECT_TRUE(plan.Due(15));
  EXPECT_FALSE(plan.Due(16));
  KeepPlan spaced(10, {15}, 4);
  EXPECT_EQ(spaced.DistanceToNextPoint(10), 4);
  EXPECT_FALSE(spaced.Due(13));
  EXPECT_TRUE(spaced.Due(14));
  spaced.NoteKept(14);
  EXPECT_EQ(spaced.DistanceToNextPoint(14), 1);
  EXPECT_TRUE(spaced.Due(15));
  EXPECT_EQ(spaced.DistanceToNextPoint(30), 1) << "late: as soon as can be";
}

TEST(CachedPromptTest, KeepsTheEndWhatIsAskedForWherePromptsPartAndAFewBetween) {
  StateStore states{{}, {}, {}, {}, [] {}};
  PrefixCache cache{PrefixCacheLimits()};
  const PromptCacheSpec spec{true, "", {30, 5, 900}};
  CachedPrompt prompt(spec, "t", /*bos=*/1);
  Tokens tokens(200);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  EXPECT_EQ(prompt.Find(&cache, tokens, 200).state, nullptr);
  using Points = std::vector<int64_t>;
  // Positions 5 and 30 after the bos, the end (of which 900 is past), and every 50.
  EXPECT_EQ(prompt.Points(0, 200, 50, 16), (Points{6, 31, 50, 100, 150, 200}));
  EXPECT_EQ(prompt.Points(0, 200, 1, 16), (Points{6, 25, 31, 50, 75, 100, 125, 150, 175, 200}));
  EXPECT_EQ(prompt.Points(40, 200, 500, 16), (Points{200}));
  EXPECT_EQ(prompt.Points(190, 200, 500, 16), (Points{200})) << "900 asks for the end";
  CachedPrompt plain({true, "", {}}, "t", 1);
  EXPECT_EQ(plain.Points(190, 200, 500, 16), Points()) << "ten tokens are not worth a state";
  EXPECT_EQ(plain.Points(0, 1, 500, 1), Points()) << "nor is the bos";
  // Another prompt that parts from it after 60 tokens.
  prompt.Keep(&cache, tokens, 200, states.Keep({1, 2, 3, 4}));
  Tokens other = tokens;
  other[60] = 7;
  EXPECT_EQ(plain.Find(&cache, other, 200).state, nullptr);
  EXPECT_EQ(plain.Points(0, 200, 500, 16), (Points{61, 200}));
}

}  // namespace
}  // namespace rivulet
