// SPDX-License-Identifier: Apache-2.0
#include "model/base/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<JsonValue> Parse(absl::string_view text) { return ParseStrictJson(text, {}); }

TEST(StrictJsonTest, BuildsEveryKindOfValue) {
  const auto json = Parse(R"( {"a":[1,-2,1.5,true,null],"b":{"c":"x\u00e4"},"d":1e3} )");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(json->keys, ElementsAre("a", "b", "d"));
  const JsonValue& a = *json->Find("a");
  ASSERT_EQ(a.items.size(), 5u);
  EXPECT_EQ(a.items[0].integer, 1);
  EXPECT_EQ(a.items[1].integer, -2);
  EXPECT_EQ(a.items[2].number, 1.5);
  EXPECT_TRUE(a.items[3].boolean);
  EXPECT_EQ(a.items[4].kind, JsonValue::Kind::kNull);
  EXPECT_EQ(json->Find("b")->Find("c")->text, "x\xC3\xA4");
  EXPECT_EQ(json->Find("d")->kind, JsonValue::Kind::kFloat);
  EXPECT_EQ(json->Find("e"), nullptr);
}

TEST(StrictJsonTest, KeepsIntegersBeyondInt64Apart) {
  const auto json = Parse("[9223372036854775807,9223372036854775808,-9223372036854775809]");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->items[0].integer, INT64_MAX);
  EXPECT_EQ(json->items[1].kind, JsonValue::Kind::kHugeInteger);
  EXPECT_EQ(json->items[1].text, "9223372036854775808");
  EXPECT_EQ(json->items[2].kind, JsonValue::Kind::kHugeInteger);
}

TEST(StrictJsonTest, NamesTheDuplicateKeyAtEveryDepth) {
  const struct {
    const char* text;
    const char* field;
  } cases[] = {{R"({"a":1,"a":1})", "a"},
               {R"({"a":{"b":1,"c":2,"b":3}})", "a.b"},
               {R"({"a":[0,{"b":1,"b":2}]})", "a[1].b"},
               {R"({"a":1,"\u0061":1})", "a"},
               {R"({"":1,"":1})", ""}};
  for (const auto& bad : cases) {
    const auto json = Parse(bad.text);
    EXPECT_TRUE(absl::StrContains(json.status().message(), "twice")) << bad.text << json.status();
    EXPECT_EQ(GetErrorDetail(json.status()).field, bad.field);
  }
  EXPECT_TRUE(Parse(R"({"a":{"b":1},"b":{"b":1}})").ok());
}

TEST(StrictJsonTest, AllowsEightLevelsAndNotNine) {
  EXPECT_TRUE(Parse(std::string(8, '[') + std::string(8, ']')).ok());
  const auto deep = Parse(std::string(9, '[') + std::string(9, ']'));
  EXPECT_TRUE(absl::StrContains(deep.status().message(), "deeper than 8")) << deep.status();
  const auto very_deep = Parse(std::string(1'000'000, '['));
  EXPECT_TRUE(absl::StrContains(very_deep.status().message(), "deeper than 8"));
}

TEST(StrictJsonTest, BoundsTheNumberOfValues) {
  std::string text = "[0";
  for (int i = 1; i < 4095; ++i) text += ",0";
  EXPECT_TRUE(Parse(text + "]").ok());
  const auto many = Parse(text + ",0]");
  EXPECT_TRUE(absl::StrContains(many.status().message(), "more than 4096")) << many.status();
}

