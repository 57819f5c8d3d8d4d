// SPDX-License-Identifier: Apache-2.0
// What one text may cost, and that a hostile tokenizer's file cannot make it cost more.
#include "model/text/text_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

// Letters a to c; `normalizer` and `pre_tokenizer` as JSON.
absl::StatusOr<std::unique_ptr<TextTokenizer>> Parse(
    absl::string_view normalizer, absl::string_view pre_tokenizer,
    absl::string_view decoder = R"({"type": "Fuse"})") {
  return ParseTokenizerJson(absl::StrFormat(
      R"({"version": "1.0", "normalizer": %s, "pre_tokenizer": %s, "decoder": %s,
          "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}})",
      normalizer, pre_tokenizer, decoder));
}

// Each of them doubles the text.
std::string Doublings(absl::string_view list, int count) {
  std::string steps;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&steps, i == 0 ? "" : ",",
                    R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})");
  }
  return absl::StrFormat(R"({"type": "Sequence", "%s": [%s]})", list, steps);
}

TEST(TextBudgetTest, EndsTheWorkBehindItsSteps) {
  TextBudget budget(10, 100, nullptr);
  EXPECT_TRUE(budget.Step(4));
  EXPECT_TRUE(budget.Step(6));
  EXPECT_EQ(budget.steps_left(), 0u);
  EXPECT_TRUE(budget.status().ok());
  EXPECT_FALSE(budget.Step(1));
  EXPECT_FALSE(budget.Step(0));
  EXPECT_FALSE(budget.Take(0));
  EXPECT_EQ(GetErrorDetail(budget.status()).reason, "TEXT_TOO_HARD");
  EXPECT_THAT(budget.status().message(), HasSubstr("more than 10 steps"));
}

TEST(TextBudgetTest, BytesComeBack) {
  TextBudget budget(10, 100, nullptr);
  {
    BudgetedBytes bytes(&budget);
    EXPECT_TRUE(bytes.Add(60));
    EXPECT_TRUE(bytes.Add(40));
    EXPECT_EQ(budget.bytes_left(), 0u);
  }
  EXPECT_TRUE(budget.Take(100));
  EXPECT_FALSE(budget.Take(1));
  EXPECT_FALSE(budget.Step(1));
  EXPECT_THAT(budget.status().message(), HasSubstr("more than 100 bytes of memory"));
}

TEST(TextBudgetTest, AsksBeforeTheFirstStepAndThenAgain) {
  int asked = 0;
  TextBudget budget(uint64_t{1} << 40, 100, [&asked] {
    return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("the client has gone");
  });
  EXPECT_TRUE(budget.Step(1));
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(budget.Step(TextBudget::kStepsPerQuestion));
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(budget.Step(TextBudget::kStepsPerQuestion));
  EXPECT_TRUE(absl::IsCancelled(budget.status()));
  EXPECT_FALSE(budget.Step(1));
}

TEST(TextBudgetTest, ATextEndsWhereItIsStopped) {
  const auto tokenizer = Parse("null", R"({"type": "Digits", "individual_digits": true})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text(1 << 20, 'a');
  int asked = 0;
  TextBudget budget(text.size(), [&asked] {
    return ++asked < 5 ? absl::OkStatus() : absl::DeadlineExceededError("too late");
  });
  const auto tokens = (*tokenizer)->Encode(text, {}, &budget);
  EXPECT_TRUE(absl::IsDeadlineExceeded(tokens.status())) << tokens.status();
  EXPECT_EQ(asked, 5);
}

// One letter becomes 2^63.
TEST(TextBudgetTest, ReplacementsThatMultiplyATextEndWithATypedError) {
  const auto tokenizer = Parse(Doublings("normalizers", 63), "null");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto tokens = (*tokenizer)->Encode("a", {});
  ASSERT_FALSE(tokens.ok());
  EXPECT_EQ(GetErrorDetail(tokens.status()).reason, "TEXT_TOO_HARD") << tokens.status();
  EXPECT_TRUE((*tokenizer)->Encode("bcbc", {}).ok());
}

// The same where added tokens are normalized and where tokens are decoded: when the file is read.
TEST(TextBudgetTest, AFileThatMultipliesItsOwnTokensIsRefused) {
  const auto decoder = Parse("null", "null", Doublings("decoders", 63));
  EXPECT_EQ(GetErrorDetail(decoder.status()).reason, "INVALID_TOKENIZER") << decoder.status();
  EXPECT_EQ(GetErrorDetail(decoder.status()).field, "decoder") << decoder.status();
  const auto added = ParseTokenizerJson(absl::StrFormat(
      R"({"version": "1.0", "normalizer": %s, "decoder": {"type": "Fuse"},
          "added_tokens": [{"id": 5, "content": "a-b", "normalized": true}],
          "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})",
      Doublings("normalizers", 63)));
  EXPECT_EQ(GetErrorDetail(added.status()).reason, "INVALID_TOKENIZER") << added.status();
  EXPECT_EQ(GetErrorDetail(added.status()).field, "added_tokens[0].content") << added.status();
}

}  // namespace
}  // namespace rivulet
