// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/structural_tag.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "nlohmann/json.hpp"
#include "server/constraints/messages.h"
#include "server/constraints/pattern.h"
#include "server/constraints/schema.h"

namespace rivulet {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

constexpr int kMaxDepth = 16;  // of formats
// Each format has two levels of JSON, its schemas have 64.
constexpr JsonLimits kTagLimits = {.max_depth = 2 * kMaxDepth + 66, .max_values = 20000};
// A definition of a schema is written for each parameter that refers to it.
constexpr size_t kMaxPlainBytes = size_t{1} << 22;

// What a member of a format is. kMark: a text that is not empty. kOther: read by its own function.
enum class Is : uint8_t { kText, kMark, kMarks, kEnd, kFlag, kFormat, kElements, kTags, kOther };
struct Member {
  const char* name;
  Is is;
  bool required = true;
};
const std::map<std::string, std::vector<Member>> kTagFormats = {
    {"any_text", {{"excludes", Is::kMarks, false}}},
    {"const_string", {{"value", Is::kText}}},
    {"json_schema", {{"json_schema", Is::kOther}, {"style", Is::kOther, false}}},
    {"optional", {{"content", Is::kFormat}}},
    {"or", {{"elements", Is::kElements}}},
    {"plus", {{"content", Is::kFormat}}},
    {"regex", {{"pattern", Is::kOther}}},
    {"sequence", {{"elements", Is::kElements}}},
    {"star", {{"content", Is::kFormat}}},
    {"tag", {{"begin", Is::kMark}, {"content", Is::kFormat}, {"end", Is::kEnd}}},
    {"tags_with_separator",
     {{"tags", Is::kTags},
      {"separator", Is::kText},
      {"at_least_one", Is::kFlag, false},
      {"stop_after_first", Is::kFlag, false}}},
    {"triggered_tags",
     {{"triggers", Is::kMarks},
      {"tags", Is::kTags},
      {"excludes", Is::kMarks, false},
      {"at_least_one", Is::kFlag, false},
      {"stop_after_first", Is::kFlag, false}}}};

// Ends of a parameter in XML. The line end behind it is the model's choice: templates differ in
// whether it belongs to the parameters or to what follows them.
const Texts kParameterEnds = {"\n</parameter>\n", "\n</parameter>"};

std::string Const(absl::string_view text) {
  return Json{{"type", "const_string"}, {"value", text}}.dump();
}

// The library refuses an empty expression.
std::string Regex(const std::string& pattern) {
  return pattern.empty() ? Const("") : Json{{"type", "regex"}, {"pattern", pattern}}.dump();
}

std::string Schema(absl::string_view plain) {
  const absl::string_view border(&kSchemaBorder, 1);
  return absl::StrCat(R"({"type":"grammar","grammar":)", border, plain, border, "}");
}

std::string Format(absl::string_view type, absl::string_view member, absl::string_view value) {
  return absl::StrCat(R"({"type":")", type, R"(",")", member, R"(":)", value, "}");
}

std::string List(absl::string_view type, const Texts& elements) {
  return Format(type, "elements", absl::StrCat("[", absl::StrJoin(elements, ","), "]"));
}

Texts TextsOf(const Json& value) {
  return value.is_array() ? value.get<Texts>() : Texts{value.get<std::string>()};
}

bool IsMark(const Json& value) {
  return value.is_string() && !value.get_ref<const Json::string_t&>().empty();
}
bool AreMarks(const Json& value) { return value.is_array() && absl::c_all_of(value, IsMark); }

// Parameters in XML, as models of Qwen's write calls: the text of an object, whose rewritten schema
// is `plain`. Not by the library's own style: there a string ends at any "</parameter>", a length
// and a pattern let that through, and our markers would be taken for characters.
class ParameterReader {
 public:
  ParameterReader(const Json& plain, absl::string_view field, const Place& place)
      : definitions_(plain["$defs"]), field_(field), place_(place) {}

