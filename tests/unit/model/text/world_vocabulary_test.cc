// SPDX-License-Identifier: Apache-2.0
#include "model/text/world_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The 256 bytes as tokens 1 to 256, as the real file writes them, then `more`.
std::string File(absl::string_view more) {
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_plain = byte >= 0x20 && byte < 0x7F && byte != '\'' && byte != '\\';
    const std::string shown =
        is_plain ? std::string{static_cast<char>(byte)} : absl::StrFormat("\\x%02x", byte);
    absl::StrAppend(&file, byte + 1, byte < 0x80 ? " '" : " b'", shown, "' 1\n");
  }
  return absl::StrCat(file, more);
}

std::unique_ptr<TextTokenizer> ParseVocabulary(absl::string_view more) {
  auto tokenizer = ParseWorldVocabulary(File(more));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(WorldVocabularyTest, TakesTheLongestToken) {
  const auto tokenizer = ParseVocabulary("300 'ab' 2\n301 'abcd' 4\n302 'cde' 3\n");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->size(), 303);
  const auto tokens = tokenizer->Encode("abcabcde", {});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->ids, ElementsAre(300, 'c' + 1, 301, 'e' + 1));
  EXPECT_THAT(tokens->spans,
              ElementsAre(SourceSpan{0, 2}, SourceSpan{2, 3}, SourceSpan{3, 7}, SourceSpan{7, 8}));
  EXPECT_EQ(tokenizer->TokenBytes(301), "abcd");
  EXPECT_EQ(tokenizer->TokenBytes(0), "");
  EXPECT_EQ(tokenizer->TokenBytes(299), "");
  EXPECT_EQ(tokenizer->TokenBytes(303), "");
  EXPECT_TRUE(tokenizer->IsSpecial(0));
}

TEST(WorldVocabularyTest, ReadsPythonLiterals) {
  const auto tokenizer = ParseVocabulary(
      "300 \"it's\" 4\n301 '\\n\\t\\\\\\'' 4\r\n302 '\\xe9' 2\n303 b'\\xe9\\xe9' 2\n"
      "304 '\\u7ef4' 3\n305 '\\U0001f600' 4\n306 'a b' 3\n307 'ä' 2");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->TokenBytes(300), "it's");
  EXPECT_EQ(tokenizer->TokenBytes(301), "\n\t\\'");
  EXPECT_EQ(tokenizer->TokenBytes(302), "\xC3\xA9");
  EXPECT_EQ(tokenizer->TokenBytes(303), "\xE9\xE9");
  EXPECT_EQ(tokenizer->TokenBytes(304), "\xE7\xBB\xB4");
  EXPECT_EQ(tokenizer->TokenBytes(305), "\xF0\x9F\x98\x80");
  EXPECT_EQ(tokenizer->TokenBytes(306), "a b");
  EXPECT_EQ(tokenizer->TokenBytes(307), "\xC3\xA4");
}

TEST(WorldVocabularyTest, SpansAreWholeCodePoints) {
  const auto tokenizer = ParseVocabulary("300 b'a\\xe7' 2\n");
  ASSERT_NE(tokenizer, nullptr);
  const auto tokens = tokenizer->Encode("a\xE7\xBB\xB4", {});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->ids, ElementsAre(300, 0xBB + 1, 0xB4 + 1));
  EXPECT_THAT(tokens->spans, ElementsAre(SourceSpan{0, 4}, SourceSpan{1, 4}, SourceSpan{1, 4}));
}

TEST(WorldVocabularyTest, BadTextIsAnError) {
  const auto tokenizer = ParseVocabulary("");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(GetErrorDetail(tokenizer->Encode("a\xFF", {}).status()).reason, "INVALID_UTF8");
}

TEST(WorldVocabularyTest, HostileTextCostsAtMostTheLongestTokenAByte) {
  constexpr size_t kCount = 2000, kLongest = 256;
  const auto tokenizer =
      ParseVocabulary(absl::StrCat("300 '", std::string(kLongest - 1, 'a'), "b' ", kLongest, "\n"));
  ASSERT_NE(tokenizer, nullptr);
  TextBudget budget(kCount);
  const auto tokens = tokenizer->Encode(std::string(kCount, 'a'), {}, &budget);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->ids.size(), kCount);
  EXPECT_LE(budget.steps_used(), (kLongest + 1) * kCount);
  const auto longer = tokenizer->Encode(std::string(100 * kCount, 'a'), {});
  EXPECT_EQ(GetErrorDetail(longer.status()).reason, "TEXT_TOO_HARD") << longer.status();
}

TEST(WorldVocabularyTest, ErrorsNameTheLine) {
  for (const char* line : {"",
                           "300",
                           "300 'ab'",
                           "x 'ab' 2",
                           "300 'ab' x",
                           "0 'ab' 2",
                           "-1 'ab' 2",
                           "1048576 'ab' 2",
                           "99999999999 'ab' 2",
                           "300 'ab' 3",
                           "300 '' 0",
                           "300 ab 2",
                           "300 'ab\" 2",
                           "300 'a'b' 3",
                           "300 '\\q' 1",
                           "300 '\\x4' 1",
                           "300 b'\\u7ef4' 3",
                           "300 '\\ud800' 3",
                           "300 'ab\\' 2",
                           "300 b'é' 2",
                           "1 'ab' 2",
                           "300 'a' 1"}) {
    const auto parsed = ParseWorldVocabulary(File(absl::StrCat(line, "\n")));
    ASSERT_FALSE(parsed.ok()) << line;
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << line;
    EXPECT_EQ(GetErrorDetail(parsed.status()).field, "line 257") << parsed.status();
  }
  EXPECT_FALSE(
      ParseWorldVocabulary(File(absl::StrCat("300 '", std::string(257, 'a'), "' 257\n"))).ok());
  EXPECT_THAT(ParseWorldVocabulary("1 'a' 1\n").status().message(),
              HasSubstr("no token for the byte 0x00"));
}

}  // namespace
}  // namespace rivulet
