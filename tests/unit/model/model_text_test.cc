// SPDX-License-Identifier: Apache-2.0
#include "model/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using testing::TempDir;
using testing::WriteFile;

constexpr char kTokenizer[] = R"({
  "version": "1.0", "added_tokens": [
    {"id": 2, "content": "<s>", "special": true}, {"id": 5, "content": "<end>", "special": true},
    {"id": 3, "content": "<name>", "special": false}],
  "decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})";

class ModelTextTest : public ::testing::Test {
 protected:
  void Write(const char* name, absl::string_view text) {
    ASSERT_TRUE(WriteFile(dir_.File(name), text).ok());
  }
  absl::StatusOr<ModelText> Load() const { return LoadModelText(dir_.path(), "DIR"); }
  // It fails, and says so of this place.
  void ExpectError(const char* reason, absl::string_view field, absl::string_view message) const {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(GetErrorDetail(status).reason, reason) << status;
    EXPECT_EQ(GetErrorDetail(status).field, field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(message)));
  }

  const TempDir dir_;
};

TEST_F(ModelTextTest, ADirectoryWithoutFilesHasNoText) {
  const auto text = Load();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->tokenizer, nullptr);
  EXPECT_EQ(text->tokenizer_kind, "");
  EXPECT_THAT(text->special_tokens, IsEmpty());
  EXPECT_EQ(text->chat_template, "");
}

TEST_F(ModelTextTest, TokenizerJsonComesBeforeTheWorldVocabulary) {
  std::string world;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppendFormat(&world, "%d b'\\x%02x' 1\n", byte + 1, byte);
  }
  Write("rwkv_vocab_v20230424.txt", world);
  auto text = Load();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->tokenizer_kind, "world");
  EXPECT_EQ(text->chat_template_name, "rwkv-world");
  EXPECT_THAT(text->chat_template, HasSubstr("'Assistant:'"));
  Write("chat_template.jinja", "{{ mine }}");
  EXPECT_EQ(Load()->chat_template, "{{ mine }}");
  EXPECT_EQ(Load()->chat_template_name, "");
  EXPECT_THAT(text->tokenizer->Encode("ab", {})->ids, ElementsAre('a' + 1, 'b' + 1));
  ASSERT_EQ(text->special_tokens.size(), 1u);
  EXPECT_THAT(text->special_tokens[0].id, Optional(0));
  Write("tokenizer.json", kTokenizer);
  text = Load();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->tokenizer_kind, "tokenizer.json");
  EXPECT_THAT(text->tokenizer->Encode("ab<end>", {})->ids, ElementsAre(0, 1, 5));
}

TEST_F(ModelTextTest, RolesComeFromTheConfigurationBeforeTheMap) {
  Write("tokenizer.json", kTokenizer);
  Write("tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": {"content": "<end>", "lstrip": false},
            "pad_token": null, "additional_special_tokens": ["<end>", {"content": "<name>"}]})");
  Write("special_tokens_map.json",
        R"({"bos_token": "a", "unk_token": "<unk>", "additional_special_tokens": ["b"]})");
  const auto text = Load();
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_EQ(text->special_tokens.size(), 4u);
  const auto expect = [&](size_t i, std::optional<int32_t> id, const char* content) {
    EXPECT_EQ(text->special_tokens[i].id, id) << i;
    EXPECT_EQ(text->special_tokens[i].content, content) << i;
  };
  expect(0, 2, "<s>");
  EXPECT_THAT(text->special_tokens[0].roles, ElementsAre("bos_token"));
  expect(1, 3, "<name>");
  EXPECT_THAT(text->special_tokens[1].roles, ElementsAre("additional_special_tokens"));
  expect(2, 5, "<end>");
  EXPECT_THAT(text->special_tokens[2].roles, ElementsAre("additional_special_tokens", "eos_token"));
  expect(3, std::nullopt, "<unk>");
}

