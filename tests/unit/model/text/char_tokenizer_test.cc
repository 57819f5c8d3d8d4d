// SPDX-License-Identifier: Apache-2.0
#include "model/text/char_tokenizer.h"

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

TEST(CharTokenizerTest, IdIsTheIndexOfTheCodePoint) {
  const auto tokenizer = CreateCharTokenizer(kAlphabet);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->size(), 4);
  const auto ids = (*tokenizer)
                       ->Encode(
                           "\xF0\x9F\x98\x80"
                           "aa\xE2\x82\xAC\xC3\xA4",
                           {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(ids->ids, ElementsAre(3, 0, 0, 2, 1));
  EXPECT_EQ((*tokenizer)->TokenBytes(2), "\xE2\x82\xAC");
  EXPECT_THAT(ids->spans, ElementsAre(SourceSpan{0, 4}, SourceSpan{4, 5}, SourceSpan{5, 6},
                                      SourceSpan{6, 9}, SourceSpan{9, 11}));
}

TEST(CharTokenizerTest, DecodesIdsOutsideTheAlphabetToNothing) {
  const auto tokenizer = CreateCharTokenizer(kAlphabet);
  EXPECT_EQ((*tokenizer)->TokenBytes(-1), "");
  EXPECT_EQ((*tokenizer)->TokenBytes(4), "");
}

TEST(CharTokenizerTest, EncodesTheEmptyTextAsNoTokens) {
  EXPECT_TRUE((*CreateCharTokenizer("a"))->Encode("", {})->ids.empty());
}

TEST(CharTokenizerTest, NamesTheFirstCharacterOutsideTheAlphabetAndItsByte) {
  const auto ids = (*CreateCharTokenizer(kAlphabet))
                       ->Encode(
                           "\xE2\x82\xAC"
                           "a\xC3\xB6x",
                           {});
  EXPECT_TRUE(absl::IsInvalidArgument(ids.status()));
  EXPECT_TRUE(absl::StrContains(ids.status().message(), "U+00F6 at byte 4")) << ids.status();
  EXPECT_EQ(GetErrorDetail(ids.status()).reason, "TEXT_NOT_IN_ALPHABET");
}

TEST(CharTokenizerTest, RejectsAlphabetsThatAreEmptyOrRepeatACodePoint) {
  EXPECT_TRUE(absl::IsInvalidArgument(CreateCharTokenizer("").status()));
  const auto twice = CreateCharTokenizer("\xC3\xA4xy\xC3\xA4");
  EXPECT_TRUE(absl::StrContains(twice.status().message(), "U+00E4 is both token 0 and token 3"))
      << twice.status();
}

TEST(CharTokenizerTest, RejectsEveryKindOfBadUtf8AndNamesItsByte) {
  const std::string bad[] = {
      "\x80",              // continuation byte first
      "\xC3",              // cut short
      "\xC3(",             // no continuation
      "\xE2\x82(",         //
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
  const auto tokenizer = CreateCharTokenizer("ab");
  for (const std::string& bytes : bad) {
    EXPECT_TRUE(absl::IsInvalidArgument(CreateCharTokenizer("ab" + bytes).status()));
    const auto ids = (*tokenizer)->Encode("ab" + bytes, {});
    EXPECT_EQ(GetErrorDetail(ids.status()).reason, "INVALID_UTF8") << ids.status();
    EXPECT_TRUE(absl::StrContains(ids.status().message(), "byte 2")) << ids.status();
  }
}

TEST(CharTokenizerTest, AcceptsTheLastCodePointOfEachLength) {
  const std::string edges =
      std::string("\0\x7F", 2) +
      "\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF";
  const auto tokenizer = CreateCharTokenizer(edges);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode(edges, {})->ids, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace
}  // namespace rivulet
