// SPDX-License-Identifier: Apache-2.0
// Reads the text settings in the directory of a model of the family: its tokenizer, its control
// tokens and its templates for conversations.
// Tested by: tests/unit/model/model_text_test.cc
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/text/response_templates.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

// A control token of the vocabulary, or a text to which the directory gives a role.
struct SpecialToken {
  std::optional<int32_t> id;  // absent: the text is not one token of the vocabulary
  std::string content;        // its text; "" if the vocabulary has none
  // Its roles as tokenizer_config.json names them ("bos_token"), sorted; often empty.
  std::vector<std::string> roles;
};

struct ModelText {
  std::unique_ptr<const TextTokenizer> tokenizer;  // null: the content is token ids
  std::string why_none;  // how to add a tokenizer; "" if there is one or none would work
  // Members of tokenizer.json that are not applied to prompts: "truncation", "padding".
  std::vector<std::string> ignored;
  std::string tokenizer_kind;  // "char", "tokenizer.json" or "world"; "" without a tokenizer
  std::vector<SpecialToken> special_tokens;  // tokens with an id first, by id
  std::string chat_template;                 // unrendered text of the file; often empty
  std::string chat_template_name;            // name of a built-in template: "rwkv-world"
  ResponseTemplate response_template;
};

// Reads tokenizer.json, else the RWKV World vocabulary rwkv_vocab_v20230424.txt; then
// tokenizer_config.json and special_tokens_map.json (roles; where both give one, the former counts)
// and chat_template.jinja (else `chat_template` of tokenizer_config.json; of a list, the entry
// named "default"), and `response_template` of tokenizer_config.json, an object. Any of the files
// may be missing. `shown`: the directory, for messages. Errors
// name file and field: the errors of ParseTokenizerJson and ParseWorldVocabulary; INVALID_ARGUMENT
// (INVALID_JSON, INVALID_TOKENIZER, BAD_FILE). A World vocabulary without a template gets the
// built-in one.
absl::StatusOr<ModelText> LoadModelText(const std::string& directory, const std::string& shown);

// Sets the template for the World vocabulary if there is none, or if there is only the name
// "rwkv-world": a GGUF file may have no more than that name.
void UseBuiltInTemplate(ModelText* text);

}  // namespace rivulet
