// SPDX-License-Identifier: Apache-2.0
// What constraints may say: the table of keywords and of regular expressions, and the refusals.
// That the library enforces each row: grammars_test.cc, tests/e2e/constraints.
#include "server/constraints/constraint.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

absl::StatusOr<std::string> Plain(Constraint::Kind kind, const std::string& text) {
  Constraint constraint;
  constraint.kind = kind;
  constraint.text = text;
  const absl::StatusOr<Grammar> grammar = GrammarOf(constraint);
  if (!grammar.ok()) return grammar.status();
  return grammar->text;
}

// The one schema of `{"$defs":{},"anyOf":[...]}`, without "$anchor".
std::string PlainSchema(const std::string& schema) {
  absl::StatusOr<std::string> plain = Plain(Constraint::Kind::kJsonSchema, schema);
  if (!plain.ok()) return std::string(plain.status().message());
  plain = std::regex_replace(*plain, std::regex(R"re(,"\$anchor":"\d+")re"), "");
  const std::string begin = R"({"$defs":{},"anyOf":[)";
  if (plain->substr(0, begin.size()) != begin) return *plain;
  return plain->substr(begin.size(), plain->size() - begin.size() - 2);
}

TEST(SchemaTest, IsWrittenInTheFormThatTheLibraryEnforces) {
  const std::pair<std::string, std::string> rows[] = {
      {R"(true)", "{}"},
      {R"({"title":"x","description":"y","default":1,"examples":[],"$id":"z"})", "{}"},
      {R"({"type":"object"})", R"({"type":"object","additionalProperties":{}})"},
      {R"({"type":"object","additionalProperties":false})",
       R"({"type":"object","additionalProperties":false})"},
      {R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":1})",
       R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":1})"},
      {R"({"properties":{"a":{},"b":{"type":"null"}},"required":["b"],"additionalProperties":true})",
       R"({"type":"object","properties":{"a":{},"b":{"type":"null"}},"required":["b"],)"
       R"("additionalProperties":false})"},
      {R"({"type":"array"})", R"({"type":"array","items":{}})"},
      {R"({"items":{"type":"null"},"minItems":1,"maxItems":2})",
       R"({"type":"array","items":{"type":"null"},"minItems":1,"maxItems":2})"},
      {R"({"type":"array","prefixItems":[{"type":"null"}]})",
       R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})"},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       R"({"type":"string","pattern":"([\\u{20}-\\u{21}\\u{23}-\\u{5b}\\u{5d}-\\u{7f}]|[\\u{80}-\\u{7ff}])"
       R"(|[\\u{800}-\\u{d7ff}\\u{e000}-\\u{ffff}]|[\\u{10000}-\\u{10ffff}]){2,3}"})"},
      {R"({"type":["integer","null"],"minimum":1.0,"exclusiveMaximum":9})",
       R"({"anyOf":[{"type":"integer","exclusiveMaximum":9,"minimum":1},{"type":"null"}]})"},
      {R"({"type":"string","enum":["a","b"]})", R"({"enum":["a","b"]})"},
      {R"({"const":{"a":[1,2.5,null]}})", R"({"enum":[{"a":[1,"rivulet number 2.5",null]}]})"},
      {R"({"allOf":[{"type":"null"}],"title":"x"})", R"({"anyOf":[{"type":"null"}]})"},
      {R"({"oneOf":[{"type":"null"},{"type":"integer"},{"const":"a"},{"const":"b"}]})",
       R"({"anyOf":[{"type":"null"},{"type":"integer"},{"enum":["a"]},{"enum":["b"]}]})"},
  };
  for (const auto& [schema, plain] : rows) EXPECT_EQ(PlainSchema(schema), plain) << schema;
}

TEST(SchemaTest, ReferencesAreReadOnceAndMayBeRecursive) {
  EXPECT_EQ(
      PlainSchema(R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"items":{"$ref":"#"}}}})"),
      R"({"$defs":{"0":{"type":"array","items":{"$ref":"#/$defs/1"}},"1":{"$ref":"#/$defs/0"}},)"
      R"("anyOf":[{"$ref":"#/$defs/0"}]})");
  // Told apart by a property that both require.
  EXPECT_EQ(
      PlainSchema(R"({"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{)"
                  R"("a":{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},)"
                  R"("b":{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}}})")
          .substr(0, 9),
      R"({"$defs":)");
}

