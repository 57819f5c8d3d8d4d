// SPDX-License-Identifier: Apache-2.0
#include "model/text/text_decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "model/base/utf8.h"
#include "tests/support/piece_tokenizer.h"

namespace rivulet {
namespace {

// What each token completes, and at the end what Finish adds.
std::vector<std::string> Texts(std::vector<std::string> pieces, const DecodeOptions& options = {}) {
  const PieceTokenizer tokenizer(std::move(pieces));
  TextDecoder decoder(&tokenizer, options);
  std::vector<std::string> texts(static_cast<size_t>(tokenizer.size()) + 1);
  for (int id = 0; id < tokenizer.size(); ++id) {
    decoder.Add(id, &texts[static_cast<size_t>(id)]);
  }
  decoder.Finish(&texts.back());
  return texts;
}

using Strings = std::vector<std::string>;

TEST(TextDecoderTest, HoldsBackWhatIsIncomplete) {
  EXPECT_EQ(Texts({"a\xF0", "\x9F", "\x98",
                   "\x80"
                   "b"}),
            (Strings{"a", "", "",
                     "\U0001F600"
                     "b",
                     ""}));
}

TEST(TextDecoderTest, BytesLeftAtTheEndAreOneReplacement) {
  EXPECT_EQ(Texts({"a\xF0\x9F", "\x98"}), (Strings{"a", "", "\uFFFD"}));
}

TEST(TextDecoderTest, AReplacementForEachLongestBeginning) {
  // Table 3-8 of the Unicode Standard, and a beginning that the next token breaks.
  EXPECT_EQ(Texts({"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"}),
            (Strings{"a\uFFFD\uFFFD\uFFFD"
                     "b\uFFFD"
                     "c\uFFFD\uFFFD"
                     "d",
                     ""}));
  EXPECT_EQ(Texts({"\xC0\xAF\xE0\x80\xBF\xED\xA0\x80\xF4\x90\x80\xF5"})[0].size(), 12u * 3);
  EXPECT_EQ(Texts({"\xE7\xBB", "a"}), (Strings{"",
                                               "\uFFFD"
                                               "a",
                                               ""}));
  EXPECT_EQ(Texts({"\xE7", "\xE7\xBB\xB4"}), (Strings{"", "\uFFFD\u7EF4", ""}));
}

TEST(TextDecoderTest, EveryCutOfATextGivesTheText) {
  const std::string text = "a\u00E9\u7EF4\U0001F600\uFFFDz";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      std::string all;
      for (const std::string& part : Texts(
               {text.substr(0, first), text.substr(first, second - first), text.substr(second)})) {
        EXPECT_TRUE(IsUtf8(part));
        all += part;
      }
      EXPECT_EQ(all, text);
    }
  }
}

TEST(TextDecoderTest, DropsTheVocabularysSpaceAtPositionZeroAlone) {
  EXPECT_EQ(Texts({" a", " b"}, {.at_start = true}), (Strings{"a", " b", ""}));
  EXPECT_EQ(Texts({"", "  a"}, {.at_start = true}), (Strings{"", " a", ""}));
  EXPECT_EQ(Texts({"a", " b"}, {.at_start = true}), (Strings{"a", " b", ""}));
  EXPECT_EQ(Texts({" a", " b"}), (Strings{" a", " b", ""}));
}

TEST(TextDecoderTest, SkipsControlTokensWhereAskedTo) {
  EXPECT_EQ(Texts({"a", "<s>"}), (Strings{"a", "<s>", ""}));
  EXPECT_EQ(Texts({"a", "<s>"}, {.skip_special_tokens = true}), (Strings{"a", "", ""}));
}

TEST(TextDecoderTest, IdsBeyondTheVocabularyHaveNoText) {
  const PieceTokenizer tokenizer({"\xE7"});
  TextDecoder decoder(&tokenizer, {});
  std::string text;
  decoder.Add(0, &text);
  decoder.Add(7, &text);
  decoder.Add(-1, &text);
  EXPECT_EQ(text, "");
  decoder.Finish(&text);
  EXPECT_EQ(text, "\uFFFD");
}

}  // namespace
}  // namespace rivulet
