// SPDX-License-Identifier: Apache-2.0
// Tokenizers, control tokens and templates of GGUF files.
#include "model/gguf_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"
#include "model/text/byte_alphabet.h"
#include "model/weights/gguf_header.h"
#include "tests/support/gguf_builder.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::GgufFile;
using ::testing::HasSubstr;
using testing::RawBool;
using testing::RawI32;
using testing::RawI32s;
using testing::RawString;
using testing::RawTexts;
using testing::RawU32;

absl::StatusOr<GgufText> Read(const GgufFile& file) {
  const std::string bytes = file.Bytes();
  const auto header =
      ParseGgufHeader(bytes, bytes.size(), [](const GgufMetadata&) { return absl::OkStatus(); });
  EXPECT_TRUE(header.ok() && header->has_value()) << header.status();
  return ReadGgufText((*header)->metadata);
}

std::vector<int32_t> Encode(const GgufFile& file, const std::string& text,
                            EncodeOptions options = {}) {
  const auto read = Read(file);
  EXPECT_TRUE(read.ok()) << read.status();
  const auto tokens = read->text.tokenizer->Encode(text, options);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return tokens->ids;
}

// Tokens as the converter writes those of World: 0 the end, 1 to 256 the bytes, then these.
GgufFile World() {
  std::vector<std::string> tokens = {"<s>"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(absl::StrFormat("\\x%02x", byte));
  tokens[1 + '\n'] = "\\n";
  tokens[1 + '\''] = "'";
  tokens[1 + '\\'] = "\\\\";
  for (const char* more : {"\\n\\n", "it's", "\\'\"", "\\xe6\\x97\\xa5", "[PAD261]"}) {
    tokens.emplace_back(more);
  }
  std::vector<int32_t> types(tokens.size(), 1);
  types.front() = 3;
  types.back() = 5;
  GgufFile file;
  file.Set("tokenizer.ggml.model", RawString("rwkv"));
  file.Set("tokenizer.ggml.tokens", RawTexts(tokens));
  file.Set("tokenizer.ggml.token_type", RawI32s(types));
  file.Set("tokenizer.ggml.bos_token_id", RawU32(0));
  file.Set("tokenizer.ggml.eos_token_id", RawU32(0));
  file.Set("tokenizer.ggml.eot_token_id", RawU32(257));
  file.Set("tokenizer.chat_template", RawString("rwkv-world"));
  return file;
}

// Byte-level BPE: the 256 bytes in their alphabet, "he", "Ġhe", two control tokens, one added.
GgufFile Gpt2() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(ByteAlphabet()[static_cast<size_t>(byte)]);
  }
  for (const char* more : {"he", "\xC4\xA0he", "<|end|>", "<|im_end|>", "    ", "[PAD261]"}) {
    tokens.emplace_back(more);
  }
  std::vector<int32_t> types(tokens.size(), 1);
  types[258] = types[259] = 3;
  types[260] = 4;
  types[261] = 5;
  GgufFile file;
  file.Set("tokenizer.ggml.model", RawString("gpt2"));
  file.Set("tokenizer.ggml.pre", RawString("gpt-2"));
  file.Set("tokenizer.ggml.tokens", RawTexts(tokens));
  file.Set("tokenizer.ggml.token_type", RawI32s(types));
  file.Set("tokenizer.ggml.merges", RawTexts({"h e", "\xC4\xA0 he"}));
  file.Set("tokenizer.ggml.eos_token_id", RawU32(258));
  file.Set("tokenizer.ggml.bos_token_id", RawU32(258));
  file.Set("tokenizer.ggml.eot_token_id", RawU32(259));
  return file;
}

