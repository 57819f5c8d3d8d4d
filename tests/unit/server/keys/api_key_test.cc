// SPDX-License-Identifier: Apache-2.0
#include "server/keys/api_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"
#include "server/keys/key_json.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// SHA-256 of "abc", as FIPS 180-2 has it.
constexpr char kHash[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

// A list of one key, with these members beside the required ones.
std::string OneKey(absl::string_view more = "") {
  return absl::StrCat(R"([{"name": "n", "sha256": ")", kHash, R"(", "tenant": "t")", more, "}]");
}

std::string MessageOf(absl::string_view text) {
  const auto keys = ParseKeys(text);
  EXPECT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(keys.status().message());
}

TEST(ApiKeyTest, AKeyIsItsSha256) {
  const auto keys = ParseKeys(OneKey());
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(SameHash(keys->front().hash, HashOf("abc")));
  for (size_t i = 0; i < HashOf("abc").size(); ++i) {
    KeyHash other = HashOf("abc");
    other[i] ^= 1;
    EXPECT_FALSE(SameHash(keys->front().hash, other)) << i;
  }
}

TEST(ApiKeyTest, WhatIsNotNamedIsNotLimited) {
  const auto keys = ParseKeys(OneKey());
  ASSERT_TRUE(keys.ok()) << keys.status();
  const ApiKey& key = keys->front();
  EXPECT_EQ(key.name, "n");
  EXPECT_EQ(key.tenant, "t");
  EXPECT_FALSE(key.models.has_value());
  EXPECT_FALSE(key.admin);
  EXPECT_EQ(key.expires, absl::InfiniteFuture());
  EXPECT_EQ(key.limits, KeyLimits());
}

TEST(ApiKeyTest, AListIsReadAsItWasWritten) {
  ApiKey first, second;
  first.name = "first";
  first.tenant = "team.a";
  first.hash = HashOf("1");
  first.models = ModelNames{"a", "b-2"};
  first.admin = true;
  first.expires = absl::FromUnixSeconds(1800000000);
  int64_t value = 10;
  for (const KeyLimit& limit : kKeyLimits) first.limits.*limit.value = value++;
  second.name = second.tenant = "second";
  second.hash = HashOf("2");
  const auto keys = ParseKeys(KeysToJson({first, second}));
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2u);
  const ApiKey& read = keys->front();
  EXPECT_EQ(read.name, first.name);
  EXPECT_EQ(read.tenant, first.tenant);
  EXPECT_EQ(read.hash, first.hash);
  EXPECT_THAT(*read.models, ElementsAre("a", "b-2"));
  EXPECT_TRUE(read.admin);
  EXPECT_EQ(read.expires, first.expires);
  EXPECT_EQ(read.limits, first.limits);
  EXPECT_EQ(KeysToJson(*keys), KeysToJson({first, second}));
  EXPECT_TRUE(ParseKeys(KeysToJson({}))->empty());
}

TEST(ApiKeyTest, AnExpiryIsRfc3339) {
  const absl::Time time = absl::FromUnixSeconds(1800000000);
  EXPECT_EQ(ExpiryText(time), "2027-01-15T08:00:00Z");
  EXPECT_EQ(*ParseExpiry("2027-01-15T08:00:00Z"), time);
  EXPECT_EQ(*ParseExpiry("2027-01-15T09:30:00+01:30"), time);
  for (const char* bad :
       {"", "2027-01-15", "2027-01-15T08:00:00", "infinite-future", "infinite-future-and-more",
        " 2027-01-15T08:00:00Z", "2027-01-15T08:00:00Z ", "2027-13-15T08:00:00Z"}) {
    EXPECT_FALSE(ParseExpiry(bad).ok()) << bad;
  }
}

TEST(ApiKeyTest, ErrorsNameTheFieldAndWhatItHolds) {
  EXPECT_THAT(MessageOf("{}"), HasSubstr("the file is"));
  EXPECT_THAT(MessageOf("[7]"), HasSubstr("[0] is 7"));
  EXPECT_THAT(MessageOf("[{}]"), HasSubstr("[0].name is missing"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "modles": ["m"])")),
              HasSubstr(R"([0] has the member "modles")"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "models": [])")), HasSubstr("[0].models is"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "models": ["m", "M"])")), HasSubstr(R"([0].models[1] is "M")"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "models": ["m", "m"])")), HasSubstr("[0].models[1] is"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "admin": "yes")")), HasSubstr(R"([0].admin is "yes")"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "expires": "tomorrow")")),
              HasSubstr(R"([0].expires is "tomorrow"; it must be a time of RFC 3339)"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "expires": 5)")), HasSubstr("[0].expires is 5"));
  EXPECT_THAT(MessageOf(OneKey(R"(, "name": "again")")), HasSubstr("name"));
  for (const KeyLimit& limit : kKeyLimits) {
    for (const char* bad : {"0", "-1", "1.5", "1000000001", "1e30", "\"1\"", "null"}) {
      EXPECT_THAT(MessageOf(OneKey(absl::StrCat(", \"", limit.name, "\": ", bad))),
                  MatchesRegex(absl::StrCat(R"(\[0\]\.)", limit.name,
                                            " is .*; it must be a whole number from 1 to .*")));
    }
  }
  for (const auto& [from, to, message] : {std::tuple(R"("n")", R"("a b")", R"([0].name is "a b")"),
                                          std::tuple(R"("t")", R"("")", R"([0].tenant is "")"),
                                          std::tuple("ba78", "BA78", "[0].sha256 is a text of"),
                                          std::tuple("ba78", "ba7", "[0].sha256 is a text of"),
                                          std::tuple("ba78", "xa78", "[0].sha256 is a text of")}) {
    EXPECT_THAT(MessageOf(absl::StrReplaceAll(OneKey(), {{from, to}})), HasSubstr(message));
  }
}

TEST(ApiKeyTest, NamesAndHashesAreDistinct) {
  ApiKey a, b;
  a.name = b.name = a.tenant = b.tenant = "n";
  a.hash = HashOf("a");
  b.hash = HashOf("b");
  EXPECT_THAT(MessageOf(KeysToJson({a, b})), HasSubstr(R"([1].name is "n", which [0] has)"));
  b.name = "other";
  b.hash = a.hash;
  EXPECT_THAT(MessageOf(KeysToJson({a, b})), HasSubstr("[1].sha256 is"));
}

}  // namespace
}  // namespace rivulet
