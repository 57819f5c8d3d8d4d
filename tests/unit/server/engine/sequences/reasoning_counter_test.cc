// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/reasoning_counter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rivulet {
namespace {

int64_t Count(const std::string& begin, const std::string& end,
              const std::vector<std::string>& tokens) {
  const StopStrings ends({end});
  ReasoningCounter counter(begin, &ends);
  for (const std::string& token : tokens) counter.Add(token);
  return counter.tokens();
}

TEST(ReasoningCounterTest, CountsToTheTokenThatCompletesTheEnd) {
  EXPECT_EQ(Count("<t>", "</t>", {"<t>", "a", "</", "t>b", "c</t>"}), 4);
  EXPECT_EQ(Count("<t>", "</t>", {"<t>a</t>b", "c"}), 1) << "all within a token";
  EXPECT_EQ(Count("<t>", "</t>", {"<t", ">a", "<<", "/t", ""}), 5) << "no end comes";
  EXPECT_EQ(Count("", "</t>", {"a", "<t>", "</t>", "b"}), 3) << "it begins within";
  EXPECT_EQ(Count("", "aab", {"aa", "ab", "c"}), 2) << "the end begins again within itself";
}

TEST(ReasoningCounterTest, OnlyWhiteSpaceMayComeBeforeTheBegin) {
  EXPECT_EQ(Count("<t>", "</t>", {"\r\n", " \t<", "t>", "a", "</t>"}), 5);
  EXPECT_EQ(Count("\n<t>\n", "</t>", {"<t>", "\n", "</t>"}), 3) << "also of the begin itself";
  EXPECT_EQ(Count("<t>", "</t>", {"a<t>", "b", "</t>"}), 0);
  EXPECT_EQ(Count("<t>", "</t>", {"< t>", "b", "</t>"}), 0);
  EXPECT_EQ(Count("<t>", "</t>", {" ", "<t"}), 0) << "the reply ends before";
  EXPECT_EQ(Count("<<t", "</t>", {"<<<t", "</t>"}), 0) << "it does not begin later";
  EXPECT_EQ(Count("|", "|", {"|", "a", "|"}), 3) << "the end is behind the begin";
}

}  // namespace
}  // namespace rivulet