TEST(GgufTextTest, TheWorldVocabularyIsRead) {
  const auto read = Read(World());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->text.tokenizer_kind, "world");
  EXPECT_EQ(read->text.tokenizer->size(), 261);
  EXPECT_THAT(Encode(World(), "a\n\nit's'\"\xE6\x97\xA5\\"),
              ElementsAre(1 + 'a', 257, 258, 259, 260, 1 + '\\'));
  EXPECT_EQ(read->text.tokenizer->TokenBytes(1 + 0xFF), "\xFF");
  // The end of a turn is an ordinary token, which stands within texts.
  EXPECT_THAT(read->ends, ElementsAre(0));
  ASSERT_EQ(read->text.special_tokens.size(), 2u);
  EXPECT_THAT(read->text.special_tokens[0].roles, ElementsAre("bos_token", "eos_token"));
  EXPECT_EQ(read->text.special_tokens[1].id, 257);
  EXPECT_EQ(read->text.special_tokens[1].content, "\n\n");
  EXPECT_THAT(read->text.special_tokens[1].roles, ElementsAre("eot_token"));
  EXPECT_THAT(read->text.chat_template, HasSubstr("'Assistant:'"));
  EXPECT_EQ(read->text.chat_template_name, "rwkv-world");
}

TEST(GgufTextTest, ByteLevelBpeIsRead) {
  const auto read = Read(Gpt2());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->text.tokenizer_kind, "gpt2 (gpt-2)");
  EXPECT_THAT(Encode(Gpt2(), "he he<|end|>a    !"), ElementsAre(256, 257, 258, 'a', 260, '!'));
  EXPECT_THAT(Encode(Gpt2(), "<|end|>", {.parse_special_tokens = false}).size(), 7u);
  EXPECT_THAT(read->ends, ElementsAre(258, 259));
  EXPECT_THAT(read->text.special_tokens[1].roles, ElementsAre("eot_token"));
  EXPECT_EQ(read->text.special_tokens[1].content, "<|im_end|>");
  EXPECT_TRUE(read->text.tokenizer->IsSpecial(258));
  EXPECT_FALSE(read->text.tokenizer->IsSpecial(260));
}

TEST(GgufTextTest, TextsAreCutAsThePreTokenizerSays) {
  // Three digits are one piece, each digit is one, or all are; only within a piece are merges.
  GgufFile file = Gpt2();
  std::vector<std::string> tokens = {"12", "123", "1234"};
  file.Set("tokenizer.ggml.merges", RawTexts({"1 2", "12 3", "123 4"}));
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(ByteAlphabet()[static_cast<size_t>(byte)]);
  }
  all.insert(all.end(), tokens.begin(), tokens.end());
  for (const char* more : {"<|end|>", "<|im_end|>"}) all.emplace_back(more);
  file.Set("tokenizer.ggml.tokens", RawTexts(all));
  std::vector<int32_t> types(all.size(), 1);
  types[259] = types[260] = 3;
  file.Set("tokenizer.ggml.token_type", RawI32s(types));
  file.Set("tokenizer.ggml.bos_token_id", RawU32(259));
  const auto encoded = [&](const char* pre) {
    file.Set("tokenizer.ggml.pre", RawString(pre));
    return Encode(file, "1234");
  };
  for (const char* pre : {"gpt-2", "mpt", "olmo", "granite-docling"}) {
    EXPECT_THAT(encoded(pre), ElementsAre(258));
  }
  for (const char* pre : {"qwen2", "qwen35", "deepseek-r1-qwen", "refact", "starcoder"}) {
    EXPECT_THAT(encoded(pre), ElementsAre('1', '2', '3', '4')) << pre;
  }
  for (const char* pre : {"dbrx", "smaug-bpe", "gpt-4o"}) {
    EXPECT_THAT(encoded(pre), ElementsAre(257, '4')) << pre;
  }
  EXPECT_THAT(encoded("default"), ElementsAre(257, '4'));
  // The bos is its default.
  for (const char* pre :
       {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"}) {
    EXPECT_THAT(encoded(pre), ElementsAre(259, 257, '4')) << pre;
  }
  EXPECT_THAT(encoded("tekken"), ElementsAre(259, '1', '2', '3', '4'));
  file.Set("tokenizer.ggml.add_bos_token", RawBool(0));
  file.Set("tokenizer.ggml.add_eos_token", RawBool(1));
  EXPECT_THAT(encoded("llama-bpe"), ElementsAre(257, '4', 258 /* eos_token_id of Gpt2() */));
  file.Erase("tokenizer.ggml.pre");
  file.Erase("tokenizer.ggml.add_eos_token");
  EXPECT_THAT(Encode(file, "1234"), ElementsAre(257, '4'));
}

