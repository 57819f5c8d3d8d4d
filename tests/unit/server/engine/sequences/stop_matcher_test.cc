// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace rivulet {
namespace {

// What became of a sequence of tokens.
struct Outcome {
  std::vector<int> released_after;  // [pushes] tokens released so far
  int match = -1;
  int held = 0;
};

Outcome PushAll(const StopStrings& strings, const std::vector<std::string>& pieces) {
  StopMatcher matcher(&strings);
  Outcome outcome;
  int released = 0;
  for (const std::string& piece : pieces) {
    const StopMatcher::Result result = matcher.Push(piece);
    released += result.release;
    outcome.released_after.push_back(released);
    outcome.match = result.match;
    if (result.match >= 0) break;
  }
  outcome.held = matcher.held();
  return outcome;
}

// The same from the definition: looks at the whole text after each token.
Outcome PushAllByDefinition(const std::vector<std::string>& strings,
                            const std::vector<std::string>& pieces) {
  Outcome outcome;
  std::string text;
  std::vector<size_t> ends;
  for (const std::string& piece : pieces) {
    text += piece;
    ends.push_back(text.size());
    size_t keep_from = text.size();  // what begins here or later is held back
    for (size_t begin = 0; begin <= text.size() && outcome.match < 0; ++begin) {
      for (size_t i = 0; i < strings.size(); ++i) {
        const std::string& s = strings[i];
        if (text.compare(begin, s.size(), s) == 0) {
          const bool longer =
              outcome.match < 0 || s.size() > strings[static_cast<size_t>(outcome.match)].size();
          if (longer) outcome.match = static_cast<int>(i);
          keep_from = begin;
        }
      }
    }
    if (outcome.match < 0) {
      for (size_t begin = text.size(); begin-- > 0;) {
        for (const std::string& s : strings) {
          if (s.compare(0, text.size() - begin, text, begin) == 0) keep_from = begin;
        }
      }
    }
    int released = 0;
    for (size_t end : ends) released += end <= keep_from ? 1 : 0;
    outcome.released_after.push_back(released);
    if (outcome.match >= 0) break;
  }
  const int total = static_cast<int>(ends.size());
  outcome.held = total - (outcome.released_after.empty() ? 0 : outcome.released_after.back());
  return outcome;
}

TEST(StopMatcherTest, ReleasesAtOnceWhatCannotBeginAStopString) {
  const StopStrings strings({"xyz"});
  const Outcome outcome = PushAll(strings, {"a", "b", "c"});
  EXPECT_THAT(outcome.released_after, ::testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(outcome.match, -1);
}

TEST(StopMatcherTest, HoldsBackACandidateAcrossManyTokensAndReleasesItWhenItFails) {
  const StopStrings strings({"abcd"});
  const Outcome outcome = PushAll(strings, {"a", "b", "c", "x"});
  EXPECT_THAT(outcome.released_after, ::testing::ElementsAre(0, 0, 0, 4));
}

TEST(StopMatcherTest, FallsBackToAnOverlappingCandidate) {
  const StopStrings strings({"aab"});
  const Outcome outcome = PushAll(strings, {"a", "a", "a", "b"});
  EXPECT_THAT(outcome.released_after, ::testing::ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(outcome.match, 0);
  EXPECT_EQ(outcome.held, 3);
}

TEST(StopMatcherTest, TheEarliestOfSeveralInOneTokenWins) {
  const StopStrings strings({"cd", "bc", "bcd"});
  const Outcome outcome = PushAll(strings, {"a", "bcde"});
  EXPECT_EQ(outcome.match, 2) << "bc and bcd begin together, the longest counts";
  EXPECT_EQ(outcome.held, 1);
}

TEST(StopMatcherTest, EndsAtTheFirstTokenWithWhichTheTextContainsAStopString) {
  const StopStrings strings({"abcd", "c"});
  const Outcome outcome = PushAll(strings, {"a", "b", "c", "d"});
  EXPECT_EQ(outcome.match, 1);
  EXPECT_THAT(outcome.released_after, ::testing::ElementsAre(0, 0, 2));
}

TEST(StopMatcherTest, AStopStringMayBeginAndEndWithinTokens) {
  const StopStrings strings({"bc"});
  const Outcome outcome = PushAll(strings, {"xa", "ab", "cd"});
  EXPECT_EQ(outcome.match, 0);
  EXPECT_EQ(outcome.held, 2) << "the tokens that overlap it";
}

TEST(StopMatcherTest, TokensWithoutTextKeepTheirPlace) {
  const StopStrings strings({"ab"});
  EXPECT_THAT(PushAll(strings, {"", "a", "", "x"}).released_after,
              ::testing::ElementsAre(1, 1, 1, 4));
  const Outcome outcome = PushAll(strings, {"", "a", "", "b"});
  EXPECT_EQ(outcome.match, 0);
  EXPECT_EQ(outcome.held, 3);
}

TEST(StopMatcherTest, AgreesWithTheDefinitionOnRandomText) {
  std::mt19937 random(7);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  auto word = [&](int min_length, int max_length) {
    std::string s;
    const int length = min_length + below(max_length - min_length + 1);
    for (int i = 0; i < length; ++i) s += static_cast<char>('a' + below(2));
    return s;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> strings, pieces;
    const int num_strings = 1 + below(3), num_pieces = below(14);
    for (int i = 0; i < num_strings; ++i) strings.push_back(word(1, 6));
    for (int i = 0; i < num_pieces; ++i) pieces.push_back(word(0, 3));
    const Outcome got = PushAll(StopStrings(strings), pieces);
    const Outcome want = PushAllByDefinition(strings, pieces);
    ASSERT_EQ(got.released_after, want.released_after) << "round " << round;
    ASSERT_EQ(got.match < 0, want.match < 0) << "round " << round;
    if (want.match >= 0) {
      ++matches;
      ASSERT_EQ(strings[static_cast<size_t>(got.match)], strings[static_cast<size_t>(want.match)]);
    }
    ASSERT_EQ(got.held, want.held) << "round " << round;
  }
  EXPECT_GT(matches, 1000);
}

}  // namespace
}  // namespace rivulet