TEST_F(ModelTextTest, TheTemplateIsThatOfItsFileElseOfTheConfiguration) {
  Write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(Load()->chat_template, "one");
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "no"},
                              {"name": "default", "template": "two"}]})");
  EXPECT_EQ(Load()->chat_template, "two");
  Write("chat_template.jinja", "{% three %}\n");
  EXPECT_EQ(Load()->chat_template, "{% three %}\n");
}

TEST_F(ModelTextTest, TheResponseTemplateIsThatOfTheConfiguration) {
  Write("tokenizer_config.json", R"({"response_template":
      {"version": 1, "z": [true, null, 1.50, 18446744073709551616], "a": {"b": "\\s\n\u00e9"}}})");
  EXPECT_EQ(Load()->response_template.json,
            R"({"version":1,"z":[true,null,1.50,18446744073709551616],"a":{"b":"\\s\né"}})");
  EXPECT_EQ(Load()->response_template.name, "");
  Write("tokenizer_config.json", R"({"response_template": null})");
  EXPECT_EQ(Load()->response_template.json, "");
}

TEST_F(ModelTextTest, BuiltInResponseTemplatesAreForTheirToolCalls) {
  const auto name = [](absl::string_view model_type, absl::string_view shown) {
    return BuiltInResponseTemplate(model_type, shown).value_or(ResponseTemplate()).name;
  };
  const std::string qwen = "{{ '<function=' }}", lfm2 = "<|tool_call_start|>";
  EXPECT_EQ(name("qwen3_5_text", qwen), "qwen3.5");
  EXPECT_EQ(name("qwen3_5_moe_text", qwen), "qwen3.5");
  EXPECT_EQ(name("qwen3_5_text", lfm2), "");
  EXPECT_EQ(name("lfm2", lfm2), "lfm2");
  EXPECT_EQ(name("lfm2_moe", lfm2), "lfm2");
  EXPECT_EQ(name("lfm2", qwen), "");
  EXPECT_EQ(name("rwkv7", qwen + lfm2), "");
  for (const char* const model_type : {"qwen3_5_text", "lfm2"}) {
    const auto parsed =
        ParseStrictJson(BuiltInResponseTemplate(model_type, qwen + lfm2)->json, JsonLimits());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->Find("start_anchor")->text, "<|im_start|>assistant\n");
    EXPECT_THAT(parsed->Find("fields")->keys, ElementsAre("thinking", "content", "tool_calls"));
  }
}

TEST_F(ModelTextTest, ErrorsNameFileAndField) {
  Write("chat_template.jinja", "a\xFF");
  ExpectError("INVALID_TOKENIZER", "", "DIR/chat_template.jinja: ");
  Write("special_tokens_map.json", "[]");
  ExpectError("INVALID_TOKENIZER", "", "DIR/special_tokens_map.json: ");
  Write("tokenizer_config.json", R"({"chat_template": 7})");
  ExpectError("INVALID_TOKENIZER", "chat_template", "DIR/tokenizer_config.json: chat_template");
  Write("tokenizer_config.json", R"({"response_template": []})");
  ExpectError("INVALID_TOKENIZER", "response_template",
              "DIR/tokenizer_config.json: response_template is ");
  Write("tokenizer_config.json", R"({"eos_token": {"id": 7}})");
  ExpectError("INVALID_TOKENIZER", "eos_token", "DIR/tokenizer_config.json: eos_token");
  Write("tokenizer_config.json", "{");
  ExpectError("INVALID_JSON", "", "DIR/tokenizer_config.json: ");
  Write("rwkv_vocab_v20230424.txt", "1 'a'\n");
  ExpectError("INVALID_TOKENIZER", "line 1", "DIR/rwkv_vocab_v20230424.txt: line 1");
  Write("tokenizer.json", R"({"version": "1.0", "model": {"type": "Unigram"}})");
  ExpectError("UNSUPPORTED_TOKENIZER", "model.type", "DIR/tokenizer.json: model.type");
}

}  // namespace
}  // namespace rivulet