// A piece that is a token is not merged, so that tokens show the pieces.
TEST(GgufTextTest, TheCaseOfLettersCutsWhereThePreTokenizerSaysSo) {
  GgufFile file = Gpt2();
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(ByteAlphabet()[static_cast<size_t>(byte)]);
  }
  for (const char* more : {"aB", "Ba", "a'", "'s", "a's", "<|end|>"}) all.emplace_back(more);
  file.Set("tokenizer.ggml.tokens", RawTexts(all));
  file.Set("tokenizer.ggml.token_type", RawI32s(std::vector<int32_t>(all.size(), 1)));
  file.Set("tokenizer.ggml.eot_token_id", RawU32(258));
  file.Set("tokenizer.ggml.merges", RawTexts({"a B", "B a", "a '", "' s", "a 's"}));
  file.Set("tokenizer.ggml.add_bos_token", RawBool(0));
  const auto encoded = [&](const char* pre, const char* text) {
    file.Set("tokenizer.ggml.pre", RawString(pre));
    return Encode(file, text);
  };
  EXPECT_THAT(encoded("lfm2", "aBa"), ElementsAre(256, 'a'));
  EXPECT_THAT(encoded("tekken", "aBa"), ElementsAre('a', 257));
  EXPECT_THAT(encoded("gpt-4o", "aBa"), ElementsAre('a', 257));
  EXPECT_THAT(encoded("gpt-4o", "Ba's"), ElementsAre(257, 259));
  EXPECT_THAT(encoded("gpt-4o", "a's"), ElementsAre(258, 's'));  // one piece
  EXPECT_THAT(encoded("tekken", "a's"), ElementsAre('a', 259));
  // In Qwen3.5 a mark belongs to the word.
  for (const char* pre : {"qwen2", "qwen35"}) {
    file.Set("tokenizer.ggml.merges", RawTexts({absl::StrCat("a ", ByteAlphabet()[0xCC])}));
    all[256] = absl::StrCat("a", ByteAlphabet()[0xCC]);
    file.Set("tokenizer.ggml.tokens", RawTexts(all));
    const size_t tokens = std::string(pre) == "qwen35" ? 2 : 3;
    EXPECT_EQ(encoded(pre, "a\xCC\x81").size(), tokens) << pre;
  }
}

TEST(GgufTextTest, WithoutATokenizerTheContentIsTokens) {
  for (const char* model : {"", "none", "no_vocab"}) {
    GgufFile file;
    if (*model != 0) file.Set("tokenizer.ggml.model", RawString(model));
    const auto read = Read(file);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->text.tokenizer, nullptr);
    EXPECT_THAT(read->text.why_none, HasSubstr("its file has none"));
  }
}

struct BadText {
  GgufFile (*good)();
  std::function<void(GgufFile*)> change;
  const char* reason;
  std::string said;
};

