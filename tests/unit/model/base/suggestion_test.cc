// SPDX-License-Identifier: Apache-2.0
#include "model/base/suggestion.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace rivulet {
namespace {

TEST(SuggestionTest, FindsWhatWasMeant) {
  const std::vector<std::string> names = {"generate", "score", "tokenize", "keys"};
  EXPECT_EQ(Suggestion("genrate", names), "; did you mean generate?");
  EXPECT_EQ(Suggestion("socre", names), "; did you mean score?");
  EXPECT_EQ(Suggestion("tokenise", names), "; did you mean tokenize?");
  EXPECT_EQ(Suggestion("key", names), "; did you mean keys?");
  EXPECT_EQ(Suggestion("help", names), "");
  EXPECT_EQ(Suggestion("", names), "");
  EXPECT_EQ(Suggestion(std::string(1 << 20, 'g'), names), "");
}

TEST(UnknownFlagTest, LooksAtFlagsAndNotAtTheirValues) {
  const auto takes_value = [](const std::string& flag) -> std::optional<bool> {
    if (flag == "--model") return true;
    return flag == "--quiet" ? std::optional(false) : std::nullopt;
  };
  const auto unknown = [&](const std::vector<std::string>& args) {
    return UnknownFlag(args, takes_value);
  };
  EXPECT_EQ(unknown({"--model", "--modle", "--quiet"}), "");
  EXPECT_EQ(unknown({"--model=x", "--modle", "3"}), "--modle");
  EXPECT_EQ(unknown({"--quiet", "--quite=1"}), "--quite");
  EXPECT_EQ(unknown({"word", "--", "--modle"}), "");
  EXPECT_EQ(unknown({"--model", "-m", "-", "-1", "-p", "x"}), "-p");
}

TEST(DidYouMeanTest, NamesOneOrSeveral) {
  EXPECT_EQ(DidYouMean({"a"}), "; did you mean a?");
  EXPECT_EQ(DidYouMean({"a", "b"}), "; did you mean a or b?");
  EXPECT_EQ(DidYouMean({"a", "b", "c"}), "; did you mean a, b or c?");
}

}  // namespace
}  // namespace rivulet
