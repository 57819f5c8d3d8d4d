// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/settings_reader.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

// `text` with bare words Infinity spelled as an object.
std::string WithInfinitySpelled(absl::string_view text) {
  constexpr absl::string_view kWord = "Infinity";
  std::string spelled;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!in_string && text.substr(i, kWord.size()) == kWord) {
      spelled += "{\"__float__\": \"Infinity\"}";
      i += kWord.size() - 1;
      continue;
    }
    spelled += c;
    if (in_string && c == '\\' && i + 1 < text.size()) {
      spelled += text[++i];
    } else if (c == '"') {
      in_string = !in_string;
    }
  }
  return spelled;
}

}  // namespace

absl::StatusOr<JsonValue> ParseSettings(absl::string_view text) {
  return ParseStrictJson(WithInfinitySpelled(text), JsonLimits{});
}

absl::Status InvalidSetting(absl::string_view name, absl::string_view what) {
  return InvalidField("INVALID_CONFIG", name, absl::StrCat(name, " ", what));
}

absl::Status UnsupportedSetting(absl::string_view name, absl::string_view what) {
  return InvalidField("UNSUPPORTED_MODEL", name, absl::StrCat(name, " ", what));
}

const JsonValue* SettingsReader::Find(absl::string_view name) {
  asked_.emplace(name);
  const JsonValue* value = object_.Find(name);
  return value == nullptr || value->kind == Kind::kNull ? nullptr : value;
}

absl::Status SettingsReader::Count(absl::string_view name, int fallback, int* out, int64_t most) {
  const JsonValue* value = Find(name);
  if (value == nullptr && fallback > 0) {
    *out = fallback;
    return absl::OkStatus();
  }
  if (value == nullptr) return InvalidSetting(name, "is missing");
  if (value->kind != Kind::kInteger || value->integer < 1 || value->integer > most) {
    return InvalidSetting(name, absl::StrCat("is ", Describe(*value), "; allowed: 1 to ", most));
  }
  *out = static_cast<int>(value->integer);
  return absl::OkStatus();
}

absl::Status SettingsReader::Bool(absl::string_view name, bool fallback, bool* out) {
  const JsonValue* value = Find(name);
  *out = fallback;
  if (value == nullptr) return absl::OkStatus();
  if (value->kind != Kind::kBool) {
    return InvalidSetting(name, absl::StrCat("is ", Describe(*value), "; allowed: true or false"));
  }
  *out = value->boolean;
  return absl::OkStatus();
}

absl::Status SettingsReader::Positive(absl::string_view name, double fallback, double* out) {
  const JsonValue* value = Find(name);
  *out = fallback;
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number() || value->number <= 0 || !(value->number < 1e30)) {
    return InvalidSetting(name,
                          absl::StrCat("is ", Describe(*value), "; allowed: numbers above 0"));
  }
  *out = value->number;
  return absl::OkStatus();
}

absl::Status SettingsReader::OneOf(absl::string_view name,
                                   std::initializer_list<absl::string_view> allowed) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  const bool fits = value->kind == Kind::kString &&
                    std::find(allowed.begin(), allowed.end(), value->text) != allowed.end();
  if (fits) return absl::OkStatus();
  std::vector<std::string> quoted;
  for (const absl::string_view text : allowed) quoted.push_back(Quoted(text));
  return UnsupportedSetting(
      name, absl::StrCat("is ", Describe(*value), "; supported: ", absl::StrJoin(quoted, ", ")));
}

absl::Status SettingsReader::Only(absl::string_view name, bool value) {
  const JsonValue* found = Find(name);
  if (found == nullptr || (found->kind == Kind::kBool && found->boolean == value)) {
    return absl::OkStatus();
  }
  return UnsupportedSetting(
      name, absl::StrCat("is ", Describe(*found), "; supported: ", value ? "true" : "false"));
}

void SettingsReader::Harmless(std::initializer_list<absl::string_view> names) {
  for (const absl::string_view name : names) asked_.emplace(name);
}

absl::Status SettingsReader::CheckNoOthers() const {
  for (size_t i = 0; i < object_.keys.size(); ++i) {
    const JsonValue& value = object_.items[i];
    const bool off = value.kind == Kind::kNull || (value.kind == Kind::kBool && !value.boolean);
    if (off || asked_.find(object_.keys[i]) != asked_.end()) continue;
    return UnsupportedSetting(
        Escaped(object_.keys[i]),
        absl::StrCat("is ", Describe(value), ", a setting that is not known here"));
  }
  return absl::OkStatus();
}

absl::Status SettingsReader::Absent(absl::string_view name) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return absl::OkStatus();
  return UnsupportedSetting(name, absl::StrCat("is ", Describe(*found)));
}

absl::StatusOr<std::vector<int32_t>> ParseEosTokenIds(const JsonValue& config, int vocab_size) {
  const JsonValue* eos = config.Find("eos_token_id");
  std::vector<int32_t> ids;
  if (eos == nullptr || eos->kind == Kind::kNull) return ids;
  const std::span<const JsonValue> values =
      eos->kind == Kind::kArray ? std::span(eos->items) : std::span(eos, 1);
  for (const JsonValue& id : values) {
    if (id.kind != Kind::kInteger || id.integer < 0 || id.integer >= vocab_size) {
      return InvalidSetting(
          "eos_token_id",
          absl::StrCat("is ", Describe(id), "; allowed: token ids, 0 to ", vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(id.integer));
  }
  return ids;
}

}  // namespace rivulet
