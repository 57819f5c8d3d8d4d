// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename T>
std::string Number(T value) {
  std::string text = "x";
  AppendNumber(value, &text);
  return text.substr(1);
}

TEST(NumberTest, IsShortAndReadsBackAsTheSameNumber) {
  EXPECT_EQ(Number(0.1f), "0.1");
  EXPECT_EQ(Number(0.1), "0.1");
  EXPECT_EQ(Number(0.0), "0");
  EXPECT_EQ(Number(int64_t{-7}), "-7");
  for (const double value : {1.0 / 3, 1e-300, 167.96868097067565, -1.7976931348623157e308}) {
    EXPECT_EQ(std::strtod(Number(value).c_str(), nullptr), value);
  }
  for (const float value : {1.0f / 3, 1e-38f, 16777217.0f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(std::strtof(Number(value).c_str(), nullptr), value);
  }
}

TEST(ParseIntegersTest, ReadsAListAndNamesTheBadEntry) {
  EXPECT_THAT(*ParseIntegers("3, 1,4", "--x", 0, 9), ElementsAre(3, 1, 4));
  EXPECT_THAT(*ParseIntegers("", "--x", 0, 9), IsEmpty());
  for (const char* const bad : {"1,10", "1,-1", "1,a", "1,", "1,2.0", "1,0x1"}) {
    const auto result = ParseIntegers(bad, "--x", 0, 9);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("--x: entry 1")) << bad;
  }
}

TEST(CodePointOffsetsTest, EndsWithTheSize) {
  EXPECT_THAT(CodePointOffsets("a\u00e9b"), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(CodePointOffsets(""), ElementsAre(0));
}

TEST(OneLineTest, TurnsControlCharactersIntoSpaces) {
  EXPECT_EQ(OneLine("a\nb\tc\x7f\u00e9"), "a b c \u00e9");
}

TEST(PerplexityTest, IsThatOfTheMean) {
  EXPECT_DOUBLE_EQ(Perplexity(4, 2), std::exp(2.0));
  EXPECT_TRUE(std::isnan(Perplexity(0, 0)));
}

TEST(CompactTest, KeepsThreeDigits) {
  EXPECT_EQ(Compact(0), "0");
  EXPECT_EQ(Compact(999), "999");
  EXPECT_EQ(Compact(50176), "50.2k");
  EXPECT_EQ(Compact(6591006), "6.59M");
}

}  // namespace
}  // namespace rivulet