  absl::StatusOr<std::string> Read(const Json& schema, int depth) {
    if (depth > kMaxDepth) return TooDeep(place_);
    if (schema.contains("$ref")) return Read(Target(schema), depth + 1);
    if (schema.contains("anyOf") && schema["anyOf"].size() == 1) {
      return Read(schema["anyOf"][0], depth + 1);
    }
    const bool counted = schema.contains("minProperties") || schema.contains("maxProperties");
    if ((!schema.empty() && schema.value("type", "") != "object") || counted) {
      return place_.Unsupported(
          field_, "with style \"qwen_xml\" it is one schema of an object, without a count");
    }
    if (schema.contains("properties")) return ReadNamed(schema);
    const Json values = schema.value("additionalProperties", Json::object());
    if (values == false) return Const("");
    RIVULET_ASSIGN_OR_RETURN(const std::string value,
                             ReadValue(values, place_ / "additionalProperties", 1));
    const Texts named = {Regex(R"([\u{30}-\u{39}\u{41}-\u{5a}\u{61}-\u{7a}_.\u{2d}]+)"),
                         Const(">\n"), value};
    return Format("star", "content", Parameter("<parameter=", List("sequence", named)));
  }

 private:
  absl::Status TooDeep(const Place& place) const {
    return place.Unsupported(field_, absl::StrCat("its references and unions are more than ",
                                                  kMaxDepth, " levels deep"));
  }
  const Json& Target(const Json& schema) const {
    const std::string reference = schema["$ref"].get<std::string>();
    return definitions_[std::string(absl::StripPrefix(reference, "#/$defs/"))];
  }
  static std::string Parameter(const std::string& begin, const std::string& content) {
    return absl::StrCat(R"({"type":"tag","begin":)", Json(begin).dump(), R"(,"content":)", content,
                        R"(,"end":)", Json(kParameterEnds).dump(), "}");
  }

  absl::StatusOr<std::string> ReadNamed(const Json& schema) {
    const Json required = schema.value("required", Json::array());
    Texts parameters;
    for (const auto& [name, property] : schema["properties"].items()) {
      const Place place = place_ / "properties" / name;
      if (name.empty() || name.find_first_of("<>\n") != std::string::npos) {
        return place.Unsupported(field_,
                                 "in XML a name is not empty, and has no <, > and line end");
      }
      RIVULET_ASSIGN_OR_RETURN(const std::string value, ReadValue(property, place, 1));
      const std::string parameter = Parameter(absl::StrCat("<parameter=", name, ">\n"), value);
      parameters.push_back(absl::c_linear_search(required, name)
                               ? parameter
                               : Format("optional", "content", parameter));
    }
    return List("sequence", parameters);
  }

  // The text of one parameter: a string itself, JSON of every other value.
  absl::StatusOr<std::string> ReadValue(const Json& schema, const Place& place, int depth) {
    if (depth > kMaxDepth) return TooDeep(place);
    if (schema.contains("$ref")) return ReadValue(Target(schema), place, depth + 1);
    if (schema.contains("enum")) return ReadValues(schema["enum"], place);
    if (schema.contains("anyOf")) {
      Texts branches;
      for (const Json& branch : schema["anyOf"]) {
        RIVULET_ASSIGN_OR_RETURN(branches.emplace_back(), ReadValue(branch, place, depth + 1));
      }
      return Count(List("or", branches), place);
    }
    const std::string type = schema.value("type", "string");  // every text is a string
    if (type != "string") return OfJson(schema, place);
    if (!schema.contains("pattern")) return std::string(R"({"type":"any_text"})");
    const std::string pattern = schema["pattern"].get<std::string>();
    if (absl::StartsWith(pattern, kLongString)) {
      return place.Unsupported(
          field_, absl::StrCat("in XML a length of a string is at most ", kMaxExpanded));
    }
    return Count(Regex(pattern), place);
  }

  absl::StatusOr<std::string> ReadValues(const Json& values, const Place& place) {
    Texts texts;
    Json others = Json::array();
    for (const Json& value : values) {
      const std::string text = value.is_string() ? value.get<std::string>() : "";
      if (!value.is_string() || absl::StartsWith(text, kNumber)) {
        others.push_back(value);
      } else if (absl::StrContains(text, kParameterEnds.back())) {
        return place.Unsupported(field_, "a value contains the end of a parameter in XML");
      } else {
        texts.push_back(Const(text));
      }
    }
    if (!others.empty()) {
      RIVULET_ASSIGN_OR_RETURN(texts.emplace_back(), OfJson(Json{{"enum", others}}, place));
    }
    return Count(List("or", texts), place);
  }

