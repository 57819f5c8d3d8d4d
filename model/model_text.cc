// SPDX-License-Identifier: Apache-2.0
#include "model/model_text.h"

#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"
#include "model/text/tokenizer_rules.h"
#include "model/text/world_vocabulary.h"

namespace rivulet {
namespace {

constexpr char kTokenizerJson[] = "tokenizer.json";
constexpr char kWorldVocabulary[] = "rwkv_vocab_v20230424.txt";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kSpecialTokensMap[] = "special_tokens_map.json";
constexpr char kChatTemplate[] = "chat_template.jinja";
constexpr char kWorldName[] = "rwkv-world";
// Every turn ends with "\n\n".
constexpr char kWorldTemplate[] =
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('roles are system, user and assistant') -}}"
    "{%- endif -%}"
    "{{- message['role']|capitalize + ': ' + message['content']|trim + '\\n\\n' -}}"
    "{%- endfor -%}"
    "{%- if (add_generation_prompt is not defined or add_generation_prompt)"
    " and messages[-1]['role'] != 'assistant' -%}"
    "{{- 'Assistant:' -}}"
    "{%- endif -%}";
constexpr size_t kMaxSettingsBytes = size_t{4} << 20;
// tokenizer_config.json lists every added token with half a dozen members.
constexpr JsonLimits kLimits = {.max_depth = 16, .max_values = 200'000};

// Texts with their roles.
using Roles = std::map<std::string, std::set<std::string>>;

// The bytes of an optional file.
absl::StatusOr<std::optional<std::string>> ReadIfThere(const std::string& path, size_t max_bytes) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, max_bytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  return *std::move(text);
}

// Parses the file NAME, if it is there, with `parse`.
template <typename Parse>
absl::Status ReadWith(const std::string& directory, const std::string& shown, const char* name,
                      size_t max_bytes, Parse parse) {
  const std::string where = absl::StrCat(shown, "/", name);
  const auto text = ReadIfThere(absl::StrCat(directory, "/", name), max_bytes);
  if (!text.ok()) return Annotate(text.status(), where);
  if (!text->has_value()) return absl::OkStatus();
  const absl::Status status = parse(**text);
  return status.ok() ? status : Annotate(status, where);
}

absl::Status LoadTokenizer(const std::string& directory, const std::string& shown,
                           ModelText* text) {
  const auto take = [text](auto parsed, const char* kind) {
    if (!parsed.ok()) return parsed.status();
    text->tokenizer = *std::move(parsed);
    text->tokenizer_kind = kind;
    return absl::OkStatus();
  };
  RIVULET_RETURN_IF_ERROR(
      ReadWith(directory, shown, kTokenizerJson, kMaxTokenizerBytes, [&](absl::string_view json) {
        return take(ParseTokenizerJson(json, &text->ignored), "tokenizer.json");
      }));
  if (text->tokenizer != nullptr) return absl::OkStatus();
  return ReadWith(
      directory, shown, kWorldVocabulary, kMaxTokenizerBytes,
      [&](absl::string_view file) { return take(ParseWorldVocabulary(file), "world"); });
}

// A token is its text, or an object that has it as `content`.
absl::StatusOr<std::string> TokenText(const JsonValue& value, absl::string_view path) {
  const JsonValue* const content =
      value.kind == JsonValue::Kind::kObject ? value.Find("content") : &value;
  if (content == nullptr || content->kind != JsonValue::Kind::kString) {
    return kTokenizerRules.Invalid(path, "is ", Describe(value),
                                   ", neither a text nor an object with `content`");
  }
  return content->text;
}

// Adds the roles in `root`, except roles that are already set.
absl::Status ReadRoles(JsonReader* root, Roles* roles) {
  std::set<std::string> given;
  for (const auto& [text, names] : *roles) given.insert(names.begin(), names.end());
  for (const char* const role : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                 "cls_token", "mask_token"}) {
    const JsonValue* const value = root->Find(role);
    if (value == nullptr || given.contains(role)) continue;
    RIVULET_ASSIGN_OR_RETURN(const std::string text, TokenText(*value, role));
    (*roles)[text].insert(role);
  }
  constexpr char kMore[] = "additional_special_tokens";
  if (root->Find(kMore) == nullptr || given.contains(kMore)) return absl::OkStatus();
  return root->ForEach(kMore, [&](const JsonValue& item, absl::string_view path) {
    RIVULET_ASSIGN_OR_RETURN(const std::string text, TokenText(item, path));
    (*roles)[text].insert(kMore);
    return absl::OkStatus();
  });
}

