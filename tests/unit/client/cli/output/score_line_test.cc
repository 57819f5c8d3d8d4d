// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/score_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rivulet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<int32_t> Tokens(absl::string_view line) {
  absl::StatusOr<ScoreContent> content = ParseScoreLine(line);
  EXPECT_TRUE(content.ok()) << content.status();
  return content.ok() ? std::get<std::vector<int32_t>>(*content) : std::vector<int32_t>{-99};
}

std::string Refusal(absl::string_view line) {
  const absl::StatusOr<ScoreContent> content = ParseScoreLine(line);
  if (content.ok()) return "accepted";
  EXPECT_EQ(content.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(content.status().message()), Not(HasSubstr("\n")));
  return std::string(content.status().message());
}

TEST(ScoreLineTest, ReadsTokens) {
  EXPECT_THAT(Tokens(R"({"tokens":[3,1, 4]})"), ElementsAre(3, 1, 4));
  EXPECT_THAT(Tokens(" { \"tokens\" : [ ] }\r"), IsEmpty());
  EXPECT_THAT(Tokens(R"({"tokens":[2147483647,-2147483648,-1]})"),
              ElementsAre(INT32_MAX, INT32_MIN, -1));
}

TEST(ScoreLineTest, ReadsText) {
  absl::StatusOr<ScoreContent> content = ParseScoreLine(R"({"text":"a\n\u00e9"})");
  ASSERT_TRUE(content.ok());
  EXPECT_EQ(std::get<std::string>(*content), "a\n\u00e9");
}

TEST(ScoreLineTest, NamesTheEntryThatIsNoId) {
  EXPECT_THAT(Refusal(R"({"tokens":[1,2147483648]})"), HasSubstr("tokens[1]: 2147483648"));
  EXPECT_THAT(Refusal(R"({"tokens":[-2147483649]})"), HasSubstr("tokens[0]"));
  EXPECT_THAT(Refusal(R"({"tokens":[1,2,1.0]})"), HasSubstr("tokens[2]: 1.0"));
  EXPECT_THAT(Refusal(R"({"tokens":[1e2]})"), HasSubstr("tokens[0]"));
  EXPECT_THAT(Refusal(R"({"tokens":["1"]})"), HasSubstr("tokens[0]"));
  EXPECT_THAT(Refusal(R"({"tokens":[null]})"), HasSubstr("tokens[0]: null"));
  EXPECT_THAT(Refusal(R"({"tokens":[[1]]})"), HasSubstr("tokens[0]"));
  EXPECT_THAT(Refusal(R"({"tokens":[{}]})"), HasSubstr("tokens[0]"));
  EXPECT_THAT(Refusal(R"({"tokens":[99999999999999999999999]})"), HasSubstr("tokens[0]"));
}

TEST(ScoreLineTest, NamesTheFieldOfAWrongType) {
  EXPECT_THAT(Refusal(R"({"tokens":3})"), HasSubstr("tokens: 3"));
  EXPECT_THAT(Refusal(R"({"tokens":"abc"})"), HasSubstr("tokens: a string"));
  EXPECT_THAT(Refusal(R"({"tokens":{}})"), HasSubstr("tokens: an object"));
  EXPECT_THAT(Refusal(R"({"text":[1]})"), HasSubstr("text: a list"));
  EXPECT_THAT(Refusal(R"({"text":true})"), HasSubstr("text: true"));
}

TEST(ScoreLineTest, RefusesKeysThatAreUnknownRepeatedOrBoth) {
  EXPECT_THAT(Refusal(R"({"token":[1]})"), HasSubstr("\"token\""));
  EXPECT_THAT(Refusal(R"({"tokens":[1],"x":1})"), HasSubstr("\"x\""));
  EXPECT_THAT(Refusal(R"({"tokens":[1],"tokens":[2]})"), HasSubstr("twice"));
  EXPECT_THAT(Refusal(R"({"tokens":[1],"text":"a"})"), HasSubstr("both"));
  EXPECT_THAT(Refusal("{}"), HasSubstr("no key"));
}

TEST(ScoreLineTest, RefusesWhatIsNoObject) {
  EXPECT_THAT(Refusal(""), HasSubstr("empty"));
  EXPECT_THAT(Refusal(" \t\r"), HasSubstr("empty"));
  EXPECT_THAT(Refusal("[1,2]"), HasSubstr("expected {\"tokens\""));
  EXPECT_THAT(Refusal("3"), HasSubstr("expected {\"tokens\""));
  EXPECT_THAT(Refusal("\"tokens\""), HasSubstr("expected {\"tokens\""));
}

TEST(ScoreLineTest, SaysWhereTheJsonIsBroken) {
  EXPECT_THAT(Refusal(R"({"tokens":[1,})"), AllOf(HasSubstr("JSON"), HasSubstr("byte 14")));
  EXPECT_THAT(Refusal(R"({"tokens":[1]} x)"), HasSubstr("JSON"));
  EXPECT_THAT(Refusal(R"({"tokens":[1]}{"tokens":[1]})"), HasSubstr("JSON"));
  EXPECT_THAT(Refusal(R"({"tokens":[NaN]})"), HasSubstr("JSON"));
  EXPECT_THAT(Refusal("{\"text\":\"\xff\"}"), HasSubstr("JSON"));
  EXPECT_THAT(Refusal(std::string(100000, '[')), HasSubstr("expected {\"tokens\""));
}

TEST(ScoreLineTest, RefusesWhatTheJsonParserWouldPassOver) {
  EXPECT_THAT(Refusal("\xEF\xBB\xBF{\"tokens\":[1]}"), HasSubstr("byte order mark"));
  EXPECT_THAT(Refusal(std::string("{\"tokens\":[1]}\0x", 16)),
              HasSubstr("byte 15 of the line is NUL"));
  EXPECT_THAT(Refusal(std::string("{\"tokens\":[1]}\0", 15)), HasSubstr("NUL"));
  EXPECT_THAT(Refusal(std::string("\0", 1)), HasSubstr("NUL"));
}

TEST(ScoreLineTest, EchoesLongInputShortly) {
  EXPECT_LT(Refusal("{\"" + std::string(100000, 'k') + "\":1}").size(), 200u);
}

}  // namespace
}  // namespace rivulet