  absl::StatusOr<std::string> OfJson(const Json& schema, const Place& place) {
    return Count(Schema(Json{{"$defs", definitions_}, {"anyOf", Json::array({schema})}}.dump()),
                 place);
  }

  absl::StatusOr<std::string> Count(std::string format, const Place& place) {
    bytes_ += format.size();
    if (bytes_ <= kMaxPlainBytes) return format;
    return place.Unsupported(field_, "the schema is too large with its references written out");
  }

  const Json& definitions_;
  const absl::string_view field_;
  const Place place_;
  size_t bytes_ = 0;
};

class TagReader {
 public:
  explicit TagReader(absl::string_view field) : field_(field) {}

  absl::StatusOr<std::string> Read(const Json& root) {
    RIVULET_RETURN_IF_ERROR(CheckNames(root, Place(), {"type", "format"}));
    if (root.value("type", Json()) != "structural_tag") {
      return NotAllowed(Place() / "type", root.value("type", Json()), "\"structural_tag\"");
    }
    RIVULET_ASSIGN_OR_RETURN(const std::string format,
                             ReadFormat(root.value("format", Json()), Place() / "format", "", 1));
    return Format("structural_tag", "format", format);
  }

 private:
  absl::Status NotAllowed(const Place& place, const Json& value, absl::string_view allowed) const {
    return place.NotAllowed(field_, value.dump(-1, ' ', /*ensure_ascii=*/true), allowed);
  }

  absl::Status CheckNames(const Json& object, const Place& place, const Texts& allowed) const {
    if (!object.is_object()) return NotAllowed(place, object, "an object");
    for (const auto& [name, value] : object.items()) {
      if (absl::c_linear_search(allowed, name)) continue;
      return (place / name)
          .Unsupported(field_, absl::StrCat("this member is not supported here; allowed: ",
                                            absl::StrJoin(allowed, ", ")));
    }
    return absl::OkStatus();
  }

  // `implied`: the type of a format that must be of it, and need not say so.
  absl::StatusOr<std::string> ReadFormat(const Json& format, const Place& place,
                                         const std::string& implied, int depth) {
    if (!format.is_object()) return NotAllowed(place, format, "a format, which is an object");
    if (depth > kMaxDepth) {
      return place.Unsupported(field_, absl::StrCat("formats are more than ", kMaxDepth, " deep"));
    }
    const Json type = format.value("type", Json(implied));
    const auto known = kTagFormats.find(type.is_string() ? type.get<std::string>() : "");
    if (known == kTagFormats.end() || (!implied.empty() && type != implied)) {
      Texts types;
      for (const auto& [name, members] : kTagFormats) types.push_back(name);
      return NotAllowed(place / "type", type,
                        implied.empty() ? absl::StrJoin(types, ", ") : implied);
    }
    Texts names = {"type"};
    for (const Member& member : known->second) names.emplace_back(member.name);
    RIVULET_RETURN_IF_ERROR(CheckNames(format, place, names));
    if (type == "json_schema") return ReadSchema(format, place);
    if (type == "regex") return ReadPattern(format, place);
    const Texts outer = ends_;
    if (type == "tag" && IsEnd(format.value("end", Json()))) ends_ = TextsOf(format["end"]);
    std::string plain = absl::StrCat(R"({"type":)", type.dump());
    for (const Member& member : known->second) {
      if (!member.required && !format.contains(member.name)) continue;
      RIVULET_ASSIGN_OR_RETURN(
          const std::string text,
          ReadMember(member.is, format.value(member.name, Json()), place / member.name, depth));
      absl::StrAppend(&plain, ",\"", member.name, "\":", text);
    }
    ends_ = outer;
    if (type == "triggered_tags") RIVULET_RETURN_IF_ERROR(CheckTriggers(format, place));
    return plain + "}";
  }

  static bool IsEnd(const Json& value) {
    return IsMark(value) || (AreMarks(value) && !value.empty());
  }

