// SPDX-License-Identifier: Apache-2.0
#include "model/base/json_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "model/base/suggestion.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

// By Kind.
constexpr absl::string_view kKinds[] = {"null",     "true or false", "an integer", "an integer",
                                        "a number", "a string",      "an array",   "an object"};

bool IsWithin(const JsonValue& value, int64_t min, int64_t max) {
  return value.kind == Kind::kInteger && value.integer >= min && value.integer <= max;
}

// Whether the file says 0. A number below the range of float64 also reads as 0.
bool IsSpelledZero(const JsonValue& value) {
  const std::string mantissa = value.text.substr(0, value.text.find_first_of("eE"));
  return value.number == 0 && mantissa.find_first_of("123456789") == std::string::npos;
}

}  // namespace

absl::Status JsonRules::ErrorOf(absl::string_view reason, absl::string_view path,
                                absl::string_view what) {
  const std::string field = Escaped(path);
  return InvalidField(reason, field, absl::StrCat(field.empty() ? "the text" : field, " ", what));
}

absl::StatusOr<JsonReader> JsonReader::Of(const JsonRules& rules, const JsonValue& value,
                                          absl::string_view path, Names known) {
  if (value.kind != Kind::kObject) {
    return rules.Invalid(path, "is ", Describe(value), "; allowed: an object");
  }
  JsonReader reader(rules, value, path);
  reader.Known(known);
  if (known.size() > 0) RIVULET_RETURN_IF_ERROR(reader.CheckNoOthers());
  return reader;
}

std::string JsonReader::PathOf(absl::string_view name) const {
  return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", name);
}

const JsonValue* JsonReader::Find(absl::string_view name) {
  asked_.emplace(name);
  const JsonValue* value = object_->Find(name);
  const bool is_null = value != nullptr && value->kind == Kind::kNull;
  return is_null && rules_->null_is_missing ? nullptr : value;
}

absl::StatusOr<absl::string_view> JsonReader::Spelling(absl::string_view name,
                                                       absl::string_view other) {
  const bool first = Find(name) != nullptr, second = Find(other) != nullptr;
  if (first && second) return Invalid(other, "stands beside ", name);
  return second ? other : name;
}

absl::StatusOr<const JsonValue*> JsonReader::Get(absl::string_view name, absl::string_view allowed,
                                                 bool may_miss, Fits fits) {
  const JsonValue* value = Find(name);
  if (value == nullptr ? may_miss : fits(*value)) return value;
  return Invalid(name, "is ", value == nullptr ? "missing" : Describe(*value),
                 "; allowed: ", allowed);
}

absl::StatusOr<const JsonValue*> JsonReader::Get(absl::string_view name, Kind kind, bool may_miss) {
  return Get(name, kKinds[static_cast<size_t>(kind)], may_miss,
             [kind](const JsonValue& value) { return value.kind == kind; });
}

absl::StatusOr<JsonReader> JsonReader::Object(absl::string_view name, Names known) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, Kind::kObject));
  return Of(*rules_, *value, PathOf(name), known);
}

absl::Status JsonReader::ForEach(absl::string_view name, ItemAction action) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* list, Get(name, Kind::kArray));
  const std::string path = PathOf(name);
  for (size_t i = 0; i < list->items.size(); ++i) {
    RIVULET_RETURN_IF_ERROR(action(list->items[i], absl::StrCat(path, "[", i, "]")));
  }
  return absl::OkStatus();
}

absl::Status JsonReader::Bool(absl::string_view name, bool* out, std::optional<bool> fallback) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, Kind::kBool, fallback.has_value()));
  *out = value == nullptr ? *fallback : value->boolean;
  return absl::OkStatus();
}

absl::Status JsonReader::Text(absl::string_view name, std::string* out) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, Kind::kString));
  *out = value->text;
  return absl::OkStatus();
}

absl::Status JsonReader::Int(absl::string_view name, int64_t min, int64_t max, int* out,
                             std::optional<int> fallback) {
  RIVULET_ASSIGN_OR_RETURN(
      const JsonValue* value,
      Get(name, absl::StrCat("an integer from ", min, " to ", max), fallback.has_value(),
          [=](const JsonValue& held) { return IsWithin(held, min, max); }));
  *out = value == nullptr ? *fallback : static_cast<int>(value->integer);
  return absl::OkStatus();
}

absl::Status JsonReader::Int(absl::string_view name, int64_t min, int64_t max,
                             std::optional<int>* out) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value,
                           Get(name, absl::StrCat("null, or an integer from ", min, " to ", max),
                               rules_->null_is_missing, [=](const JsonValue& held) {
                                 return held.kind == Kind::kNull || IsWithin(held, min, max);
                               }));
  out->reset();
  if (value != nullptr && value->kind != Kind::kNull) *out = static_cast<int>(value->integer);
  return absl::OkStatus();
}

absl::StatusOr<const JsonValue*> JsonReader::GetNumber(absl::string_view name, bool zero_allowed,
                                                       bool may_miss) {
  return Get(name,
             zero_allowed ? "a number from 0 that float32 can hold"
                          : "a number above 0 that float32 can hold",
             may_miss, [zero_allowed](const JsonValue& value) {
               if (!value.is_number()) return false;
               if (IsSpelledZero(value)) return zero_allowed;
               // Beyond float32 the conversion is undefined, so the double is checked first.
               return value.number > 0 && value.number <= std::numeric_limits<float>::max() &&
                      static_cast<float>(value.number) > 0;
             });
}

absl::StatusOr<std::optional<size_t>> JsonReader::Chosen(
    absl::string_view name, const std::vector<absl::string_view>& texts, bool may_miss) {
  const std::string allowed = absl::StrJoin(
      texts, " or ",
      [](std::string* out, absl::string_view text) { absl::StrAppend(out, Quoted(text)); });
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value,
                           Get(name, allowed, may_miss,
                               [](const JsonValue& held) { return held.kind == Kind::kString; }));
  if (value == nullptr) return std::nullopt;
  const auto found = std::find(texts.begin(), texts.end(), value->text);
  if (found != texts.end()) return static_cast<size_t>(found - texts.begin());
  return Unsupported(name, "is ", Describe(*value),
                     rules_->unsupported.empty() ? "; allowed: " : "; supported: ", allowed);
}

absl::Status JsonReader::Only(absl::string_view name, absl::string_view supported) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  const std::vector<std::string> spelled = absl::StrSplit(supported, ", ");
  const std::string held = Describe(*value);
  if (std::find(spelled.begin(), spelled.end(), held) != spelled.end()) return absl::OkStatus();
  return Unsupported(name, "is ", held, "; supported: ", supported);
}

absl::Status JsonReader::CheckNoOthers() const {
  for (size_t i = 0; i < object_->keys.size(); ++i) {
    const JsonValue& value = object_->items[i];
    const bool is_null = value.kind == Kind::kNull;
    if (is_null && rules_->unknown_may_be_null) continue;
    const bool off = is_null || (value.kind == Kind::kBool && !value.boolean);
    if (off && rules_->unknown_may_be_off) continue;
    if (asked_.find(object_->keys[i]) != asked_.end()) continue;
    std::string meant = Suggestion(object_->keys[i], {asked_.begin(), asked_.end()});
    // A format that others define may have too many settings to list them all.
    if (meant.empty() && rules_->unsupported.empty()) {
      meant = absl::StrCat("; allowed here: ", absl::StrJoin(asked_, ", "));
    }
    return Unsupported(object_->keys[i], "is ", Describe(value), ", an unknown field", meant);
  }
  return absl::OkStatus();
}

}  // namespace rivulet
