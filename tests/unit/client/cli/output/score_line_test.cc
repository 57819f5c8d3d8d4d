// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/score_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rivulet {
namespace {

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

TEST(ScoreLineTest, KeepsTheIdAsItStands) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"id":"a\"\n","tokens":[1]})", R"("a\"\n")"},
      {R"({"text":"b","id":-7})", "-7"},
      {R"({"id":18446744073709551615,"tokens":"wrong"})", "18446744073709551615"},
      {R"({"text":"b"})", ""},
  };
  for (const auto& [line, expected] : cases) {
    std::string id = "old";
    (void)ParseScoreLine(line, &id);
    EXPECT_EQ(id, expected) << line;
  }
}

TEST(ScoreLineTest, SaysWhatIsWrongAndWhere) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"tokens":[1,2147483648]})", "tokens[1]: 2147483648"},
      {R"({"tokens":[-2147483649]})", "tokens[0]"},
      {R"({"tokens":[1,2,1.0]})", "tokens[2]: 1.0"},
      {R"({"tokens":[1e2]})", "tokens[0]"},
      {R"({"tokens":["1"]})", "tokens[0]"},
      {R"({"tokens":[null]})", "tokens[0]: null"},
      {R"({"tokens":[[1]]})", "tokens[0]"},
      {R"({"tokens":[{}]})", "tokens[0]"},
      {R"({"tokens":[99999999999999999999999]})", "tokens[0]"},
      {R"({"tokens":3})", "tokens: 3"},
      {R"({"tokens":"abc"})", "tokens: a string"},
      {R"({"tokens":{}})", "tokens: an object"},
      {R"({"text":[1]})", "text: a list"},
      {R"({"text":true})", "text: true"},
      {R"({"token":[1]})", "\"token\""},
      {R"({"tokens":[1],"x":1})", "\"x\""},
      {R"({"tokens":[1],"tokens":[2]})", "twice"},
      {R"({"tokens":[1],"text":"a"})", "both"},
      {R"({"id":1,"id":2,"text":"a"})", "\"id\" appears twice"},
      {R"({"id":1.5,"text":"a"})", "id: 1.5"},
      {R"({"id":[1],"text":"a"})", "id: a list"},
      {R"({"id":null,"text":"a"})", "id: null"},
      {R"({"id":1})", "no key"},
      {"{}", "no key"},
      {"", "empty"},
      {" \t\r", "empty"},
      {"[1,2]", "{\"tokens\""},
      {"3", "{\"tokens\""},
      {"\"tokens\"", "{\"tokens\""},
      {R"({"tokens":[1,})", "byte 14"},
      {R"({"tokens":[1]} x)", "JSON"},
      {R"({"tokens":[1]}{"tokens":[1]})", "JSON"},
      {R"({"tokens":[NaN]})", "JSON"},
      {"{\"text\":\"\xff\"}", "JSON"},
      {std::string(100000, '['), "{\"tokens\""},
      // What the JSON parser would pass over.
      {"\xEF\xBB\xBF{\"tokens\":[1]}", "byte order mark"},
      {std::string("{\"tokens\":[1]}\0x", 16), "byte 15 of the line is NUL"},
      {std::string("{\"tokens\":[1]}\0", 15), "NUL"},
      {std::string("\0", 1), "NUL"},
  };
  for (const auto& [line, mention] : cases) {
    EXPECT_THAT(Refusal(line), HasSubstr(mention)) << line.substr(0, 100);
  }
}

TEST(ScoreLineTest, EchoesLongInputShortly) {
  EXPECT_LT(Refusal("{\"" + std::string(100000, 'k') + "\":1}").size(), 200u);
}

}  // namespace
}  // namespace rivulet
