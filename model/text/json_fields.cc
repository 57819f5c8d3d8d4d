// SPDX-License-Identifier: Apache-2.0
#include "model/text/json_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

std::string Join(absl::string_view path, absl::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

}  // namespace

absl::Status InvalidTokenizer(absl::string_view path, absl::string_view what) {
  return InvalidField("INVALID_TOKENIZER", Escaped(path), absl::StrCat(Escaped(path), " ", what));
}

absl::Status UnsupportedTokenizer(absl::string_view path, absl::string_view what) {
  return InvalidField("UNSUPPORTED_TOKENIZER", Escaped(path),
                      absl::StrCat(Escaped(path), " ", what));
}

absl::string_view TypeOf(const JsonValue& value) {
  const JsonValue* type = value.Find("type");
  return type != nullptr && type->kind == JsonValue::Kind::kString ? absl::string_view(type->text)
                                                                   : "";
}

absl::Status UnsupportedType(const JsonValue& value, absl::string_view path,
                             absl::string_view supported) {
  const JsonValue* type = value.Find("type");
  return UnsupportedTokenizer(Join(path, "type"),
                              absl::StrCat("is ", type == nullptr ? "missing" : Describe(*type),
                                           "; supported: ", supported));
}

absl::Status ForEachItem(const JsonValue& list, absl::string_view path, ItemAction action) {
  if (list.kind != JsonValue::Kind::kArray) {
    return InvalidTokenizer(path, absl::StrCat("is ", Describe(list), ", not an array"));
  }
  for (size_t i = 0; i < list.items.size(); ++i) {
    RIVULET_RETURN_IF_ERROR(action(list.items[i], absl::StrCat(path, "[", i, "]")));
  }
  return absl::OkStatus();
}

absl::StatusOr<JsonFields> JsonFields::Of(const JsonValue& value, absl::string_view path,
                                          std::initializer_list<absl::string_view> known) {
  if (value.kind != JsonValue::Kind::kObject) {
    return InvalidTokenizer(path, absl::StrCat("must be an object, it is ", Describe(value)));
  }
  for (size_t i = 0; i < value.keys.size(); ++i) {
    if (std::find(known.begin(), known.end(), value.keys[i]) == known.end()) {
      return UnsupportedTokenizer(
          Join(path, value.keys[i]),
          absl::StrCat("is ", Describe(value.items[i]), ", a setting that is not supported"));
    }
  }
  return JsonFields(&value, path);
}

std::string JsonFields::PathOf(absl::string_view key) const { return Join(path_, key); }

const JsonValue* JsonFields::Find(absl::string_view key) const {
  const JsonValue* found = value_->Find(key);
  return found == nullptr || found->kind == JsonValue::Kind::kNull ? nullptr : found;
}

absl::StatusOr<const JsonValue*> JsonFields::Required(absl::string_view key) const {
  const JsonValue* found = Find(key);
  if (found == nullptr) return InvalidTokenizer(PathOf(key), "is missing");
  return found;
}

absl::StatusOr<bool> JsonFields::Bool(absl::string_view key, bool fallback) const {
  const JsonValue* found = Find(key);
  if (found == nullptr) return fallback;
  if (found->kind == JsonValue::Kind::kBool) return found->boolean;
  return InvalidTokenizer(PathOf(key),
                          absl::StrCat("is ", Describe(*found), ", not true or false"));
}

absl::StatusOr<std::string> JsonFields::Text(absl::string_view key) const {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* found, Required(key));
  if (found->kind == JsonValue::Kind::kString) return found->text;
  return InvalidTokenizer(PathOf(key), absl::StrCat("is ", Describe(*found), ", not a string"));
}

absl::StatusOr<int32_t> JsonFields::Whole(absl::string_view key, int32_t most) const {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* found, Required(key));
  if (found->kind == JsonValue::Kind::kInteger && found->integer >= 0 && found->integer <= most) {
    return static_cast<int32_t>(found->integer);
  }
  return InvalidTokenizer(PathOf(key), absl::StrCat("is ", Describe(*found),
                                                    "; allowed: whole numbers from 0 to ", most));
}

absl::Status JsonFields::ForEach(absl::string_view key, ItemAction action) const {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* list, Required(key));
  return ForEachItem(*list, PathOf(key), action);
}

absl::Status JsonFields::RefuseUnlessNull(absl::string_view key) const {
  const JsonValue* found = Find(key);
  if (found == nullptr) return absl::OkStatus();
  return UnsupportedTokenizer(PathOf(key),
                              absl::StrCat("is ", Describe(*found), "; only null is supported"));
}

}  // namespace rivulet
