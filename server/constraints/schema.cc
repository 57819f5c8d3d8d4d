// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/schema.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "nlohmann/json.hpp"
#include "server/constraints/messages.h"
#include "server/constraints/pattern.h"

namespace rivulet {
namespace {

using Json = nlohmann::ordered_json;
using Keys = std::vector<absl::string_view>;

constexpr JsonLimits kLimits = {.max_depth = 64, .max_values = 20000};
constexpr int64_t kMaxCount = 1 << 16;  // repetitions are states of the grammar
constexpr int64_t kMaxBound = int64_t{1} << 53;
constexpr size_t kMaxShownPointer = 400;    // bytes
constexpr size_t kMaxComparisons = 100000;  // of the schemas of oneOf: 0.3 s

const Keys kAnnotations = {"$comment",    "$defs",      "$schema",     "default",
                           "definitions", "deprecated", "description", "discriminator",
                           "examples",    "readOnly",   "title",       "writeOnly"};
// The assertions for values of each type, beside "type".
const std::map<std::string, Keys> kAssertions = {
    {"array", {"items", "maxItems", "minItems", "prefixItems"}},
    {"boolean", {}},
    {"integer", {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"}},
    {"null", {}},
    {"number", {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"}},
    {"object",
     {"additionalProperties", "maxProperties", "minProperties", "properties", "required"}},
    {"string", {"format", "maxLength", "minLength", "pattern"}}};
// Formats as patterns. The library's own accept leading zeros in addresses, and 30 February.
// clang-format off
#define DATE R"((?:[1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))))"
#define TIME R"((?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)))"
#define SPAN R"((?:\d{1,4}H(?:\d{1,4}M(?:\d{1,4}S)?)?|\d{1,4}M(?:\d{1,4}S)?|\d{1,4}S))"
#define LABEL R"([a-z\d](?:[a-z\d-]{0,30}[a-z\d])?)"
#define WORD R"([\da-f]{1,4})"
const std::map<std::string, std::string> kFormats = {
    {"date", DATE},  // RFC 3339, without 29 February
    {"date-time", DATE "T" TIME},
    {"duration", R"(P(?:\d{1,4}W|(?:\d{1,4}D|\d{1,4}M(?:\d{1,4}D)?|\d{1,4}Y(?:\d{1,4}M(?:\d{1,4}D)?)?)(?:T)" SPAN ")?|T" SPAN ")"},
    {"email", R"([\w%+-]{1,31}(?:\.[\w%+-]{1,31})?@(?:)" LABEL R"(\.){1,4}[a-z]{2,32})"},
    {"hostname", "(?:" LABEL R"(\.){0,4})" LABEL},
    {"ipv4", R"((?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"},
    {"ipv6", "(?:" WORD ":){7}" WORD "|(?:" WORD ":){1,6}:" WORD "|(?:" WORD ":){1,5}(?::" WORD "){2}|(?:" WORD ":){1,7}:|::(?:" WORD ")?"},
    {"time", TIME},
    {"uuid", R"([\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12})"}};
#undef DATE
#undef TIME
#undef SPAN
#undef LABEL
#undef WORD
// clang-format on
// What gives a schema without "type" its type.
const std::map<std::string, absl::string_view> kImplied = {{"properties", "object"},
                                                           {"items", "array"}};

const Json* Find(const Json& schema, absl::string_view key) {
  const auto found = schema.is_object() ? schema.find(std::string(key)) : schema.end();
  return found == schema.end() ? nullptr : &*found;
}

bool IsWhole(const Json& value) {
  return value.is_number() && value.get<double>() == std::floor(value.get<double>());
}

bool HasType(const Json& value, absl::string_view type) {
  if (type == "integer") return IsWhole(value);
  return absl::string_view(value.type_name()) == type;
}

// "const" or "enum" as a list; null: neither.
Json ValuesOf(const Json& schema) {
  if (const Json* value = Find(schema, "const")) return Json::array({*value});
  const Json* const values = Find(schema, "enum");
  return values == nullptr ? Json() : *values;
}

// The types of the values that satisfy `schema`, as far as "const", "enum" and "type" say.
std::vector<std::string> KnownTypes(const Json& schema) {
  std::vector<std::string> types;
  for (const Json& value : ValuesOf(schema)) types.emplace_back(value.type_name());
  if (!types.empty()) return types;
  const Json* const type = Find(schema, "type");
  if (type == nullptr) return {};
  for (const Json& name : type->is_array() ? *type : Json::array({*type})) {
    types.push_back(name == "integer" ? "number" : name.is_string() ? name.get<std::string>() : "");
  }
  return types;
}

// Numbers that the library would write with other digits become markers.
void MarkNumbers(Json* value) {
  const bool in_int64 =
      value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{kMaxBound});
  if (value->is_number() && !in_int64) *value = absl::StrCat(kNumber, value->dump());
  if (!value->is_structured()) return;
  for (Json& item : *value) MarkNumbers(&item);
}

template <class List>
bool HaveNoneInCommon(const List& a, const List& b) {
  return absl::c_none_of(a, [&](const auto& item) { return absl::c_linear_search(b, item); });
}

class SchemaReader {
 public:
  SchemaReader(const Json& root, absl::string_view field, const Place& place)
      : root_(root), field_(field), place_(place) {}

  absl::StatusOr<std::string> Read() {
    if (absl::StrContains(root_.dump(), kNumber)) {
      return Unsupported(place_, absl::StrCat("the text \"", kNumber, "\" is reserved"));
    }
    Json plain = {{"$defs", Json::object()}};
    RIVULET_ASSIGN_OR_RETURN(plain["anyOf"][0], ReadSchema(root_, place_));
    for (size_t i = 0; i < targets_.size(); ++i) {  // what a reference names is read once
      const auto [pointer, schema] = targets_[i];
      RIVULET_ASSIGN_OR_RETURN(plain["$defs"][absl::StrCat(i)],
                               ReadSchema(*schema, {place_.pointer + pointer}));
    }
    return plain.dump();
  }

 private:
  absl::Status Unsupported(const Place& place, absl::string_view why) const {
    return place.Unsupported(field_, why);
  }
  absl::Status NotAllowed(const Place& place, const Json& value, absl::string_view allowed) const {
    return place.NotAllowed(field_, value.dump(-1, ' ', /*ensure_ascii=*/true), allowed);
  }

  // Every member of `schema` is an annotation or in `allowed`.
  absl::Status CheckKeys(const Json& schema, const Place& place, const Keys& allowed) const {
    for (const auto& [key, value] : schema.items()) {
      const bool is_root_id = key == "$id" && place.pointer == place_.pointer;
      if (is_root_id || absl::c_linear_search(kAnnotations, key)) continue;
      if (absl::c_linear_search(allowed, key)) continue;
      return Unsupported(place / key,
                         absl::StrCat("this keyword is not supported here; beside annotations: ",
                                      absl::StrJoin(allowed, ", ")));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> ReadSchema(const Json& schema, const Place& place) {
    if (schema == true) return Json::object();
    if (!schema.is_object()) return NotAllowed(place, schema, "a schema that some value satisfies");
    if (schema.contains("$ref")) return ReadReference(schema, place);
    if (schema.contains("const") || schema.contains("enum")) return ReadValues(schema, place);
    for (const char* const key : {"anyOf", "oneOf", "allOf"}) {
      if (schema.contains(key)) return ReadBranches(schema, place, key);
    }
    return ReadTypes(schema, place);
  }

  absl::StatusOr<Json> ReadOrNone(const Json& schema, const Place& place) {
    if (schema == false) return schema;
    return ReadSchema(schema, place);
  }

  absl::StatusOr<Json> ReadReference(const Json& schema, const Place& place) {
    RIVULET_RETURN_IF_ERROR(CheckKeys(schema, place, {"$ref"}));
    const Json* const target = Target(schema);
    const Json& reference = schema["$ref"];
    if (target == nullptr)
      return NotAllowed(place / "$ref", reference, "\"#\" and \"#/\" with a path in this schema");
    const std::pair entry(reference.get<std::string>().substr(1), target);
    const auto found = std::find(targets_.begin(), targets_.end(), entry);
    const auto number = found - targets_.begin();
    if (found == targets_.end()) targets_.push_back(entry);
    return Json{{"$ref", absl::StrCat("#/$defs/", number)}};  // the library reads no "~1"
  }

  // A member that the library ignores, but that makes each schema another one: it takes schemas for
  // equal that differ only below names such as "title", in "properties", too.
  std::string NewAnchor() { return absl::StrCat(anchors_++); }

  // What "$ref" names; null: nothing.
  const Json* Target(const Json& schema) const {
    const Json& reference = schema["$ref"];
    if (reference == "#") return &root_;
    const std::string path = reference.is_string() ? reference.get<std::string>() : "";
    if (path.substr(0, 2) != "#/") return nullptr;
    const Json* target = &root_;
    for (const absl::string_view part : absl::StrSplit(path.substr(2), '/')) {
      if (target == nullptr) break;
      size_t index = 0;
      const bool in_list = target->is_array() && absl::SimpleAtoi(part, &index);
      target = in_list ? (index < target->size() ? &(*target)[index] : nullptr)
                       : Find(*target, absl::StrReplaceAll(part, {{"~0", "~"}, {"~1", "/"}}));
    }
    return target;
  }

  absl::StatusOr<Json> ReadValues(const Json& schema, const Place& place) {
    const char* const key = schema.contains("const") ? "const" : "enum";
    RIVULET_RETURN_IF_ERROR(CheckKeys(schema, place, {key, "type"}));
    Json values = ValuesOf(schema);
    if (!values.is_array() || values.empty())
      return NotAllowed(place / key, values, "a list of at least one value");
    RIVULET_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(schema, place));
    for (const Json& value : values) {
      const auto has = [&value](const std::string& type) { return HasType(value, type); };
      if (!types.empty() && absl::c_none_of(types, has))
        return NotAllowed(place / key, value, "values of the \"type\"");
    }
    MarkNumbers(&values);
    return Json{{"enum", values}, {"$anchor", NewAnchor()}};
  }

  absl::StatusOr<Json> ReadBranches(const Json& schema, const Place& place, const char* key) {
    RIVULET_RETURN_IF_ERROR(CheckKeys(schema, place, {key}));
    const Json& branches = schema[key];
    const size_t most = key == absl::string_view("allOf") ? 1 : kLimits.max_values;
    if (!branches.is_array() || branches.empty() || branches.size() > most) {
      return NotAllowed(place / key, branches, absl::StrCat("a list of 1 to ", most, " schemas"));
    }
    Json plain;
    for (size_t i = 0; i < branches.size(); ++i) {
      RIVULET_ASSIGN_OR_RETURN(plain["anyOf"][i], ReadSchema(branches[i], place / key / i));
      for (size_t j = 0; j < i && key == absl::string_view("oneOf"); ++j) {
        if (AreDisjoint(branches[j], branches[i], 0)) continue;
        if (comparisons_ >= kMaxComparisons) {
          return Unsupported(place / key,
                             "it has too many schemas to compare each with each; use \"anyOf\"");
        }
        return Unsupported(
            place / key,
            absl::StrCat(
                "schemas ", j, " and ", i,
                " may accept the same value: they are not of other types, "
                "and no property that both require has other values; \"anyOf\" allows that"));
      }
    }
    return plain;
  }

  // Whether it is cheap to see that no value satisfies both.
  bool AreDisjoint(const Json& a, const Json& b, int depth) {
    if (++comparisons_ >= kMaxComparisons || depth > kLimits.max_depth) return false;
    const Json &first = Followed(a), &second = Followed(b);
    const std::vector<std::string> types = KnownTypes(first), others = KnownTypes(second);
    if (types.empty() || others.empty()) return false;
    if (HaveNoneInCommon(types, others)) return true;
    // Without the order of members.
    const nlohmann::json values = ValuesOf(first), other_values = ValuesOf(second);
    if (!values.is_null() && !other_values.is_null()) {
      comparisons_ += values.size() * other_values.size();
      return comparisons_ < kMaxComparisons && HaveNoneInCommon(values, other_values);
    }
    const Json *const properties = Find(first, "properties"), *const other =
                                                                  Find(second, "properties");
    if (types != std::vector<std::string>{"object"} || types != others || !properties || !other)
      return false;
    return absl::c_any_of(properties->items(), [&](const auto& property) {
      const Json *const mine = Find(first, "required"), *const their = Find(second, "required");
      const bool both = mine && their && absl::c_linear_search(*mine, property.key()) &&
                        absl::c_linear_search(*their, property.key());
      return both && other->contains(property.key()) &&
             AreDisjoint(property.value(), (*other)[property.key()], depth + 1);
    });
  }
  const Json& Followed(const Json& schema) const {
    const Json* at = &schema;
    for (int i = 0; i < kLimits.max_depth && Find(*at, "$ref") != nullptr; ++i) {
      const Json* const target = Target(*at);
      if (target == nullptr) break;
      at = target;
    }
    return *at;
  }

  // "type" as a list; empty: absent, and nothing implies it.
  absl::StatusOr<std::vector<std::string>> TypesOf(const Json& schema, const Place& place) const {
    std::vector<std::string> types;
    if (const Json* const given = Find(schema, "type")) {
      for (const Json& type : given->is_array() ? *given : Json::array({*given})) {
        if (!type.is_string() || !kAssertions.contains(type.get<std::string>()))
          return NotAllowed(place / "type", type, "the types of JSON");
        types.push_back(type.get<std::string>());
      }
      if (types.empty()) return NotAllowed(place / "type", *given, "at least one");
    }
    for (const auto& [key, type] : kImplied) {
      if (types.empty() && schema.contains(key)) types.emplace_back(type);
    }
    return types;
  }

  absl::StatusOr<Json> ReadTypes(const Json& schema, const Place& place) {
    RIVULET_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(schema, place));
    Keys allowed = {"type"};
    for (const auto& [type, keys] : kAssertions) {
      if (absl::c_linear_search(types, type))
        allowed.insert(allowed.end(), keys.begin(), keys.end());
    }
    RIVULET_RETURN_IF_ERROR(CheckKeys(schema, place, allowed));
    if (types.empty()) return Json::object();
    Json plain = {{"anyOf", Json::array()}};
    for (const std::string& type : types) {
      Json typed = {{"type", type}};
      absl::Status status;
      if (type == "object") status = ReadObject(schema, place, &typed);
      if (type == "array") status = ReadArray(schema, place, &typed);
      if (type == "string") status = ReadString(schema, place, &typed);
      if (type == "integer" || type == "number") status = ReadBounds(schema, place, &typed);
      RIVULET_RETURN_IF_ERROR(status);
      typed["$anchor"] = NewAnchor();
      plain["anyOf"].push_back(std::move(typed));
    }
    return plain["anyOf"].size() == 1 ? Json(plain["anyOf"][0]) : plain;
  }

  // Copies numbers in [0, kMaxCount]: the smallest and the largest count.
  absl::Status ReadCounts(const Json& schema, const Place& place, const char* least,
                          const char* most, Json* plain) const {
    for (const char* const key : {least, most}) {
      const Json* const count = Find(schema, key);
      if (count == nullptr) continue;
      const bool fits = count->is_number_integer() && *count >= 0 && *count <= kMaxCount;
      if (!fits) return NotAllowed(place / key, *count, absl::StrCat("0 to ", kMaxCount));
      (*plain)[key] = *count;
    }
    return CheckOrder(*plain, place, least, most);
  }

  absl::Status CheckOrder(const Json& plain, const Place& place, const char* least,
                          const char* most) const {
    const bool both = plain.contains(least) && plain.contains(most);
    if (!both || plain[least] <= plain[most]) return absl::OkStatus();
    return Unsupported(place / least, absl::StrCat("it is above \"", most, "\""));
  }

  absl::Status ReadObject(const Json& schema, const Place& place, Json* plain) {
    const Json named = schema.value("properties", Json::object());
    if (!named.is_object()) return NotAllowed(place / "properties", named, "an object of schemas");
    for (const auto& [name, property] : named.items()) {
      RIVULET_ASSIGN_OR_RETURN((*plain)["properties"][name],
                               ReadSchema(property, place / "properties" / name));
    }
    const Json required = schema.value("required", Json::array());
    for (const Json& name : required.is_array() ? required : Json::array({required})) {
      if (!name.is_string() || !named.contains(name.get<std::string>()))
        return NotAllowed(place / "required", name, "names of \"properties\"");
    }
    if (!required.empty()) (*plain)["required"] = required;
    // Where properties are named, no others are written, which satisfies true.
    const Json more = schema.value("additionalProperties", Json(true));
    if (!named.empty() && !more.is_boolean()) {
      return NotAllowed(place / "additionalProperties", more,
                        "true and false, where \"properties\" names some");
    }
    RIVULET_ASSIGN_OR_RETURN(
        (*plain)["additionalProperties"],
        ReadOrNone(named.empty() ? more : Json(false), place / "additionalProperties"));
    RIVULET_RETURN_IF_ERROR(ReadCounts(schema, place, "minProperties", "maxProperties", plain));
    // A name may be written twice, so more than one name cannot be promised.
    const bool counts = plain->contains("minProperties") || plain->contains("maxProperties");
    if (counts && (!named.empty() || plain->value("minProperties", 0) > 1)) {
      return Unsupported(place / "minProperties",
                         "a number of properties is supported up to 1, and without \"properties\"");
    }
    return absl::OkStatus();
  }

  absl::Status ReadArray(const Json& schema, const Place& place, Json* plain) {
    const Json first = schema.value("prefixItems", Json::array());
    if (!first.is_array()) return NotAllowed(place / "prefixItems", first, "a list of schemas");
    for (size_t i = 0; i < first.size(); ++i) {
      RIVULET_ASSIGN_OR_RETURN((*plain)["prefixItems"][i],
                               ReadSchema(first[i], place / "prefixItems" / i));
    }
    RIVULET_ASSIGN_OR_RETURN(
        (*plain)["items"], ReadOrNone(schema.value("items", Json(first.empty())), place / "items"));
    RIVULET_RETURN_IF_ERROR(ReadCounts(schema, place, "minItems", "maxItems", plain));
    const auto named = static_cast<int64_t>(first.size());
    const bool closed = named > 0 && (*plain)["items"] == false;
    if (plain->value("maxItems", kMaxCount) < named) {
      return NotAllowed(place / "maxItems", (*plain)["maxItems"],
                        "at least the number of \"prefixItems\"");
    }
    if (closed && plain->value("minItems", int64_t{0}) > named) {
      return NotAllowed(place / "minItems", (*plain)["minItems"],
                        "at most the number of \"prefixItems\", because there is no \"items\"");
    }
    return absl::OkStatus();
  }

  absl::Status ReadString(const Json& schema, const Place& place, Json* plain) const {
    Json counts = Json::object();
    RIVULET_RETURN_IF_ERROR(ReadCounts(schema, place, "minLength", "maxLength", &counts));
    const Json *const pattern = Find(schema, "pattern"), *const format = Find(schema, "format");
    if (int{!counts.empty()} + int{pattern != nullptr} + int{format != nullptr} > 1) {
      return Unsupported(place,
                         "of \"pattern\", \"format\" and a length one is supported at a time");
    }
    std::string expression;
    if (format != nullptr) {
      const auto known = kFormats.find(format->is_string() ? format->get<std::string>() : "");
      if (known == kFormats.end()) {
        return NotAllowed(place / "format", *format,
                          absl::StrJoin(kFormats, ", ", [](std::string* out, const auto& entry) {
                            absl::StrAppend(out, entry.first);
                          }));
      }
      expression = known->second;
    }
    if (pattern != nullptr) {
      if (!pattern->is_string()) {
        return NotAllowed(place / "pattern", *pattern, "a regular expression");
      }
      expression = pattern->get<std::string>();
    }
    // The library's own lengths let control characters through, which JSON does not allow.
    if (!counts.empty()) expression = R"([^"\\\x00-\x1f])";
    if (expression.empty() && pattern == nullptr) return absl::OkStatus();
    RIVULET_ASSIGN_OR_RETURN(
        std::string text, PlainPattern(expression, true, field_, (place / "pattern").In(field_)));
    if (!counts.empty()) {
      const int64_t least = counts.value("minLength", int64_t{0});
      const int64_t most = counts.value("maxLength", int64_t{-1});
      text = std::max(least, most) > kMaxExpanded
                 ? absl::StrCat(kLongString, least, " ", most, " ", text)
                 : absl::StrCat(text, "{", least, ",", most < 0 ? "" : absl::StrCat(most), "}");
    }
    (*plain)["pattern"] = text;
    return absl::OkStatus();
  }

  absl::Status ReadBounds(const Json& schema, const Place& place, Json* plain) const {
    for (const absl::string_view key : kAssertions.at("number")) {
      const Json* const bound = Find(schema, key);
      if (bound == nullptr) continue;
      const bool fits = bound->is_number() && std::abs(bound->get<double>()) <= double(kMaxBound);
      if (!fits || ((*plain)["type"] == "integer" && !IsWhole(*bound))) {
        return NotAllowed(place / key, *bound,
                          "a number from -2^53 to 2^53, and of integers an integer");
      }
      (*plain)[std::string(key)] = IsWhole(*bound) ? Json(int64_t(bound->get<double>())) : *bound;
    }
    return CheckOrder(*plain, place, "minimum", "maximum");
  }

  const Json& root_;
  const absl::string_view field_;
  const Place place_;
  int anchors_ = 0;
  size_t comparisons_ = 0;
  std::vector<std::pair<std::string, const Json*>> targets_;  // of references, with their pointers
};

}  // namespace

Place Place::operator/(absl::string_view key) const {
  return {absl::StrCat(pointer, "/", absl::StrReplaceAll(key, {{"~", "~0"}, {"/", "~1"}}))};
}

Place Place::operator/(size_t index) const { return *this / absl::StrCat(index); }

std::string Place::In(absl::string_view field) const {
  const bool long_one = pointer.size() > kMaxShownPointer;
  return absl::StrCat(field, ", at \"", absl::CHexEscape(pointer.substr(0, kMaxShownPointer)),
                      long_one ? "..." : "", "\"");
}

absl::Status Place::Unsupported(absl::string_view field, absl::string_view why) const {
  return InvalidField("CONSTRAINT_UNSUPPORTED", field, absl::StrCat(In(field), ": ", why, "."));
}

absl::Status Place::NotAllowed(absl::string_view field, absl::string_view json,
                               absl::string_view allowed) const {
  return Unsupported(field, absl::StrCat("it is ", json.substr(0, 80), "; allowed: ", allowed));
}

absl::StatusOr<std::string> PlainSchema(absl::string_view schema, absl::string_view field,
                                        const Place& place) {
  const absl::StatusOr<JsonValue> checked = ParseStrictJson(schema, kLimits);
  if (!checked.ok()) {
    return InvalidField("CONSTRAINT_INVALID", field,
                        absl::StrCat(field, " is refused: ", checked.status().message()));
  }
  return SchemaReader(Json::parse(schema), field, place).Read();
}

}  // namespace rivulet
