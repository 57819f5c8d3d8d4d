// SPDX-License-Identifier: Apache-2.0
#include "model/text/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

auto Into(std::vector<TextRange>* found) {
  return [found](TextRange match) {
    found->push_back(match);
    return absl::OkStatus();
  };
}

std::vector<TextRange> Find(absl::string_view pattern, absl::string_view text) {
  const auto compiled = Pattern::Compile(pattern, "field");
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  if (!compiled.ok()) return {};
  TextBudget budget(text.size());
  std::vector<TextRange> found;
  const absl::Status status = compiled->ForEachMatch(text, &budget, Into(&found));
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

TEST(PatternTest, WhiteSpaceIsUnicodesWithoutTheMongolianVowelSeparator) {
  EXPECT_THAT(Find(R"(\s)", "a\xC2\x85\xE3\x80\x80"),
              ElementsAre(TextRange{1, 3}, TextRange{3, 6}));
  EXPECT_THAT(Find(R"(\s)", "\xE1\xA0\x8E"), IsEmpty());  // U+180E
  EXPECT_THAT(Find(R"([^\S])", "\xE1\xA0\x8E "), ElementsAre(TextRange{3, 4}));
}

TEST(PatternTest, LooksAheadWithinTheTextAlone) {
  EXPECT_THAT(Find(R"(\s+(?!\S)|\s+)", "   a"), ElementsAre(TextRange{0, 2}, TextRange{2, 3}));
}

TEST(PatternTest, NamesAreScriptsNotTheirExtensions) {
  // U+3001 is used in Han text, and its script is Common.
  EXPECT_THAT(Find(R"(\p{Han})", "\xE3\x80\x81\xE7\xBB\xB4"), ElementsAre(TextRange{3, 6}));
}

// As in Oniguruma, which `tokenizers` uses.
TEST(PatternTest, FractionsAndSuperscriptsOfLatin1AreOfWords) {
  for (const char* text :
       {"\u00B2", "\u00B3", "\u00B9", "\u00BC", "\u00BD", "\u00BE", "a", "_", "5"}) {
    EXPECT_EQ(Find(R"(\w)", text).size(), 1u) << text;
    EXPECT_EQ(Find(R"(\W)", text).size(), 0u) << text;
  }
  for (const char* text : {"\u00BB", "\u00BF", "\u2074", "\u2153", "-"}) {
    EXPECT_EQ(Find(R"(\w)", text).size(), 0u) << text;
    EXPECT_EQ(Find(R"(\W)", text).size(), 1u) << text;
  }
}

TEST(PatternTest, EmptyMatchesCutOnceAndDoNotFollowAMatch) {
  EXPECT_THAT(Find(R"(b|(?=b))", "ab"), ElementsAre(TextRange{1, 2}));
  EXPECT_THAT(Find(R"((?=B))", "aBB"), ElementsAre(TextRange{1, 1}, TextRange{2, 2}));
}

TEST(PatternTest, DotTakesEverythingButALineFeed) {
  EXPECT_THAT(Find(".", "\r\n\xE2\x80\xA8"), ElementsAre(TextRange{0, 1}, TextRange{2, 5}));
}

TEST(PatternTest, RefusesByNameWhatMayMeanSomethingElse) {
  for (const char* pattern : {"^a",
                              "a$",
                              R"(\b)",
                              R"(\h)",
                              R"((a)\1)",
                              "[a[b]]",
                              "[a&&b]",
                              "a{,3}",
                              "a{2}+",
                              "(?<n>a)",
                              "(?>a)",
                              "(?i)a",
                              "(*FAIL)",
                              R"(\pL)",
                              R"(\p{L&})",
                              R"([\w])",
                              R"(\p{NoSuchScript})",
                              "(a",
                              "a\\",
                              "[",
                              "[]a]",
                              R"(\u12)",
                              "((((a{1,1000}){1,1000}){1,1000}){1,1000})"}) {
    const auto compiled = Pattern::Compile(pattern, "pre_tokenizer.pattern.Regex");
    ASSERT_FALSE(compiled.ok()) << pattern;
    EXPECT_TRUE(absl::IsInvalidArgument(compiled.status())) << pattern;
    const ErrorDetail detail = GetErrorDetail(compiled.status());
    EXPECT_EQ(detail.reason, "UNSUPPORTED_TOKENIZER") << pattern;
    EXPECT_EQ(detail.field, "pre_tokenizer.pattern.Regex") << pattern;
  }
  const auto nested = Pattern::Compile(std::string(400, '(') + std::string(400, ')'), "f");
  EXPECT_THAT(nested.status().message(), HasSubstr("PCRE2 refuses"));
  EXPECT_FALSE(Pattern::Compile(std::string(20000, 'a'), "f").ok());
}

TEST(PatternTest, GivesUpOnAPatternThatTriesTooMuch) {
  const auto bomb = Pattern::Compile(R"((a+)+\p{Nd})", "pre_tokenizer.pattern.Regex");
  ASSERT_TRUE(bomb.ok()) << bomb.status();
  TextBudget budget(64);
  std::vector<TextRange> found;
  const absl::Status status = bomb->ForEachMatch(std::string(64, 'a'), &budget, Into(&found));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(GetErrorDetail(status).reason, "TEXT_TOO_HARD");
}

TEST(PatternTest, ALongRunIsNotTooMuch) {
  const std::string run(size_t{1} << 20, ' ');
  EXPECT_THAT(Find(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", run + "a"),
              ElementsAre(TextRange{0, run.size() - 1}, TextRange{run.size() - 1, run.size()}));
}

// PCRE2 counts this as one try a place, each of which runs over the rest of the text.
TEST(PatternTest, CountsTheCharactersThatAnItemRunsOver) {
  constexpr size_t kBytes = 50'000;
  for (const char* pattern : {"a*b|c", "a{100}b|c", "(?:a|a)*b|c", "(?=a*b)a|c", "a+?b|c"}) {
    const auto compiled = Pattern::Compile(pattern, "field");
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    TextBudget budget(kBytes);
    std::vector<TextRange> found;
    const absl::Status status =
        compiled->ForEachMatch(std::string(kBytes, 'a'), &budget, Into(&found));
    EXPECT_EQ(GetErrorDetail(status).reason, "TEXT_TOO_HARD") << pattern << ": " << status;
    EXPECT_LE(budget.steps_used(), 2 * (kTextSteps + kTextStepsPerByte * kBytes)) << pattern;
  }
}

// A search looks at 64 bytes first, and then at more.
TEST(PatternTest, FindsTheSameWhereverAMatchLies) {
  constexpr char kWords[] = R"('s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  std::string text;
  std::vector<TextRange> words;
  for (size_t length = 1; length <= 300; ++length) {
    const size_t begin = text.size();
    text += ' ';
    for (size_t i = 0; i < length; ++i) text += length % 2 == 0 ? "a" : "\u7EF4";
    words.push_back({begin, text.size()});
  }
  EXPECT_EQ(Find(kWords, text), words);
  for (size_t before = 0; before < 300; ++before) {
    const std::string a(before, 'a');
    EXPECT_THAT(Find("(?=B)", a + "B"), ElementsAre(TextRange{before, before})) << before;
    EXPECT_THAT(Find("[0-9]+", a + "17a"), ElementsAre(TextRange{before, before + 2})) << before;
    EXPECT_THAT(Find("(?<=aaa)B", a + "aaaB"), ElementsAre(TextRange{before + 3, before + 4}));
    EXPECT_THAT(Find("(?<!a)B", "B" + a + "aB"), ElementsAre(TextRange{0, 1})) << before;
    EXPECT_THAT(Find(" +(?! )|[^ ]", std::string(before + 1, ' ')),
                ElementsAre(TextRange{0, before + 1}));
  }
}

TEST(PatternTest, LiteralsAreNoPatterns) {
  TextBudget budget(5);
  std::vector<TextRange> found;
  ASSERT_TRUE(Pattern::Literal(".").ForEachMatch("a.b..", &budget, Into(&found)).ok());
  EXPECT_THAT(found, ElementsAre(TextRange{1, 2}, TextRange{3, 4}, TextRange{4, 5}));
}

}  // namespace
}  // namespace rivulet