TEST(StrictJsonTest, BoundsTheLengthOfStringsAndNumbers) {
  const size_t limit = 1 << 20;
  const std::string long_text(limit, 'x');
  EXPECT_TRUE(Parse(absl::StrCat("[\"", long_text.substr(2), "\"]")).ok());
  for (const std::string& token : {absl::StrCat("\"", long_text, "\""),
                                   absl::StrCat("\"", long_text), absl::StrCat("\"\\\"", long_text),
                                   std::string(limit + 1, '1'), absl::StrCat("x", long_text)}) {
    const auto json = Parse(absl::StrCat("[1, ", token, "]"));
    EXPECT_TRUE(absl::StrContains(json.status().message(), "more than 1048576 bytes, at byte 4"))
        << json.status();
  }
  // Not one long token: white space, and many short ones.
  std::string many = absl::StrCat("[", std::string(2 * limit, ' '), "0");
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&many, ",\"", long_text.substr(0, 500), "\"");
  EXPECT_TRUE(Parse(absl::StrCat(many, "]")).ok());
}

TEST(StrictJsonTest, RejectsWhatIsNotJson) {
  const std::string bad[] = {"",
                             " ",
                             "{",
                             "{]",
                             "[1,]",
                             "{\"a\":1,}",
                             "{'a':1}",
                             "{a:1}",
                             "[01]",
                             "[+1]",
                             "[.5]",
                             "[1.]",
                             "[0x10]",
                             "[NaN]",
                             "[Infinity]",
                             "[nul]",
                             "[1] [2]",
                             "[1]x",
                             "// c\n[1]",
                             "[1/*c*/]",
                             "[\"\x01\"]",
                             "[\"\n\"]",
                             "[\"\\x\"]",
                             "[\"\\ud800\"]",
                             "[\"\xFF\"]",
                             "[\"\xC0\x80\"]",
                             "[\"\xED\xA0\x80\"]",
                             "[1]\xC3\xA4",
                             "\xEF\xBB\xBF[1]",
                             "[1e999]",
                             "[-1e999]",
                             "[\"a",
                             std::string("[1]\0", 4),
                             std::string("[1]\0junk", 8),
                             std::string("\0[1]", 4)};
  for (const std::string& text : bad) {
    const auto json = Parse(text);
    EXPECT_TRUE(absl::IsInvalidArgument(json.status())) << text;
    for (const char c : json.status().message()) EXPECT_GE(c, ' ') << text;
    EXPECT_LT(json.status().message().size(), 300u);
  }
}

TEST(StrictJsonTest, NamesTheFieldWhereTheTextGoesWrong) {
  const auto json = Parse(R"({"a":{"b":[1,2,NaN]}})");
  EXPECT_EQ(GetErrorDetail(json.status()).field, "a.b[2]") << json.status();
  EXPECT_TRUE(absl::StrContains(json.status().message(), "byte 16")) << json.status();
  const auto overflow = Parse(R"({"a":[1e999]})");
  EXPECT_TRUE(absl::StrContains(overflow.status().message(), "a[0] is 1e999")) << overflow.status();
}

TEST(StrictJsonTest, HandsOverTopLevelMembersOneByOne) {
  std::vector<std::string> seen;
  const auto on_member = [&seen](const std::string& key, const JsonValue& value) {
    seen.push_back(absl::StrCat(key, "=", Describe(value)));
    return key == "stop" ? absl::AbortedError("enough") : absl::OkStatus();
  };
  EXPECT_TRUE(ParseStrictJsonMembers(R"({"a":[1,{"x":2}],"b":"t"})", {}, on_member).ok());
  EXPECT_THAT(seen, ElementsAre("a=an array of 2 values", "b=\"t\""));
  EXPECT_TRUE(absl::IsAborted(ParseStrictJsonMembers(R"({"stop":1,"b":2})", {}, on_member)));
  for (const char* text : {"[]", "3", "null", "\"x\"", "{\"a\":1,\"a\":1}", "{\"a\":1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStrictJsonMembers(text, {}, on_member))) << text;
  }
}

TEST(StrictJsonTest, QuotesOnOneLineAndCutsLongTexts) {
  EXPECT_EQ(Quoted("a\n\"\xC3\xA4\x01"), R"("a\n\"\xc3\xa4\x01")");
  EXPECT_EQ(Quoted(std::string(81, 'x')), absl::StrCat("\"", std::string(80, 'x'), "...\""));
}

}  // namespace
}  // namespace rivulet