// A list has an object {"name", "template"} for each purpose.
absl::Status ReadChatTemplate(JsonReader* root, std::string* chat_template) {
  constexpr char kField[] = "chat_template";
  const JsonValue* const value = root->Find(kField);
  if (value == nullptr) return absl::OkStatus();
  if (value->kind == JsonValue::Kind::kString) {
    *chat_template = value->text;
    return absl::OkStatus();
  }
  return root->ForEach(kField, [&](const JsonValue& item, absl::string_view path) {
    const JsonValue* const name = item.Find("name");
    const JsonValue* const text = item.Find("template");
    const auto is_text = [](const JsonValue* member) {
      return member != nullptr && member->kind == JsonValue::Kind::kString;
    };
    if (!is_text(name) || !is_text(text)) {
      return kTokenizerRules.Invalid(path, "is no object with the texts `name` and `template`");
    }
    if (name->text == "default") *chat_template = text->text;
    return absl::OkStatus();
  });
}

absl::Status ReadTemplates(JsonReader* root, ModelText* text) {
  RIVULET_RETURN_IF_ERROR(ReadChatTemplate(root, &text->chat_template));
  RIVULET_ASSIGN_OR_RETURN(
      const JsonValue* response,
      root->Get("response_template", JsonValue::Kind::kObject, /*may_miss=*/true));
  if (response != nullptr) text->response_template.json = ToJson(*response);
  return absl::OkStatus();
}

absl::Status ReadSettings(const std::string& directory, const std::string& shown, Roles* roles,
                          ModelText* out) {
  const auto read = [&](const char* name, auto parse) {
    return ReadWith(directory, shown, name, kMaxSettingsBytes, [&](absl::string_view text) {
      RIVULET_ASSIGN_OR_RETURN(const JsonValue json, ParseStrictJson(text, kLimits));
      RIVULET_ASSIGN_OR_RETURN(JsonReader root, JsonReader::Of(kTokenizerRules, json, ""));
      RIVULET_RETURN_IF_ERROR(ReadRoles(&root, roles));
      return parse(&root);
    });
  };
  RIVULET_RETURN_IF_ERROR(
      read(kTokenizerConfig, [&](JsonReader* root) { return ReadTemplates(root, out); }));
  RIVULET_RETURN_IF_ERROR(read(kSpecialTokensMap, [](JsonReader*) { return absl::OkStatus(); }));
  return ReadWith(directory, shown, kChatTemplate, kMaxSettingsBytes, [&](absl::string_view text) {
    const size_t valid = ValidUtf8Bytes(text);
    if (valid < text.size()) {
      return kTokenizerRules.Invalid("", "is not valid UTF-8 at byte ", valid);
    }
    out->chat_template = std::string(text);
    return absl::OkStatus();
  });
}

// The token that is exactly `text`; nullopt if there is none, or several are needed.
std::optional<int32_t> IdOf(const TextTokenizer& tokenizer, const std::string& text) {
  const auto tokens = tokenizer.Encode(text, {.add_special_tokens = false});
  if (!tokens.ok() || tokens->ids.size() != 1) return std::nullopt;
  return tokens->ids[0];
}

std::vector<SpecialToken> ListSpecialTokens(const TextTokenizer* tokenizer, const Roles& roles) {
  std::map<int32_t, SpecialToken> with_id;
  std::vector<SpecialToken> without;
  for (int32_t id = 0; tokenizer != nullptr && id < tokenizer->size(); ++id) {
    if (tokenizer->IsSpecial(id)) with_id[id] = {id, std::string(tokenizer->TokenBytes(id)), {}};
  }
  for (const auto& [text, names] : roles) {
    SpecialToken token = {std::nullopt, text, {names.begin(), names.end()}};
    if (tokenizer != nullptr) token.id = IdOf(*tokenizer, text);
    if (token.id.has_value()) {
      with_id[*token.id] = std::move(token);
    } else {
      without.push_back(std::move(token));
    }
  }
  std::vector<SpecialToken> all;
  all.reserve(with_id.size() + without.size());
  for (auto& [id, token] : with_id) all.push_back(std::move(token));
  std::move(without.begin(), without.end(), std::back_inserter(all));
  return all;
}

}  // namespace

absl::StatusOr<ModelText> LoadModelText(const std::string& directory, const std::string& shown) {
  ModelText text;
  RIVULET_RETURN_IF_ERROR(LoadTokenizer(directory, shown, &text));
  Roles roles;
  RIVULET_RETURN_IF_ERROR(ReadSettings(directory, shown, &roles, &text));
  text.special_tokens = ListSpecialTokens(text.tokenizer.get(), roles);
  if (text.tokenizer_kind == "world") UseBuiltInTemplate(&text);
  return text;
}

void UseBuiltInTemplate(ModelText* text) {
  if (!text->chat_template.empty() && text->chat_template != kWorldName) return;
  text->chat_template = kWorldTemplate;
  text->chat_template_name = kWorldName;
}

}  // namespace rivulet