  absl::StatusOr<std::string> ReadMember(Is is, const Json& value, const Place& place, int depth) {
    const auto checked = [&](bool good, absl::string_view allowed) -> absl::StatusOr<std::string> {
      if (!good) return NotAllowed(place, value, allowed);
      return value.dump();
    };
    switch (is) {
      case Is::kText:
        return checked(value.is_string(), "a string");
      case Is::kMark:
        return checked(IsMark(value), "a string that is not empty");
      case Is::kMarks:
        return checked(AreMarks(value), "a list of strings that are not empty");
      case Is::kEnd:
        return checked(IsEnd(value), "a string that is not empty, or a list of some");
      case Is::kFlag:
        return checked(value.is_boolean(), "true and false");
      case Is::kFormat:
        return ReadFormat(value, place, "", depth + 1);
      case Is::kElements:
      case Is::kTags:
      case Is::kOther:
        break;
    }
    if (!value.is_array() || value.empty()) {
      return NotAllowed(place, value, "a list of at least one format");
    }
    Texts formats;
    for (size_t i = 0; i < value.size(); ++i) {
      RIVULET_ASSIGN_OR_RETURN(
          formats.emplace_back(),
          ReadFormat(value[i], place / i, is == Is::kTags ? "tag" : "", depth + 1));
    }
    return absl::StrCat("[", absl::StrJoin(formats, ","), "]");
  }

  // Of a format whose members are as they should be.
  absl::Status CheckTriggers(const Json& format, const Place& place) const {
    const Texts triggers = TextsOf(format["triggers"]);
    std::vector<bool> used(triggers.size(), false);
    for (size_t i = 0; i < format["tags"].size(); ++i) {
      const Json& begin = format["tags"][i]["begin"];
      const auto found = absl::c_find_if(triggers, [&](const std::string& trigger) {
        return absl::StartsWith(begin.get<std::string>(), trigger);
      });
      if (found == triggers.end()) {
        return NotAllowed(place / "tags" / i / "begin", begin, "a text that begins with a trigger");
      }
      used[size_t(found - triggers.begin())] = true;
    }
    // The library does not notice a trigger that is a part of another text that it looks for: then
    // free text would contain the trigger without a tag.
    Texts others = ends_;
    for (const Json& text : format.value("excludes", Json::array())) others.push_back(text);
    for (size_t i = 0; i < triggers.size(); ++i) {
      const Place at = place / "triggers" / i;
      for (const std::string& other : others) {
        if (absl::StrContains(other, triggers[i]) || absl::StrContains(triggers[i], other)) {
          return at.Unsupported(
              field_, absl::StrCat("it contains ", Quoted(other), ", or is a part of it"));
        }
      }
      if (!used[i]) return at.Unsupported(field_, "no tag begins with it");
      others.push_back(triggers[i]);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadPattern(const Json& format, const Place& place) const {
    const Json pattern = format.value("pattern", Json());
    if (!pattern.is_string()) {
      return NotAllowed(place / "pattern", pattern, "a regular expression");
    }
    RIVULET_ASSIGN_OR_RETURN(
        const std::string plain,
        PlainPattern(pattern.get<std::string>(), false, field_, (place / "pattern").In(field_)));
    return Regex(plain);
  }

  absl::StatusOr<std::string> ReadSchema(const Json& format, const Place& place) const {
    const Json style = format.value("style", Json("json"));
    if (style != "json" && style != "qwen_xml") {
      return NotAllowed(place / "style", style, "\"json\" and \"qwen_xml\"");
    }
    const Json schema = format.value("json_schema", Json());
    const Place inner = place / "json_schema";
    RIVULET_ASSIGN_OR_RETURN(const std::string plain, PlainSchema(schema.dump(), field_, inner));
    if (style == "json") return Schema(plain);
    const Json document = Json::parse(plain);
    return ParameterReader(document, field_, inner).Read(document["anyOf"][0], 1);
  }

  const absl::string_view field_;
  Texts ends_;  // of the innermost tag
};

}  // namespace

absl::StatusOr<std::string> PlainStructuralTag(absl::string_view tag, absl::string_view field) {
  const absl::StatusOr<JsonValue> checked = ParseStrictJson(tag, kTagLimits);
  if (!checked.ok()) {
    return InvalidField("CONSTRAINT_INVALID", field,
                        absl::StrCat(field, " is refused: ", checked.status().message()));
  }
  return TagReader(field).Read(Json::parse(tag));
}

}  // namespace rivulet
