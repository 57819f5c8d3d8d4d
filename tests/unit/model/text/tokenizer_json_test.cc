// SPDX-License-Identifier: Apache-2.0
// ParseTokenizerJson: what is done, what is refused, and that the cost stays near linear.
// tests/e2e/cli/tokenizer_test.py compares the results with another implementation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"
#include "model/text/normalizer.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// a b c, merges "a b" before "b c", and two added tokens.
constexpr char kFile[] = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [
    {"id": 6, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 7, "content": "word", "single_word": true, "lstrip": false, "rstrip": true, "normalized": false, "special": false}],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "Ġ": 5}, "merges": ["a b", ["b", "c"]]}
})";

std::unique_ptr<TextTokenizer> Parse(absl::string_view json) {
  auto tokenizer = ParseTokenizerJson(json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// kFile with `from`, which stands there once, replaced.
std::string With(absl::string_view from, absl::string_view to) {
  std::string json = kFile;
  EXPECT_EQ(absl::StrReplaceAll({{from, to}}, &json), 1) << from;
  return json;
}

TEST(TokenizerJsonTest, TheMergeOfLowestRankComesFirstNotTheLeftmost) {
  const auto tokenizer = Parse(With(R"(["a b", ["b", "c"]])", R"([["b", "c"], "a b"])"));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("abc", {})->ids, ElementsAre(6, 0, 4));
}

TEST(TokenizerJsonTest, MergesByRankAndAddsTokensAtPositionZero) {
  const auto tokenizer = Parse(kFile);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->size(), 8);
  const auto tokens = tokenizer->Encode("abc bc", {});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->ids, ElementsAre(6, 3, 2, 5, 4));
  EXPECT_THAT(tokens->spans, ElementsAre(SourceSpan{0, 0}, SourceSpan{0, 2}, SourceSpan{2, 3},
                                         SourceSpan{3, 4}, SourceSpan{4, 6}));
  EXPECT_THAT(tokenizer->Encode("a", {.at_start = false})->ids, ElementsAre(0));
  EXPECT_THAT(tokenizer->Encode("a", {.add_special_tokens = false})->ids, ElementsAre(0));
}

TEST(TokenizerJsonTest, FindsAddedTokensInText) {
  const auto tokenizer = Parse(kFile);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("a<s>word  b", {.at_start = false})->ids, ElementsAre(0, 6, 7, 1));
  EXPECT_FALSE(
      tokenizer->Encode("awordb", {}).ok());  // no word of its own, and no w in the vocabulary
  const auto as_text = tokenizer->Encode("a<s>", {.parse_special_tokens = false});
  EXPECT_EQ(GetErrorDetail(as_text.status()).reason, "TEXT_NOT_IN_VOCABULARY");
  EXPECT_THAT(as_text.status().message(), HasSubstr("U+003C at byte 1"));
}

// As GP-MoLFormer's: text outside of the pattern is dropped, a piece outside of the vocabulary is
// the unknown token.
TEST(TokenizerJsonTest, WordLevelTakesWholePieces) {
  std::string json = R"json({"version": "1.0",
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "(Cl?|\\[[^\\]]+]|c)"}, "behavior": "Removed",
       "invert": true},
      {"type": "Split", "pattern": {"Regex": "(Cl?|\\[[^\\]]+]|c)"}, "behavior": "Isolated",
       "invert": false}]},
    "decoder": {"type": "Fuse"},
    "model": {"type": "WordLevel", "vocab": {"C": 0, "Cl": 1, "?": 2}, "unk_token": "?"}})json";
  const auto tokenizer = Parse(json);
  ASSERT_NE(tokenizer, nullptr);
  const auto tokens = tokenizer->Encode("x CCl.[K]c", {});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->ids, ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(tokens->spans,
              ElementsAre(SourceSpan{2, 3}, SourceSpan{3, 5}, SourceSpan{6, 9}, SourceSpan{9, 10}));
  EXPECT_EQ(tokenizer->TokenBytes(1), "Cl");
  absl::StrReplaceAll({{R"("unk_token": "?")", R"("unk_token": "!")"}}, &json);
  const auto without = Parse(json);
  ASSERT_NE(without, nullptr);
  EXPECT_THAT(std::string(without->Encode("Cc", {}).status().message()),
              HasSubstr("U+0063 at byte 1"));
  absl::StrReplaceAll({{R"("?": 2})", R"("?": 2}, "merges": [])"}}, &json);
  EXPECT_EQ(GetErrorDetail(ParseTokenizerJson(json).status()).field, "model.merges");
}

TEST(TokenizerJsonTest, DecodesToBytes) {
  const auto tokenizer = Parse(kFile);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->TokenBytes(3), "ab");
  EXPECT_EQ(tokenizer->TokenBytes(5), " ");
  EXPECT_EQ(tokenizer->TokenBytes(6), "<s>");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(8), "");
  EXPECT_TRUE(tokenizer->IsSpecial(6));
  EXPECT_FALSE(tokenizer->IsSpecial(7));
  EXPECT_FALSE(tokenizer->IsSpecial(8));
}

