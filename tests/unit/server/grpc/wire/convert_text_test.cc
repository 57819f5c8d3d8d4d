// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/convert_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "model/base/error.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::TempDir;

// Tokens a, b and two that begin and end a text; the last one is none of the model's 39.
constexpr char kTokenizer[] = R"({
  "version": "1.0", "added_tokens": [
    {"id": 2, "content": "<s>", "special": true}, {"id": 3, "content": "</s>", "special": true},
    {"id": 39, "content": "<pad>", "special": true}],
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]},
                       "</s>": {"id": "</s>", "ids": [3], "tokens": ["</s>"]}}},
  "decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})";

class ConvertTextTest : public ::testing::Test {
 protected:
  ConvertTextTest() {
    std::filesystem::copy(SourcePath("tests/conformance/family/gla"), dir_.path());
    EXPECT_TRUE(testing::WriteFile(dir_.File("tokenizer.json"), kTokenizer).ok());
    auto model = Model::Load(dir_.path());
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  GivenTokens Given(absl::string_view text, const TextOptions& options,
                    std::optional<int64_t> position) const {
    auto given = TokensOfText(text, *model_, "prompt.text", options, position);
    EXPECT_TRUE(given.ok()) << given.status();
    return given.ok() ? *std::move(given) : GivenTokens();
  }

  const TempDir dir_;
  std::shared_ptr<const Model> model_;
};

TEST_F(ConvertTextTest, TheTextsPlaceSaysWhetherItGetsStartTokens) {
  EXPECT_EQ(model_->config().content.type, ContentType::kText);
  EXPECT_THAT(Given("ab", {}, 0).ids, ElementsAre(2, 0, 1));
  EXPECT_EQ(Given("ab", {}, 0).start, 0u) << "it is certain";
  EXPECT_THAT(Given("ab", {}, 5).ids, ElementsAre(0, 1));
  const GivenTokens later = Given("ab", {}, std::nullopt);
  EXPECT_THAT(later.ids, ElementsAre(2, 0, 1));
  EXPECT_EQ(later.start, 1u);
  EXPECT_THAT(Given("", {}, 0).ids, ElementsAre(2));
  EXPECT_THAT(Given("", {}, std::nullopt).ids, IsEmpty());
}

TEST_F(ConvertTextTest, TheRequestMaySayOtherwise) {
  const GivenTokens always = Given("a", {.add_special_tokens = true}, 5);
  EXPECT_THAT(always.ids, ElementsAre(2, 0, 3));
  EXPECT_EQ(always.start, 0u);
  EXPECT_THAT(Given("", {.add_special_tokens = true}, 0).ids, ElementsAre(2, 3));
  EXPECT_THAT(Given("a", {.add_special_tokens = false}, std::nullopt).ids, ElementsAre(0));
  EXPECT_THAT(Given("a</s>", {.add_special_tokens = false}, 0).ids, ElementsAre(0, 3));
  const absl::Status as_text =
      TokensOfText("a</s>", *model_, "prompt.text", {.parse_special_tokens = false}, 0).status();
  EXPECT_EQ(GetErrorDetail(as_text).reason, "TEXT_NOT_IN_VOCABULARY") << as_text;
  EXPECT_EQ(GetErrorDetail(as_text).field, "prompt.text");
}

TEST_F(ConvertTextTest, ATokenThatTheModelLacksIsNamed) {
  const absl::Status status = TokensOfText("ab<pad>", *model_, "content.text", {}, 5).status();
  EXPECT_EQ(GetErrorDetail(status).reason, "TEXT_NOT_IN_VOCABULARY") << status;
  EXPECT_EQ(GetErrorDetail(status).field, "content.text");
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("at byte 2 is token 39 (\"<pad>\")"));
}

TEST_F(ConvertTextTest, OptionsWithoutATextAreRefused) {
  EXPECT_TRUE(CheckNoTextOptions({}, "prompt.text").ok());
  const absl::Status add = CheckNoTextOptions({.add_special_tokens = false}, "prompt.text");
  EXPECT_EQ(GetErrorDetail(add).reason, "NEEDS_TEXT");
  EXPECT_EQ(GetErrorDetail(add).field, "add_special_tokens");
  const absl::Status parse = CheckNoTextOptions({.parse_special_tokens = true}, "prompt.text");
  EXPECT_EQ(GetErrorDetail(parse).field, "parse_special_tokens");
  EXPECT_THAT(std::string(parse.message()), ::testing::HasSubstr("parse_special_tokens is true"));
}

TEST_F(ConvertTextTest, DetokenizeTakesTheIdsOfModelAndTokenizer) {
  v1::DetokenizeRequest request;
  for (const int32_t id : {2, 0, 38, 39, 1}) request.add_ids(id);
  v1::DetokenizeReply reply;
  ASSERT_TRUE(Detokenize(request, *model_, nullptr, &reply).ok());
  EXPECT_EQ(reply.text(), "<s>a<pad>b");
  request.set_skip_special_tokens(true);
  reply.Clear();
  ASSERT_TRUE(Detokenize(request, *model_, nullptr, &reply).ok());
  EXPECT_EQ(reply.raw_bytes(), "ab");
  EXPECT_THAT(reply.ends(), ::testing::ElementsAre(0, 1, 1, 1, 2));
  for (const int32_t bad : {-1, 40}) {
    request.set_ids(4, bad);
    const absl::Status status = Detokenize(request, *model_, nullptr, &reply);
    EXPECT_EQ(GetErrorDetail(status).reason, "TOKEN_OUT_OF_RANGE") << status;
    EXPECT_EQ(GetErrorDetail(status).field, "ids[4]");
  }
}

TEST_F(ConvertTextTest, ATextThatIsNotToBeConvertedEndsWithTheReasonAndNamesNoField) {
  const auto stopped = [] {
    return MakeError(absl::StatusCode::kCancelled, "over", {"CANCELLED", "", {}});
  };
  const absl::Status given = TokensOfText("ab", *model_, "prompt.text", {}, 0, stopped).status();
  EXPECT_TRUE(absl::IsCancelled(given)) << given;
  EXPECT_EQ(GetErrorDetail(given).field, "");
  v1::TokenizeRequest tokenize;
  tokenize.set_text("ab");
  v1::TokenizeReply tokens;
  EXPECT_TRUE(absl::IsCancelled(Tokenize(tokenize, *model_, stopped, &tokens)));
  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(0);
  v1::DetokenizeReply text;
  EXPECT_TRUE(absl::IsCancelled(Detokenize(detokenize, *model_, stopped, &text)));
}

TEST_F(ConvertTextTest, IdsOfWhichTheTextIsTooLongAreRefused) {
  v1::DetokenizeRequest request;
  request.mutable_ids()->Resize(static_cast<int>(kMaxDetokenizedBytes / 6), 2);  // "<s>"
  v1::DetokenizeReply reply;
  ASSERT_TRUE(Detokenize(request, *model_, nullptr, &reply).ok());
  request.add_ids(2);
  const absl::Status status = Detokenize(request, *model_, nullptr, &reply);
  EXPECT_EQ(GetErrorDetail(status).reason, "TEXT_TOO_LONG") << status;
  EXPECT_EQ(GetErrorDetail(status).field, "ids");
}

}  // namespace
}  // namespace rivulet