TEST(SchemaTest, EverythingElseIsRefusedWithItsPointer) {
  std::string many = R"({"oneOf":[{"const":0})";  // too many to compare each with each
  for (int i = 1; i < 1000; ++i) absl::StrAppend(&many, R"(,{"const":)", i, "}");
  many += "]}";
  const std::pair<std::string, std::string> rows[] = {
      {R"({"type":"array","uniqueItems":true})", "/uniqueItems"},
      {R"({"properties":{"a/b":{"not":{}}}})", "/properties/a~1b/not"},
      {R"({"items":{"type":"string","pattern":"a","maxLength":3}})", "/items"},
      {R"({"type":"string","format":"uri"})", "/format"},
      {R"({"type":"string","pattern":"\""})", "/pattern"},
      {R"({"type":"integer","multipleOf":2})", "/multipleOf"},
      {R"({"type":"integer","maxLength":2})", "/maxLength"},
      {R"({"type":"integer","minimum":0.5})", "/minimum"},
      {R"({"type":"number","maximum":1e300})", "/maximum"},
      {R"({"type":"number","minimum":2.5,"maximum":2})", "/minimum"},
      {R"({"type":"number","exclusiveMinimum":true})", "/exclusiveMinimum"},
      {R"({"type":"date"})", "/type"},
      {R"({"type":[]})", "/type"},
      {R"({"required":["a"]})", "/required"},
      {R"({"properties":{"a":{}},"required":["b"]})", "/required"},
      {R"({"properties":{"a":{}},"additionalProperties":{"type":"null"}})",
       "/additionalProperties"},
      {R"({"properties":{"a":{}},"minProperties":1})", "/minProperties"},
      {R"({"type":"object","minProperties":2})", "/minProperties"},
      {R"({"type":"object","patternProperties":{}})", "/patternProperties"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "/minItems"},
      {R"({"type":"array","maxItems":65537})", "/maxItems"},
      {R"({"type":"array","maxItems":-1})", "/maxItems"},
      {R"({"prefixItems":[{}],"type":"array","minItems":2})", "/minItems"},
      {R"({"prefixItems":[{},{}],"type":"array","items":{},"maxItems":1})", "/maxItems"},
      {R"({"items":false,"contains":{}})", "/contains"},
      {R"({"$ref":"#/$defs/a","type":"null","$defs":{"a":{}}})", "/type"},
      {R"({"$ref":"#/$defs/b","$defs":{"a":{}}})", "/$ref"},
      {R"({"$ref":"other.json"})", "/$ref"},
      {R"({"enum":[]})", "/enum"},
      {R"({"enum":[1,"a"],"type":"string"})", "/enum"},
      {R"({"anyOf":[],"type":"null"})", "/type"},
      {R"({"anyOf":[]})", "/anyOf"},
      {R"({"anyOf":[{"type":"null"},false]})", "/anyOf/1"},
      {R"({"allOf":[{},{}]})", "/allOf"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "/oneOf"},
      {R"({"oneOf":[{"type":"object"},{"type":"object"}]})", "/oneOf"},
      {R"({"oneOf":[{"const":1},{"const":1.0}]})", "/oneOf"},
      {R"({"oneOf":[{},{"type":"null"}]})", "/oneOf"},
      {R"({"oneOf":[{"const":{"a":1,"b":2}},{"const":{"b":2,"a":1}}]})", "/oneOf"},
      {R"({"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{)"
       R"("a":{"type":"object","properties":{"k":{"$ref":"#/$defs/a"}},"required":["k"]},)"
       R"("b":{"type":"object","properties":{"k":{"$ref":"#/$defs/b"}},"required":["k"]}}})",
       "/oneOf"},
      {many, "/oneOf"},
      {R"({"items":{"$ref":"#/anyOf/1"},"$comment":[]})", "/items/$ref"},
      {R"({"properties":{"a":{"$id":"x"}}})", "/properties/a/$id"},
      {R"({"if":{}})", "/if"},
  };
  for (const auto& [schema, pointer] : rows) {
    const absl::StatusOr<std::string> plain = Plain(Constraint::Kind::kJsonSchema, schema);
    ASSERT_FALSE(plain.ok()) << schema << " " << *plain;
    const ErrorDetail detail = GetErrorDetail(plain.status());
    EXPECT_EQ(detail.reason, "CONSTRAINT_UNSUPPORTED") << schema;
    EXPECT_EQ(detail.field, "constraint.json_schema") << schema;
    const std::string place = "constraint.json_schema, at \"" + pointer + "\"";
    EXPECT_EQ(plain.status().message().substr(0, place.size()), place) << schema;
  }
  for (const char* const schema : {"", "{", R"({"a":1,"a":2})", "{} {}"}) {
    const absl::Status status = Plain(Constraint::Kind::kJsonSchema, schema).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "CONSTRAINT_INVALID") << schema;
  }
}

std::string Tag(const std::string& format) {
  return R"({"type":"structural_tag","format":)" + format + "}";
}
std::string Xml(const std::string& schema) {
  return R"({"type":"json_schema","style":"qwen_xml","json_schema":)" + schema + "}";
}

TEST(StructuralTagTest, EverythingElseIsRefusedWithItsPointer) {
  std::string deep = R"({"type":"any_text"})", pointer = "/format";
  for (int i = 0; i < 16; ++i) {
    deep = R"({"type":"star","content":)" + deep + "}";
    pointer += "/content";
  }
  // A parameter with ten thousand branches.
  std::string wide = R"({"properties":{"p":{"$ref":"#/$defs/0"}},"$defs":{)";
  for (int i = 0; i < 4; ++i) {
    const std::string next = absl::StrCat(R"({"$ref":"#/$defs/)", i + 1, R"("})");
    absl::StrAppend(&wide, "\"", i, R"(":{"anyOf":[)", next);
    for (int j = 0; j < 9; ++j) absl::StrAppend(&wide, ",", next);
    wide += "]},";
  }
  wide += R"("4":{"type":"null"}}})";
  const std::string tag = R"({"begin":"<a>","content":{"type":"any_text"},"end":"</a>"})";
  const auto triggered = [&](const std::string& triggers, const std::string& more) {
    return R"({"type":"triggered_tags","tags":[)" + tag + R"(],"triggers":)" + triggers + more +
           "}";
  };
  const std::pair<std::string, std::string> rows[] = {
      {"5", ""},
      {R"({"format":{"type":"any_text"}})", "/type"},
      {R"({"type":"structural_tag","format":{"type":"any_text"},"x":1})", "/x"},
      {R"({"type":"structural_tag"})", "/format"},
      {Tag(R"({})"), "/format/type"},
      {Tag(R"({"type":"grammar","grammar":"root ::= \"a\""})"), "/format/type"},
      {Tag(R"({"type":["tag"]})"), "/format/type"},
      {Tag(R"({"type":"any_text","max_chars":1})"), "/format/max_chars"},
      {Tag(R"({"type":"any_text","excludes":[""]})"), "/format/excludes"},
      {Tag(R"({"type":"const_string","value":1})"), "/format/value"},
      {Tag(R"({"type":"sequence","elements":[]})"), "/format/elements"},
      {Tag(R"({"type":"or","elements":[{"type":"any_text"},7]})"), "/format/elements/1"},
      {Tag(R"({"type":"plus"})"), "/format/content"},
      {Tag(deep), pointer},
      {Tag(R"({"type":"regex","pattern":"a**"})"), "/format/pattern"},
      {Tag(R"({"type":"regex","pattern":1})"), "/format/pattern"},
      {Tag(R"({"type":"tag","begin":"","content":{"type":"any_text"},"end":"b"})"),
       "/format/begin"},
      {Tag(R"({"type":"tag","begin":"a","content":{"type":"any_text"},"end":[]})"), "/format/end"},
      {Tag(R"({"type":"tag","begin":"a","content":{"type":"any_text"},"end":["b",""]})"),
       "/format/end"},
      {Tag(R"({"type":"tags_with_separator","tags":[{"type":"any_text"}],"separator":""})"),
       "/format/tags/0/type"},
      {Tag(R"({"type":"tags_with_separator","separator":"","tags":[]})"), "/format/tags"},
      {Tag(triggered(R"(["<a>"])", R"(,"at_least_one":1)")), "/format/at_least_one"},
      {Tag(triggered(R"([])", "")), "/format/tags/0/begin"},
      {Tag(triggered(R"(["<b>"])", "")), "/format/tags/0/begin"},
      {Tag(triggered(R"(["<a>","x"])", "")), "/format/triggers/1"},
      {Tag(triggered(R"(["<a","<"])", "")), "/format/triggers/1"},
      {Tag(triggered(R"(["<a>"])", R"(,"excludes":["x<a>y"])")), "/format/triggers/0"},
      {Tag(triggered(R"(["<a>"])", R"(,"excludes":["a"])")), "/format/triggers/0"},
      {Tag(R"({"type":"tag","begin":"a","end":">","content":)" + triggered(R"(["<a>"])", "") + "}"),
       "/format/content/triggers/0"},
      {Tag(R"({"type":"json_schema","style":"glm_xml","json_schema":true})"), "/format/style"},
      {Tag(R"({"type":"json_schema"})"), "/format/json_schema"},
      {Tag(R"({"type":"json_schema","json_schema":{"properties":{"a":{"not":{}}}}})"),
       "/format/json_schema/properties/a/not"},
      {Tag(R"({"type":"json_schema","json_schema":{"$ref":"#/$defs/a","$defs":{"a":{"if":1}}}})"),
       "/format/json_schema/$defs/a/if"},
      {Tag(Xml(R"({"type":"array"})")), "/format/json_schema"},
      {Tag(Xml(R"({"type":"object","maxProperties":1})")), "/format/json_schema"},
      {Tag(Xml(R"({"anyOf":[{"type":"object"},{"type":"object"}]})")), "/format/json_schema"},
      {Tag(Xml(R"({"$ref":"#"})")), "/format/json_schema"},
      {Tag(Xml(R"({"properties":{"a>":{}}})")), "/format/json_schema/properties/a>"},
      {Tag(Xml(R"({"properties":{"":{}}})")), "/format/json_schema/properties/"},
      {Tag(Xml(R"({"properties":{"a":{"type":"string","maxLength":129}}})")),
       "/format/json_schema/properties/a"},
      {Tag(Xml(R"({"properties":{"a":{"enum":["b","\n</parameter>"]}}})")),
       "/format/json_schema/properties/a"},
      {Tag(Xml(R"({"properties":{"a":{"anyOf":[{"$ref":"#/properties/a"}]}}})")),
       "/format/json_schema/properties/a"},
      {Tag(Xml(wide)), "/format/json_schema/properties/p"},
  };
  for (const auto& [text, at] : rows) {
    const absl::StatusOr<std::string> plain = Plain(Constraint::Kind::kStructuralTag, text);
    ASSERT_FALSE(plain.ok()) << text << " " << *plain;
    const ErrorDetail detail = GetErrorDetail(plain.status());
    EXPECT_EQ(detail.reason, "CONSTRAINT_UNSUPPORTED") << text;
    EXPECT_EQ(detail.field, "constraint.structural_tag") << text;
    const std::string place = "constraint.structural_tag, at \"" + at + "\"";
    EXPECT_EQ(plain.status().message().substr(0, place.size()), place) << text;
  }
  const absl::Status status = Plain(Constraint::Kind::kStructuralTag, "{").status();
  EXPECT_EQ(GetErrorDetail(status).reason, "CONSTRAINT_INVALID");
}

TEST(PatternTest, IsWrittenWithSetsOfCodePoints) {
  const std::pair<std::string, std::string> rows[] = {
      {"^ab$", R"(\u{61}\u{62})"},
      {"(?:a|(?<x1>b))*?c{2}d{2,}e{2,3}?", R"((\u{61}|(\u{62}))*\u{63}{2}\u{64}{2,}\u{65}{2,3})"},
      {R"([a-c\-x]\.\x41\u00e9\u{1F600})",
       R"([\u{2d}-\u{2d}\u{61}-\u{63}\u{78}-\u{78}]\u{2e}\u{41}\u{e9}\u{1f600})"},
      {"\xC3\xA9", R"(\u{e9})"},
      {R"(\d\t[\b]\0)", R"([\u{30}-\u{39}]\u{9}\u{8}\u{0})"},
      {"[^\\n-\\u{10fffe}]", R"(([\u{0}-\u{9}]|\u{10ffff}))"},
      {".",
       R"(([\u{e}-\u{7f}\u{0}-\u{9}\u{b}-\u{c}]|[\u{80}-\u{7ff}]|[\u{800}-\u{2027}\u{202a}-\u{d7ff}\u{e000}-\u{ffff}]|[\u{10000}-\u{10ffff}]))"},
      // Not first in a set: "^"; not before a hexadecimal digit: a control character.
      {R"(\^[\^][\^-b][\^x])",
       R"(\u{5e}\u{5e}[\u{5f}-\u{62}\u{5e}-\u{5e}][\u{78}-\u{78}\u{5e}-\u{5e}])"},
      {R"([\x01\^-b])", R"([\u{5f}-\u{62}\u{1}-\u{1}\u{5e}-\u{5e}])"},
      {R"([\x01ae-\x7f])", R"([\u{61}-\u{61}\u{65}-\u{7f}\u{1}-\u{1}])"},
  };
  for (const auto& [pattern, plain] : rows) {
    const absl::StatusOr<std::string> found = Plain(Constraint::Kind::kRegex, pattern);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, plain) << pattern;
  }
}

TEST(PatternTest, WhatIsNotRegularOrAmbiguousIsRefusedWithItsByte) {
  const std::pair<std::string, int> rows[] = {
      {"a(?=b)", 1},    {"(?<=a)", 0}, {"(?i)a", 0},    {"a\\1", 1},        {"\\bx", 0},
      {"\\p{L}", 0},    {"a**", 2},    {"*a", 0},       {"a{2}{3}", 4},     {"{2}", 0},
      {"a{,3}", 1},     {"a{3,2}", 1}, {"a{65537}", 1}, {"(a", 2},          {"a)", 1},
      {"[a", 0},        {"[b-a]", 0},  {"[]", 0},       {"[\\d-z]", 0},     {"a^b", 1},
      {"a$b", 1},       {"\\", 0},     {"\\x4", 0},     {"\\u{110000}", 0}, {"\\q", 0},
      {"(?<a-b>c)", 0}, {"\\01", 0},
  };
  for (const auto& [pattern, byte] : rows) {
    const absl::Status status = Plain(Constraint::Kind::kRegex, pattern).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "CONSTRAINT_UNSUPPORTED") << pattern;
    const std::string place = "constraint.regex, byte " + std::to_string(byte) + ":";
    EXPECT_EQ(status.message().substr(0, place.size()), place) << pattern;
  }
}

TEST(ConstraintTest, SizesAreLimited) {
  Constraint constraint;
  constraint.kind = Constraint::Kind::kChoices;
  const auto field = [&constraint] { return GetErrorDetail(GrammarOf(constraint).status()).field; };
  EXPECT_EQ(field(), "constraint.choices");
  constraint.choices = {"a", ""};
  EXPECT_EQ(field(), "constraint.choices[1]");
  constraint.choices = {"a\"\n\xC3\xA9"};
  EXPECT_EQ(GrammarOf(constraint)->text, R"(root ::= "a\U00000022\U0000000a\U000000e9")");
  constraint.choices.resize(kMaxChoices + 1, "a");
  EXPECT_EQ(field(), "constraint.choices");
  constraint.choices = {std::string(kMaxConstraintBytes + 1, 'a')};
  EXPECT_EQ(field(), "constraint");
  constraint.choices = {"a"};
  constraint.after = {std::string(kMaxAfterBytes + 1, 'a')};
  EXPECT_EQ(field(), "constraint.after[0]");
  constraint.after.resize(kMaxAfter + 1, "a");
  EXPECT_EQ(field(), "constraint.after");
}

}  // namespace
}  // namespace rivulet
