// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

// One character of each UTF-8 length: a, a-umlaut, euro sign, grinning face.
constexpr char kAlphabet[] = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80";

TEST(TokenizerTest, IdIsTheIndexOfTheCodePoint) {
  const auto tokenizer = Tokenizer::CreateChar(kAlphabet);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->size(), 4);
  const auto ids = tokenizer->Encode(
      "\xF0\x9F\x98\x80"
      "aa\xE2\x82\xAC\xC3\xA4");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(3, 0, 0, 2, 1));
  EXPECT_EQ(tokenizer->Decode(2), "\xE2\x82\xAC");
  EXPECT_EQ(tokenizer->Decode(*ids),
            "\xF0\x9F\x98\x80"
            "aa\xE2\x82\xAC\xC3\xA4");
}

TEST(TokenizerTest, DecodesIdsOutsideTheAlphabetToNothing) {
  const auto tokenizer = Tokenizer::CreateChar(kAlphabet);
  EXPECT_EQ(tokenizer->Decode(-1), "");
  EXPECT_EQ(tokenizer->Decode(4), "");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0, 9, 0}), "aa");
}

TEST(TokenizerTest, EncodesTheEmptyTextAsNoTokens) {
  EXPECT_TRUE(Tokenizer::CreateChar("a")->Encode("")->empty());
}

TEST(TokenizerTest, NamesTheFirstCharacterOutsideTheAlphabetAndItsByte) {
  const auto ids = Tokenizer::CreateChar(kAlphabet)->Encode(
      "\xE2\x82\xAC"
      "a\xC3\xB6x");
  EXPECT_TRUE(absl::IsInvalidArgument(ids.status()));
  EXPECT_TRUE(absl::StrContains(ids.status().message(), "U+00F6 at byte 4")) << ids.status();
  EXPECT_EQ(GetErrorDetail(ids.status()).reason, "TEXT_NOT_IN_ALPHABET");
}

TEST(TokenizerTest, RejectsAlphabetsThatAreEmptyOrRepeatACodePoint) {
  EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::CreateChar("").status()));
  const auto twice = Tokenizer::CreateChar("\xC3\xA4xy\xC3\xA4");
  EXPECT_TRUE(absl::StrContains(twice.status().message(), "U+00E4 is both token 0 and token 3"))
      << twice.status();
}

TEST(TokenizerTest, RejectsEveryKindOfBadUtf8AndNamesItsByte) {
  const std::string bad[] = {
      "\x80",              // continuation byte first
      "\xC3",              // cut short
      "\xC3(",             // no continuation
      "\xC0\x80",          // longer than needed
      "\xC1\xBF",          //
      "\xE0\x9F\xBF",      //
      "\xF0\x8F\xBF\xBF",  //
      "\xED\xA0\x80",      // surrogate
      "\xF4\x90\x80\x80",  // beyond U+10FFFF
      "\xF5\x80\x80\x80",  //
      "\xE2\x82",          //
      "\xF0\x9F\x98",      //
      "\xFF",              //
  };
  const auto tokenizer = Tokenizer::CreateChar("ab");
  for (const std::string& bytes : bad) {
    EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::CreateChar("ab" + bytes).status()));
    const auto ids = tokenizer->Encode("ab" + bytes);
    EXPECT_EQ(GetErrorDetail(ids.status()).reason, "INVALID_UTF8") << ids.status();
    EXPECT_TRUE(absl::StrContains(ids.status().message(), "byte 2")) << ids.status();
  }
}

TEST(TokenizerTest, AcceptsTheLastCodePointOfEachLength) {
  const std::string edges =
      std::string("\0\x7F", 2) +
      "\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF";
  const auto tokenizer = Tokenizer::CreateChar(edges);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*tokenizer->Encode(edges), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace
}  // namespace rivulet
