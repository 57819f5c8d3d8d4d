// SPDX-License-Identifier: Apache-2.0
// Any bytes as a text, for byte-level BPE with two ways to cut and for a World vocabulary: one
// typed error, or tokens that spell the text again, with spans within it, at a cost near linear.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "model/base/utf8.h"
#include "model/text/byte_alphabet.h"
#include "model/text/text_decoder.h"
#include "model/text/text_tokenizer.h"
#include "model/text/world_vocabulary.h"
#include "tests/fuzz/promise.h"

namespace rivulet {
namespace {

using fuzz::Promise;
using Tokenizers = std::vector<std::unique_ptr<TextTokenizer>>;

constexpr char kByteLevel[] =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true})";
constexpr char kSplit[] = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
     "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})";

// Every byte is a token, and some pairs of bytes are.
std::string Json(absl::string_view pre_tokenizer) {
  std::string vocabulary, merges;
  int size = 0;
  const auto add = [&](const std::string& piece) {
    std::string quoted = piece == "\"" || piece == "\\" ? "\\" + piece : piece;
    absl::StrAppend(&vocabulary, size == 0 ? "" : ",", "\"", quoted, "\":", size);
    ++size;
  };
  for (int byte = 0; byte < 256; ++byte) add(ByteAlphabet()[static_cast<size_t>(byte)]);
  for (const char* pair : {"t h", "th e", "a a", "aa aa", "i n", "Ġ the", "Ã ©"}) {
    absl::StrAppend(&merges, merges.empty() ? "" : ",", "\"", pair, "\"");
    const std::string both = pair;
    const size_t space = both.find(' ');
    add(both.substr(0, space) + both.substr(space + 1));
  }
  return absl::StrFormat(
      R"({"version": "1.0", "added_tokens": [
           {"id": 300, "content": "<s>", "special": true},
           {"id": 301, "content": "<name>", "special": false}],
          "pre_tokenizer": %s, "decoder": %s,
          "model": {"type": "BPE", "vocab": {%s}, "merges": [%s]}})",
      pre_tokenizer, kByteLevel, vocabulary, merges);
}

std::string World() {
  std::string lines;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppendFormat(&lines, "%d b'\\x%02x' 1\n", byte + 1, byte);
  }
  return lines + "300 'the' 3\n301 'aaaa' 4\n302 b'\\xa9a' 2\n";
}

Tokenizers Make() {
  Tokenizers all;
  const auto add = [&all](absl::StatusOr<std::unique_ptr<TextTokenizer>> made) {
    Promise(made.ok(), "the vocabularies are valid");
    all.push_back(*std::move(made));
  };
  add(ParseTokenizerJson(Json(kByteLevel)));
  add(ParseTokenizerJson(Json(kSplit)));
  add(ParseWorldVocabulary(World()));
  return all;
}

void CheckTokens(const TextTokenizer& tokenizer, absl::string_view text, uint64_t steps,
                 const TextTokens& tokens) {
  Promise(tokens.ids.size() == tokens.spans.size(), "a span for each token");
  Promise(steps <= 64 * (text.size() + 16), "the cost is near linear");
  TextDecoder decoder(&tokenizer, {});
  std::string spelled, decoded;
  uint32_t begin = 0;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    const SourceSpan span = tokens.spans[i];
    Promise(begin <= span.begin && span.begin < span.end && span.end <= text.size(),
            "spans are in order and within the text");
    begin = span.begin;
    absl::StrAppend(&spelled, tokenizer.TokenBytes(tokens.ids[i]));
    decoder.Add(tokens.ids[i], &decoded);
    Promise(IsUtf8(decoded), "text is UTF-8 after every token");
  }
  decoder.Finish(&decoded);
  Promise(spelled == text && decoded == text, "the tokens spell the text");
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rivulet;
  static const Tokenizers* const kTokenizers = new Tokenizers(Make());
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& tokenizer : *kTokenizers) {
    for (const bool parse : {true, false}) {
      TextBudget budget(text.size());
      const auto tokens = tokenizer->Encode(text, {.parse_special_tokens = parse}, &budget);
      if (tokens.ok()) {
        Promise(IsUtf8(text), "a text is UTF-8");
        CheckTokens(*tokenizer, text, budget.steps_used(), *tokens);
        continue;
      }
      Promise(absl::IsInvalidArgument(tokens.status()), "errors are INVALID_ARGUMENT");
      Promise(GetErrorDetail(tokens.status()).field == "text", "an error names the field");
      Promise(!IsUtf8(text), "a text of any UTF-8 has tokens");
      fuzz::PromiseOneLine(tokens.status());
    }
  }
  return 0;
}