TEST(TokenizerJsonTest, ComposesBeforeItMerges) {
  const auto tokenizer = Parse(With(R"("Ġ": 5})", R"("Ġ": 5, "Ã": 8, "©": 9})"));
  ASSERT_NE(tokenizer, nullptr);
  const auto tokens = tokenizer->Encode(
      "e\xCC\x81"
      "a",
      {.at_start = false});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->ids, ElementsAre(8, 9, 0));
  // The composed character stands for the first that it is made of.
  EXPECT_THAT(tokens->spans, ElementsAre(SourceSpan{0, 1}, SourceSpan{0, 1}, SourceSpan{3, 4}));
}

// As in `tokenizers`, whose tables are those of Unicode 9.
TEST(TokenizerJsonTest, MarksOfLaterVersionsOfUnicodeAreStarters) {
  const auto composed = [](absl::string_view text) {
    TextBudget budget(text.size());
    return std::string(ComposeCanonically(AlignedText(text, 0), &budget)->text());
  };
  const char* const kept[] = {
      "x\u1DFA\u0316",     "x\u0301\u07FD",        "e\u1DFA\u0301",
      "x\U0001E4EF\u0316", "\U00011935\U00011930", "\U00011938",
  };
  for (const char* text : kept) EXPECT_EQ(composed(text), text);
  EXPECT_EQ(composed("x\u1DF5\u0316"), "x\u0316\u1DF5");  // Unicode 9 has both
  EXPECT_EQ(composed("e\u0316\u0301"), "\u00E9\u0316");
}

TEST(TokenizerJsonTest, BadTextIsAnErrorThatNamesTheByte) {
  const auto tokenizer = Parse(kFile);
  ASSERT_NE(tokenizer, nullptr);
  const auto status = tokenizer->Encode("ab\xC3", {}).status();
  EXPECT_EQ(GetErrorDetail(status).reason, "INVALID_UTF8");
  EXPECT_THAT(status.message(), HasSubstr("byte 2"));
}

// One word of a million characters, with a merge at every place, costs at most 3 entries each.
TEST(TokenizerJsonTest, CostIsNearLinear) {
  constexpr size_t kCount = size_t{1} << 20;
  const auto tokenizer = Parse(With(R"("Ġ": 5}, "merges": ["a b",)",
                                    R"("Ġ": 5, "aa": 8, "aaaa": 9}, "merges": ["a a", "aa aa",)"));
  ASSERT_NE(tokenizer, nullptr);
  TextBudget budget(kCount);
  const auto tokens = tokenizer->Encode(std::string(kCount, 'a'), {.at_start = false}, &budget);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->ids.size(), kCount / 4);
  EXPECT_GE(budget.steps_used(), kCount);
  EXPECT_LE(budget.steps_used(), 12 * kCount);  // copies, a node of a trie a byte, 3 entries
}

// Text that is almost an added token at every byte costs at most the token's length each.
TEST(TokenizerJsonTest, HostileTextCostsAtMostTheLongestAddedTokenAByte) {
  constexpr size_t kCount = 2000, kLongest = 256;
  const auto tokenizer =
      Parse(With(R"("content": "word")",
                 absl::StrCat(R"("content": ")", std::string(kLongest - 1, 'a'), "b\"")));
  ASSERT_NE(tokenizer, nullptr);
  TextBudget budget(kCount);
  const auto tokens = tokenizer->Encode(std::string(kCount, 'a'), {.at_start = false}, &budget);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->ids.size(), kCount);
  EXPECT_LE(budget.steps_used(), (kLongest + 12) * kCount);
}

struct Refused {
  const char* from;
  const char* to;
  const char* reason;
  const char* field;
};

TEST(TokenizerJsonTest, TruncationAndPaddingAreIgnoredAndSaid) {
  const std::string json = With(R"("truncation": null, "padding": null)",
                                R"("truncation": {"max_length": 2}, "padding": {"pad_id": 2})");
  std::vector<std::string> ignored;
  const auto tokenizer = ParseTokenizerJson(json, &ignored);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(ignored, ElementsAre("truncation", "padding"));
  EXPECT_EQ((*tokenizer)->Encode("abcabc", {})->ids, Parse(kFile)->Encode("abcabc", {})->ids);
  ignored.clear();
  ASSERT_TRUE(ParseTokenizerJson(kFile, &ignored).ok());
  EXPECT_TRUE(ignored.empty());
}

