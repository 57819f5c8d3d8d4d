// SPDX-License-Identifier: Apache-2.0
#include "model/config_json.h"

#include <cmath>
#include <limits>

namespace rivulet {

absl::Status FieldReader::Bad(absl::string_view name, absl::string_view held,
                              absl::string_view allowed) const {
  const std::string path = PathOf(name);
  return InvalidField("INVALID_CONFIG", path,
                      absl::StrCat(path, " is ", held, "; allowed: ", allowed));
}

absl::StatusOr<const JsonValue*> FieldReader::Get(absl::string_view name,
                                                  absl::string_view allowed) {
  asked_.emplace(name);
  const JsonValue* value = object_.Find(name);
  if (value == nullptr) return Bad(name, "missing", allowed);
  return value;
}

absl::Status FieldReader::GetInt(absl::string_view name, int64_t min, int64_t max, int* out) {
  const std::string allowed = absl::StrCat("an integer from ", min, " to ", max);
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, allowed));
  if (value->kind != JsonValue::Kind::kInteger || value->integer < min || value->integer > max) {
    return Bad(name, Describe(*value), allowed);
  }
  *out = static_cast<int>(value->integer);
  return absl::OkStatus();
}

absl::Status FieldReader::GetOptionalInt(absl::string_view name, int64_t min, int64_t max,
                                         std::optional<int32_t>* out) {
  const std::string allowed = absl::StrCat("null, or an integer from ", min, " to ", max);
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, allowed));
  if (value->kind == JsonValue::Kind::kNull) {
    out->reset();
    return absl::OkStatus();
  }
  if (value->kind != JsonValue::Kind::kInteger || value->integer < min || value->integer > max) {
    return Bad(name, Describe(*value), allowed);
  }
  *out = static_cast<int32_t>(value->integer);
  return absl::OkStatus();
}

absl::Status FieldReader::GetBool(absl::string_view name, bool* out) {
  constexpr char kAllowed[] = "true or false";
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, kAllowed));
  if (value->kind != JsonValue::Kind::kBool) return Bad(name, Describe(*value), kAllowed);
  *out = value->boolean;
  return absl::OkStatus();
}

absl::Status FieldReader::GetText(absl::string_view name, absl::string_view allowed,
                                  std::string* out) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, allowed));
  if (value->kind != JsonValue::Kind::kString) return Bad(name, Describe(*value), allowed);
  *out = value->text;
  return absl::OkStatus();
}

absl::Status FieldReader::GetString(absl::string_view name, std::string* out) {
  return GetText(name, "a string", out);
}

namespace {
// Whether a number below the range of float64 stands in the file, which reads as 0.
bool SpelledNonZero(const JsonValue& value) {
  const std::string mantissa = value.text.substr(0, value.text.find_first_of("eE"));
  return mantissa.find_first_of("123456789") != std::string::npos;
}
}  // namespace

absl::Status FieldReader::GetFloat(absl::string_view name, bool zero_allowed, float* out) {
  const absl::string_view allowed = zero_allowed ? "0, or a positive number that float32 can hold"
                                                 : "a positive number that float32 can hold";
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, allowed));
  if (!value->is_number()) return Bad(name, Describe(*value), allowed);
  // Beyond the range of float32 the conversion itself is undefined, so the double is looked at
  // first.
  const bool too_large = !(std::abs(value->number) <= std::numeric_limits<float>::max());
  const float narrowed = too_large ? 0.0f : static_cast<float>(value->number);
  const bool vanishes = narrowed == 0 && (value->number != 0 || SpelledNonZero(*value));
  if (too_large || vanishes || narrowed < 0 || (narrowed == 0 && !zero_allowed)) {
    return Bad(name, Describe(*value), allowed);
  }
  *out = narrowed;
  return absl::OkStatus();
}

absl::StatusOr<FieldReader> FieldReader::GetObject(absl::string_view name) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, Get(name, "an object"));
  if (value->kind != JsonValue::Kind::kObject) return Bad(name, Describe(*value), "an object");
  return FieldReader(*value, PathOf(name));
}

absl::Status FieldReader::CheckNoOthers() const {
  for (const std::string& key : object_.keys) {
    if (asked_.find(key) != asked_.end()) continue;
    const std::string path = PathOf(Escaped(key));
    return InvalidField(
        "INVALID_CONFIG", path,
        absl::StrCat(path, " is an unknown field; allowed here: ", absl::StrJoin(asked_, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace rivulet