std::vector<BadText> BadTexts() {
  const auto set = [](const std::string& key, const std::string& value) {
    return [key, value](GgufFile* f) { f->Set(absl::StrCat("tokenizer.", key), value); };
  };
  const auto erase = [](const char* key) {
    return [key](GgufFile* f) { f->Erase(absl::StrCat("tokenizer.ggml.", key)); };
  };
  const char *invalid = "INVALID_TOKENIZER", *unsupported = "UNSUPPORTED_TOKENIZER";
  return {
      {World, set("ggml.model", RawString("llama")), unsupported,
       "tokenizer.ggml.model is \"llama\"; supported: rwkv, gpt2"},
      {World, set("ggml.model", RawU32(1)), invalid, "model is the number 1, not a text"},
      {World, set("ggml.model", RawString("\xFF")), invalid, "is not valid UTF-8"},
      {World, set("chat_template", RawString("\xFF")), invalid, "is not valid UTF-8"},
      {World, set("chat_template", RawTexts({"a"})), invalid, "is an array of 1 values, not"},
      {World, erase("tokens"), invalid, "tokenizer.ggml.tokens is missing"},
      {World, set("ggml.tokens", RawI32s({1})), invalid, "is no array of at most 2000000 texts"},
      {World, set("ggml.token_type", RawI32s({1})), invalid, "a number for each of the 262 tokens"},
      {World, set("ggml.token_type", RawTexts({"a"})), invalid, "a number for each of the 262"},
      {World, set("ggml.tokens", RawTexts(std::vector<std::string>(262, "a"))), invalid,
       "token 2 of the vocabulary has the token \"a\" a second time"},
      {World, set("ggml.tokens", RawTexts(std::vector<std::string>(262, "\\x0"))), invalid,
       "token 1 of the vocabulary is"},
      {World, set("ggml.tokens", RawTexts(std::vector<std::string>(262, "\xE6"))), invalid,
       "token 1 of the vocabulary is"},
      {World, set("ggml.tokens", RawTexts(std::vector<std::string>(262, ""))), invalid,
       "no token for the byte 0x00"},
      {World, set("ggml.eos_token_id", RawU32(262)), invalid, "number 262; allowed: 0 to 261"},
      {World, set("ggml.eos_token_id", RawI32(-1)), invalid, "number -1; allowed"},
      {World, set("ggml.mask_token_id", RawString("x")), invalid, "mask_token_id is the text"},
      {Gpt2, set("ggml.pre", RawString("viking")), unsupported,
       "tokenizer.ggml.pre is \"viking\"; supported: gpt-2, mpt, olmo, granite-docling, llama-bpe"},
      {Gpt2, erase("merges"), invalid, "tokenizer.ggml.merges is missing"},
      {Gpt2, set("ggml.merges", RawI32s({1})), invalid,
       "merges is no array of at most 2000000 texts"},
      {Gpt2, set("ggml.merges", RawTexts({"he"})), invalid, "not two tokens"},
      {Gpt2, set("ggml.merges", RawTexts({"x y"})), invalid, "\"xy\" is no token"},
      {Gpt2, set("ggml.merges", RawTexts({"h e", "h e"})), invalid, "a second time"},
      {Gpt2, set("ggml.tokens", RawTexts(std::vector<std::string>(262, "a"))), invalid,
       "has the token \"a\" twice, the second time as 1"},
      {Gpt2, set("ggml.tokens", RawTexts(std::vector<std::string>(262, "\xFF"))), invalid,
       "not valid UTF-8, 0"},
      {Gpt2, set("ggml.add_bos_token", RawU32(1)), invalid, "add_bos_token is the number 1"},
      {Gpt2,
       [](GgufFile* f) {
         f->Erase("tokenizer.ggml.bos_token_id");
         f->Set("tokenizer.ggml.add_bos_token", RawBool(1));
       },
       invalid, "is true, but the file has no bos_token_id"},
  };
}

TEST(GgufTextTest, NamesTheKeyThatIsWrong) {
  const std::vector<BadText> cases = BadTexts();
  for (size_t i = 0; i < cases.size(); ++i) {
    GgufFile file = cases[i].good();
    cases[i].change(&file);
    const absl::Status status = Read(file).status();
    SCOPED_TRACE(absl::StrCat("case ", i, ": ", status.ToString()));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(status).reason, cases[i].reason);
    EXPECT_THAT(std::string(status.message()), HasSubstr(cases[i].said));
    for (const char c : status.message()) EXPECT_GE(c, ' ');
  }
}

}  // namespace
}  // namespace rivulet