TEST(TokenizerJsonTest, RefusesByNameWhatItDoesNotDo) {
  constexpr char kInvalid[] = "INVALID_TOKENIZER", kUnsupported[] = "UNSUPPORTED_TOKENIZER";
  constexpr char kPre[] =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  const Refused cases[] = {
      {R"("version": "1.0")", R"("version": "2.0")", kUnsupported, "version"},
      {R"("padding": null)", R"("pading": null)", kUnsupported, "pading"},
      {R"("type": "NFC")", R"("type": "NFKC")", kUnsupported, "normalizer.type"},
      {R"({"type": "NFC"})", R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
       kUnsupported, "normalizer.normalizers[0].type"},
      {R"({"type": "NFC"})", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})",
       kUnsupported, "normalizer.pattern.Regex"},
      {kPre, R"({"type": "BertPreTokenizer"})", kUnsupported, "pre_tokenizer.type"},
      {kPre, R"({"type": "Sequence", "pretokenizers": 3})", kInvalid,
       "pre_tokenizer.pretokenizers"},
      {kPre, R"({"type": "Split", "pattern": {"Regex": "^"}, "behavior": "Isolated"})",
       kUnsupported, "pre_tokenizer.pattern.Regex"},
      {kPre, R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"})", kUnsupported,
       "pre_tokenizer.behavior"},
      {R"("TemplateProcessing")", R"("RobertaProcessing")", kUnsupported, "post_processor.type"},
      {R"("decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})",
       R"("decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "odd"})",
       kUnsupported, "decoder.prepend_scheme"},
      {R"("ids": [6])", R"("ids": {"0": 6})", kInvalid, "post_processor.special_tokens.<s>.ids"},
      {R"("ids": [6])", R"("ids": [-1])", kInvalid, "post_processor.special_tokens.<s>.ids"},
      {R"({"Sequence": {"id": "A", "type_id": 0}})", R"({"Odd": 1})", kUnsupported,
       "post_processor.single[1].Odd"},
      {R"("type": "BPE")", R"("type": "Unigram")", kUnsupported, "model.type"},
      {R"("dropout": null)", R"("dropout": 0.1)", kUnsupported, "model.dropout"},
      {R"("unk_token": null)", R"("unk_token": "<unk>")", kInvalid, "model.unk_token"},
      {R"("byte_fallback": false)", R"("byte_fallback": true)", kInvalid, "model.byte_fallback"},
      {R"("byte_fallback": false)", R"("byte_fallback": 1)", kInvalid, "model.byte_fallback"},
      {R"("c": 2)", R"("c": 1)", kInvalid, "model.vocab"},
      {R"("c": 2)", R"("c": -2)", kInvalid, "model.vocab"},
      {R"("c": 2)", R"("c": 1048576)", kInvalid, "model.vocab"},
      {R"("c": 2)", R"("c": 99999999999999999999)", kInvalid, "model.vocab"},
      {R"("c": 2)", R"("c": 1e400)", "INVALID_JSON", "model.vocab.c"},
      {R"("c": 2)", R"("a": 2)", "INVALID_JSON", "model.vocab.a"},
      {R"("c": 2)", R"("": 2)", kInvalid, "model.vocab"},
      {R"("a b")", R"("a  b")", kInvalid, "model.merges[0]"},
      {R"("a b")", R"("a z")", kInvalid, "model.merges[0]"},
      {R"("a b")", R"("a c")", kInvalid, "model.merges[0]"},
      {R"("a b")", R"("b c")", kInvalid, "model.merges[1]"},
      {R"("id": 7)", R"("id": 6)", kInvalid, "added_tokens[1].id"},
      {R"("id": 7)", R"("id": 2)", kInvalid, "added_tokens[1].id"},
      {R"("content": "word")", R"("content": "a")", kInvalid, "added_tokens[1].id"},
      {R"("content": "word")", R"("content": "<s>")", kInvalid, "added_tokens[1].content"},
      {R"("content": "word")", R"("content": "")", kInvalid, "added_tokens[1].content"},
  };
  for (const Refused& refused : cases) {
    const auto parsed = ParseTokenizerJson(With(refused.from, refused.to));
    ASSERT_FALSE(parsed.ok()) << refused.to;
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << refused.to;
    const ErrorDetail detail = GetErrorDetail(parsed.status());
    EXPECT_EQ(detail.reason, refused.reason) << parsed.status();
    EXPECT_EQ(detail.field, refused.field) << parsed.status();
  }
}

TEST(TokenizerJsonTest, HostileFilesEndWithAnError) {
  std::string nested = R"({"type": "Sequence", "pretokenizers": [)";
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += nested;
  EXPECT_FALSE(ParseTokenizerJson(With(R"("normalizer": {"type": "NFC"})",
                                       absl::StrCat(R"("normalizer": )", deep)))
                   .ok());
  std::string many;
  for (int i = 0; i < 70; ++i) absl::StrAppend(&many, i == 0 ? "" : ",", R"({"type": "Digits"})");
  const auto steps = ParseTokenizerJson(With(
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})",
      absl::StrCat(nested, many, "]}")));
  EXPECT_THAT(steps.status().message(), HasSubstr("70 steps"));
  EXPECT_FALSE(ParseTokenizerJson("").ok());
  EXPECT_FALSE(ParseTokenizerJson("[]").ok());
  EXPECT_FALSE(ParseTokenizerJson("{}").ok());
  EXPECT_FALSE(
      ParseTokenizerJson(With(R"("content": "word")",
                              absl::StrCat(R"("content": ")", std::string(300, 'x'), "\"")))
          .ok());
}

}  // namespace
}  // namespace rivulet
