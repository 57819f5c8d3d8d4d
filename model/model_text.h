// SPDX-License-Identifier: Apache-2.0
// What the directory of a model of the family says about text: its tokenizer, its control tokens
// and its template for conversations.
// Tested by: tests/unit/model/model_text_test.cc
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

// A control token of the vocabulary, or a text that the directory gives a role.
struct SpecialToken {
  std::optional<int32_t> id;  // absent: the text is not one token of the vocabulary
  std::string content;        // its text; "" where the vocabulary gives it none
  // What it is for, in the words of tokenizer_config.json ("bos_token"), sorted; often empty.
  std::vector<std::string> roles;
};

struct ModelText {
  std::unique_ptr<const TextTokenizer> tokenizer;  // null: the content is token ids
  std::string why_none;  // what to put there for a tokenizer; "" with one, or if nothing would do
  // Members of tokenizer.json that a prompt does not get: "truncation", "padding".
  std::vector<std::string> ignored;
  std::string tokenizer_kind;  // "char", "tokenizer.json" or "world"; "" without a tokenizer
  std::vector<SpecialToken> special_tokens;  // those with an id first, in its order
  std::string chat_template;                 // as the file has it, not rendered; often empty
  std::string chat_template_name;            // of a built-in one: "rwkv-world"
};

// Reads tokenizer.json, else the RWKV World vocabulary rwkv_vocab_v20230424.txt; then
// tokenizer_config.json and special_tokens_map.json (roles; where both give one, the former counts)
// and chat_template.jinja (else `chat_template` of tokenizer_config.json; of a list, the entry
// named "default"). Any of the files may be missing. `shown`: the directory, for messages. Errors
// name file and field: those of ParseTokenizerJson and ParseWorldVocabulary; INVALID_ARGUMENT
// (INVALID_JSON, INVALID_TOKENIZER, BAD_FILE). A World vocabulary without a template gets the
// built-in one.
absl::StatusOr<ModelText> LoadModelText(const std::string& directory, const std::string& shown);

// Sets the template of texts with the World vocabulary if there is none, or only the name
// "rwkv-world", which is all that a GGUF file may have.
void UseBuiltInTemplate(ModelText* text);

}  // namespace rivulet
