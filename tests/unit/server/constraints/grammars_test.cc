// SPDX-License-Identifier: Apache-2.0
// Grammars with the library: what may follow, and what becomes of hostile ones. Skipped where
// rivulet-grammar was not built.
#include "server/constraints/grammars.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "model/base/error.h"
#include "model/base/program.h"
#include "tests/support/piece_tokenizer.h"

namespace rivulet {
namespace {

// Tokens 0 to 127 are the characters of ASCII; then those of kMore.
const std::vector<std::string> kMore = {"\":", "true", "</", "think>", "</think>", ">{", "<end>"};
constexpr int32_t kTrue = 129, kEnd = 134;

PieceTokenizer Tokenizer() {
  std::vector<std::string> pieces;
  for (int c = 0; c < 128; ++c) pieces.emplace_back(1, char(c));
  pieces.insert(pieces.end(), kMore.begin(), kMore.end());
  return PieceTokenizer(std::move(pieces));
}

std::string Program() { return ProgramFile().parent_path().parent_path() / "bin/rivulet-grammar"; }

class GrammarsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access(Program().c_str(), X_OK) != 0) GTEST_SKIP() << "no rivulet-grammar was built";
    grammars_ = CreateGrammars(tokenizer_, tokenizer_.size() + 3, {.program = Program()});
    grammars_->SetWake([this] { ++wakes_; });
  }

  static std::shared_ptr<ConstraintGrammar> Compile(ConstraintCompiler* grammars,
                                                    const Constraint& constraint) {
    const absl::StatusOr<Grammar> grammar = GrammarOf(constraint);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return grammars->Compile(*grammar, "tenant");
  }
  std::shared_ptr<ConstraintGrammar> Compile(Constraint::Kind kind, const std::string& text) {
    Constraint constraint;
    constraint.kind = kind;
    constraint.text = text;
    return Compile(grammars_.get(), constraint);
  }
  static absl::Status Await(const ConstraintGrammar& grammar) {
    while (!grammar.status()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return *grammar.status();
  }
  static std::string ReasonOf(const absl::Status& status) { return GetErrorDetail(status).reason; }

  static const ConstraintStep& Next(ConstraintMatcher* matcher, const std::string& text) {
    matcher->TakeForced();
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(c);
    return Push(matcher, tokens);
  }
  static const ConstraintStep& Push(ConstraintMatcher* matcher,
                                    const std::vector<int32_t>& tokens) {
    matcher->Push(tokens);
    while (matcher->step() == nullptr) std::this_thread::yield();
    return *matcher->step();
  }
  static bool Allows(const ConstraintStep& step, int32_t token) {
    return (step.mask[size_t(token) / 32] >> (token % 32) & 1) != 0;
  }
  // Whether `text` is a whole text of the grammar.
  static bool Accepts(ConstraintGrammar* grammar, const std::string& text) {
    const auto matcher = grammar->NewMatcher({.end_tokens = {kEnd}});
    const ConstraintStep& step = Next(matcher.get(), text);
    return step.kind == ConstraintStep::Kind::kEnd ||
           (step.kind == ConstraintStep::Kind::kChoice && Allows(step, kEnd));
  }

  const PieceTokenizer tokenizer_ = Tokenizer();
  std::atomic<int> wakes_{0};
  std::shared_ptr<ConstraintCompiler> grammars_;
};

using Kind = Constraint::Kind;
using StepKind = ConstraintStep::Kind;

TEST_F(GrammarsTest, TriedTokensHaveMasksAndChangeNothing) {
  const auto grammar = Compile(Kind::kRegex, "(abc|abd|axyz)+");
  ASSERT_EQ(Await(*grammar), absl::OkStatus());
  // Also before the text begins.
  for (const std::vector<std::string>& after : {std::vector<std::string>{}, {"</think>"}}) {
    for (const bool forced : {false, true}) {
      const MatcherSpec spec = {.forced = forced, .end_tokens = {kEnd}, .after = after};
      const auto matcher = grammar->NewMatcher(spec);
      const std::string begin = after.empty() ? "a" : "so</thi";
      const ConstraintStep before = Next(matcher.get(), begin);
      const std::vector<std::string> tried = after.empty()
                                                 ? std::vector<std::string>{"bca", "xyz", "bq", "q"}
                                                 : std::vector<std::string>{"nk>abda", "s", "nk>q"};
      for (const std::string& text : tried) {
        std::vector<int32_t> tokens(text.begin(), text.end());
        const auto masks = matcher->Try(tokens);
        EXPECT_EQ(Push(matcher.get(), {}).mask, before.mask) << text;  // behind the masks' answers
        bool has_bits = true;
        for (size_t i = 0; i < tokens.size(); ++i) {
          const auto fresh = grammar->NewMatcher(spec);
          const ConstraintStep& step = Next(fresh.get(), begin + text.substr(0, i + 1));
          has_bits = has_bits && step.kind == StepKind::kChoice && step.forced.empty();
          const std::vector<uint32_t> bits = has_bits ? step.mask : std::vector<uint32_t>();
          EXPECT_TRUE(std::ranges::equal(masks[i]->Bits(), bits)) << text << " " << i;
        }
      }
    }
  }
}

TEST_F(GrammarsTest, EveryRowOfTheTableIsEnforced) {
  struct Row {
    std::string schema;
    std::vector<std::string> good, bad;
  };
  const Row rows[] = {
      {R"({"type":"object"})", {"{}", R"({"a":[1,{"b":null}]})"}, {"[]", "{", R"({"a"})"}},
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"null"}},"required":["b"]})",
       {R"({"a":1,"b":null})", R"({ "b" : null })"},
       {R"({"a":1})", R"({"b":null,"a":1})", R"({"a":"x","b":null})", R"({"b":null,"c":1})"}},
      {R"({"type":"object","additionalProperties":{"type":"boolean"},"minProperties":1,"maxProperties":2})",
       {R"({"x":true})", R"({"x":true,"y":false})"},
       {"{}", R"({"x":1})", R"({"x":true,"y":true,"z":true})"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})",
       {"[1]", "[1, 22]"},
       {"[]", "[1,2,3]", "[1.5]", "[1,]"}},
      // The library takes the two properties for the same schema, but for what we add.
      {R"({"properties":{"a":{"properties":{"title":{"type":"string"}},"required":["title"]},)"
       R"("b":{"properties":{"title":{"type":"integer"}},"required":["title"]}},"required":["a","b"]})",
       {R"({"a":{"title":"x"},"b":{"title":5}})"},
       {R"({"a":{"title":"x"},"b":{"title":"x"}})", R"({"a":{"title":5},"b":{"title":5}})"}},
      {R"({"type":"array","items":{"$ref":"#/$defs/x/anyOf/1"},"$defs":{"x":{"anyOf":[{},{"const":1}]}}})",
       {"[1,1]"},
       {"[2]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"minItems":2,"maxItems":2})",
       {"[null,true]"},
       {"[null]", "[]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"}],"items":{"type":"boolean"},"maxItems":3})",
       {"[]", "[null]", "[null,true,true]"},
       {"[true]", "[null,null]", "[null,true,true,true]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}]})",
       {"[null,true]", "[null]"},
       {"[null,true,1]", "[true,null]"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("abc")"},
       {R"("a")", R"("abcd")", "\"a\tb\"", R"("a\b")"}},
      {R"({"type":"string","pattern":"^a.[^b]+$"})",
       {R"("axy")", R"("a--c")"},
       {R"("ab")", R"("axb")", "\"a\"x\"", "\"a\\x\"", "\"axy\n\""}},
      {R"({"type":"string","format":"date"})", {R"("2026-11-30")"}, {R"("2026-13-01")", R"("x")"}},
      {R"({"type":"string","format":"duration"})",
       {R"("P1Y2M3DT4H5M6S")", R"("PT30S")", R"("P2W")", R"("P1DT2M")"},
       {R"("P")", R"("PT")", R"("P1DT")", R"("1D")", R"("P1D2W")"}},
      {R"({"type":"string","format":"email"})",
       {R"("a.b+c@x-1.example.com")"},
       {R"("a..b@x.co")", R"(".a@x.co")", R"("a.@x.co")", R"("a@co")"}},
      {R"({"type":"string","format":"hostname"})",
       {R"("a")", R"("x-1.example.com")"},
       {R"("")", R"("-a.b")", R"("a-.b")", R"("a.")", R"("a..b")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::")", R"("::1")", R"("2001:db8::1")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")",
        R"("1::")"},
       {R"("1:2:3:4:5:6:7")", R"("1:2:3:4:5:6:7::8")", R"(":1")", R"("12345::")", R"("1::2::3")"}},
      {R"({"type":"string"})", {R"("a\"\\\u00e9")"}, {"\"\n\"", R"("\x")", "a"}},
      {R"({"type":"integer","minimum":-5,"exclusiveMaximum":12})",
       {"-5", "0", "11"},
       {"-6", "12", "1.0", "01", "-0"}},
      {R"({"type":"number","minimum":0.5,"maximum":2})",
       {"0.5", "1.25", "2"},
       {"0.4", "2.1", "-1"}},
      {R"({"type":["boolean","null"]})", {"true", "null"}, {"1", "\"\""}},
      {R"({"enum":["a b",1,null,{"x":[]}]})", {R"("a b")", "1", "null"}, {"2", "\"a\""}},
      {R"({"enum":[0.1,[-2.5,{"a":1e30}],12345678901234567890]})",
       {"0.1", R"([-2.5,{"a":1e+30}])", "12345678901234567890"},
       {"0.10000000000000001", R"("0.1")", "1.2345678901234567e+19"}},
      {R"({"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#"}}]})",
       {"null", "[]", "[[],[null,[]]]"},
       {"[1]", "[[]", "{}"}},
      {R"({"oneOf":[{"type":"null"},{"type":"boolean"}]})", {"null", "true"}, {"1"}},
  };
  for (const Row& row : rows) {
    const auto grammar = Compile(Kind::kJsonSchema, row.schema);
    ASSERT_EQ(Await(*grammar), absl::OkStatus()) << row.schema;
    for (const std::string& text : row.good) {
      EXPECT_TRUE(Accepts(grammar.get(), text)) << row.schema << " " << text;
    }
    for (const std::string& text : row.bad) {
      EXPECT_FALSE(Accepts(grammar.get(), text)) << row.schema << " " << text;
    }
  }
}

// Structural tags: of a format, of calls in free text, of parameters in XML and of one of them.
std::string TagOf(const std::string& format) {
  return R"({"type":"structural_tag","format":)" + format + "}";
}
std::string Triggered(const std::string& more) {
  return TagOf(R"({"type":"triggered_tags","triggers":["<f>"],"tags":[{"begin":"<f>","content":)"
               R"({"type":"json_schema","json_schema":{"enum":[0.1,"</"]}},"end":"</f>"}])" +
               more + "}");
}
std::string Parameters(const std::string& schema) {
  return TagOf(R"({"type":"json_schema","style":"qwen_xml","json_schema":)" + schema + "}");
}
std::string Parameter(const std::string& schema) {
  return Parameters(R"({"properties":{"a":)" + schema +
                    R"(},"required":["a"],"$defs":{"s":{"type":"string"},"u":{"enum":[7,"u"]}}})");
}
std::string Written(const std::string& value) {
  return "<parameter=a>\n" + value + "\n</parameter>";
}

TEST_F(GrammarsTest, EveryFormatOfAStructuralTagIsEnforced) {
  struct Row {
    std::string tag;
    std::vector<std::string> good, bad;
  };
  const std::string call = "<f>0.1</f>";
  const Row rows[] = {
      {TagOf(
           R"({"type":"sequence","elements":[{"type":"optional","content":{"type":"const_string","value":"x\n\"\\"}},)"
           R"({"type":"plus","content":{"type":"regex","pattern":"[ab]c?"}},{"type":"star","content":)"
           R"({"type":"const_string","value":"d"}},{"type":"or","elements":[{"type":"const_string","value":""},)"
           R"({"type":"regex","pattern":"^$"},{"type":"const_string","value":"1"}]}]})"),
       {"a", "x\n\"\\acbdd1", "bd"},
       {"x\n\"\\", "da", "a11", "xa"}},
      {TagOf(R"({"type":"any_text","excludes":["ab"]})"), {"", "a\nb</f>"}, {"ab", "xaby"}},
      {TagOf(R"({"type":"tag","begin":"<","content":{"type":"any_text"},"end":[">","$$"]})"),
       {"<>", "<a$b$$", "<<>"},
       {"<a>b>", "<a$$$$", "a>", "<"}},
      {TagOf(R"({"type":"tags_with_separator","separator":", ","tags":[{"type":"tag","begin":"<",)"
             R"("content":{"type":"regex","pattern":"a"},"end":">"}]})"),
       {"", "<a>", "<a>, <a>"},
       {"<a>, ", "<a><a>", "<>"}},
      {TagOf(
           R"({"type":"tags_with_separator","separator":"","tags":[{"begin":"<",)"
           R"("content":{"type":"regex","pattern":"a"},"end":">"}],"at_least_one":true,"stop_after_first":true})"),
       {"<a>"},
       {"", "<a><a>"}},
      {Triggered(""),
       {"", "a<f", "a" + call + call + "b"},
       {"a<f>", "<f>a", "<f>0.10000000000000001</f>", call + "<f>"}},
      {Triggered(R"(,"excludes":["b"])"), {"a" + call + "a"}, {"b", call + "b"}},
      {Triggered(R"(,"at_least_one":true)"), {call, call + "b<f>\"</\"</f>"}, {"", "a" + call}},
      {Triggered(R"(,"stop_after_first":true)"), {"", "a" + call}, {call + "a", call + call}},
      {Triggered(R"(,"stop_after_first":true,"at_least_one":true)"), {call}, {"", "a", call + "a"}},
      // Parameters in XML: those that are named, in their order.
      {Parameters(
           R"({"properties":{"a":{"type":"null"},"b":{"type":"boolean"},"c":{}},"required":["b"]})"),
       {"<parameter=b>\ntrue\n</parameter>",
        Written("null") + "\n<parameter=b>\ntrue\n</parameter><parameter=c>\n\n</parameter>\n"},
       {"", Written("null"), "<parameter=b>\ntrue\n</parameter>" + Written("null"),
        "<parameter=b>true</parameter>", "<parameter=b>\ntrue\n</parameter>\n\n"}},
      {Parameters(R"({"type":"object"})"),
       {"", Written("x") + "<parameter=b-1>\n[\n</parameter>"},
       {"x", "<parameter=a b>\nx\n</parameter>"}},
      {Parameters("true"), {"", Written("x")}, {"{}"}},
      {Parameters(R"({"type":"object","additionalProperties":false})"), {""}, {Written("x")}},
      {Parameters(
           R"({"$ref":"#/$defs/o","$defs":{"o":{"type":"object","additionalProperties":{"type":"null"}}}})"),
       {Written("null")},
       {Written("x")}},
      // A string is its text, and may be anything but the end of a parameter.
      {Parameter(R"({"type":"string"})"),
       {Written(""), Written("\"a\n</parameter</parameter>\n\\")},
       {Written("a") + "\n" + Written("b"), "", Written("\n</parameter>")}},
      {Parameter(R"({"$ref":"#/$defs/s"})"), {Written("a b")}, {"a b"}},
      {Parameter(R"({"type":"string","pattern":"^[^a]+$"})"),
       {Written("<>")},
       {Written("a"), Written("\n"), Written("")}},
      {Parameter(R"({"type":"string","maxLength":2})"),
       {Written(""), Written("</")},
       {Written("abc"), Written("\n")}},
      {Parameter(R"({"type":"string","format":"date"})"),
       {Written("2026-11-30")},
       {Written("2026-13-01"), Written("\"2026-11-30\"")}},
      {Parameter(R"({"enum":["a b","1",null,0.1,["c"]]})"),
       {Written("a b"), Written("1"), Written("null"), Written("0.1"), Written(R"(["c"])")},
       {Written("\"a b\""), Written("c"), Written("rivulet number 0.1"), Written("")}},
      // JSON of every other value.
      {Parameter(R"({"type":["integer","null"],"maximum":9})"),
       {Written("9"), Written("null")},
       {Written("10"), Written("x"), Written("\"9\"")}},
      {Parameter(
           R"({"anyOf":[{"$ref":"#/$defs/u"},{"type":"array","items":{"$ref":"#/$defs/s"}}]})"),
       {Written("u"), Written("7"), Written(R"(["u"])")},
       {Written("[u]"), Written("\"u\""), Written("8")}},
      {Parameter(
           R"({"type":"object","properties":{"s":{"type":"string","minLength":2,"maxLength":200}}})"),
       {Written("{}"), Written("{\n\"s\": \"" + std::string(200, 'x') + "\"}")},
       {Written("{\"s\":\"" + std::string(201, 'x') + "\"}"), Written("{\"s\":\"x\"}"),
        Written("")}},
  };
  for (const Row& row : rows) {
    const auto grammar = Compile(Kind::kStructuralTag, row.tag);
    ASSERT_EQ(Await(*grammar), absl::OkStatus()) << row.tag;
    for (const std::string& text : row.good) {
      EXPECT_TRUE(Accepts(grammar.get(), text)) << row.tag << " " << text;
    }
    for (const std::string& text : row.bad) {
      EXPECT_FALSE(Accepts(grammar.get(), text)) << row.tag << " " << text;
    }
  }
}

TEST_F(GrammarsTest, StructuralTagsHaveTheRulesOfOtherConstraints) {
  const auto once = Compile(Kind::kStructuralTag, Triggered(R"(,"stop_after_first":true)"));
  ASSERT_EQ(Await(*once), absl::OkStatus());
  auto matcher = once->NewMatcher({.forced = true, .end_tokens = {kEnd}});
  // In free text no control token follows, and no token without a text.
  EXPECT_TRUE(Allows(Next(matcher.get(), ""), kEnd));
  matcher = once->NewMatcher({.forced = true});
  const ConstraintStep& free = Next(matcher.get(), "");
  EXPECT_TRUE(Allows(free, 'z') && Allows(free, kTrue));
  EXPECT_FALSE(Allows(free, kEnd) || Allows(free, kEnd + 1));
  Next(matcher.get(), "a<f>0.1<");
  EXPECT_EQ(matcher->step()->kind, StepKind::kEnd);  // complete, and nothing may follow
  EXPECT_EQ(std::string(matcher->step()->forced.begin(), matcher->step()->forced.end()), "/f>");
  const auto late = once->NewMatcher({.end_tokens = {kEnd}, .after = {"</think>"}});
  EXPECT_FALSE(Allows(Next(late.get(), "<f>z"), kEnd));
  EXPECT_EQ(Next(late.get(), "</think><f>0.1</f>").kind, StepKind::kEnd);
  EXPECT_EQ(ReasonOf(Await(*Compile(Kind::kStructuralTag,
                                    TagOf(R"({"type":"const_string","value":"\u00e9"})")))),
            "CONSTRAINT_NOT_SPELLABLE");
}

TEST_F(GrammarsTest, LongStringsHaveTheirLengths) {
  const std::string schema =
      R"({"properties":{"a":{"type":"string","minLength":150,"maxLength":300},)"
      R"("b":{"type":"string","minLength":2,"maxLength":200},"c":{"type":"string","minLength":129}},)"
      R"("required":["a","b","c"]})";
  const auto grammar = Compile(Kind::kJsonSchema, schema);
  ASSERT_EQ(Await(*grammar), absl::OkStatus());
  const auto text = [](int a, int b, int c) {
    return absl::StrFormat(R"({"a":"%s","b":"%s","c":"%s"})", std::string(size_t(a), 'x'),
                           std::string(size_t(b), 'y'), std::string(size_t(c), 'z'));
  };
  for (const auto& [a, b, c] : std::vector<std::array<int, 3>>{
           {150, 2, 129}, {151, 100, 130}, {299, 199, 1000}, {300, 200, 129}}) {
    EXPECT_TRUE(Accepts(grammar.get(), text(a, b, c))) << a << " " << b << " " << c;
  }
  for (const auto& [a, b, c] : std::vector<std::array<int, 3>>{
           {149, 100, 200}, {301, 100, 200}, {200, 1, 200}, {200, 201, 200}, {200, 100, 128}}) {
    EXPECT_FALSE(Accepts(grammar.get(), text(a, b, c))) << a << " " << b << " " << c;
  }
  const auto matcher = grammar->NewMatcher({.end_tokens = {kEnd}});
  std::string written = R"({"a":")";
  const ConstraintStep* step = &Next(matcher.get(), written);
  for (int length = 0; length <= 300; ++length) {
    EXPECT_EQ(Allows(*step, '"'), length >= 150) << length;
    EXPECT_EQ(Allows(*step, 'x'), length < 300) << length;
    EXPECT_EQ(Allows(*step, kTrue), length + 4 <= 300) << length;
    EXPECT_FALSE(Allows(*step, '\\') || Allows(*step, '\n')) << length;
    if (length < 300) step = &Push(matcher.get(), {'x'});
  }
}

TEST_F(GrammarsTest, WhiteSpaceIsBounded) {
  const auto grammar = Compile(Kind::kJsonObject, "");
  ASSERT_EQ(Await(*grammar), absl::OkStatus());
  EXPECT_TRUE(Accepts(grammar.get(), "{" + std::string(12, ' ') + "}"));
  EXPECT_FALSE(Accepts(grammar.get(), "{" + std::string(13, ' ') + "}"));
}

TEST_F(GrammarsTest, ARegularExpressionMatchesTheWholeText) {
  const auto grammar = Compile(Kind::kRegex, R"(^(yes|no), [\w.]{2,3}|\x40)");
  ASSERT_EQ(Await(*grammar), absl::OkStatus());
  for (const char* text : {"yes, a.b", "no, __", "@"}) EXPECT_TRUE(Accepts(grammar.get(), text));
  for (const char* text : {"yes, a", "yes", "no, a-b", "@@", ""}) {
    EXPECT_FALSE(Accepts(grammar.get(), text)) << text;
  }
}

TEST_F(GrammarsTest, AnExpressionMeansTheSameInEachOfTheLibrarysWays) {
  // A large repetition makes the library print the expression, and read it again.
  for (const std::string large : {"", "|(abcdefgh){6000,7000}"}) {
    const auto grammar = Compile(Kind::kRegex, R"(\^[\^-b]{2}[^ -@][\x01a][\x01\^-b])" + large);
    ASSERT_EQ(Await(*grammar), absl::OkStatus());
    EXPECT_TRUE(Accepts(grammar.get(), "^^bA\x01^"));
    for (const char* text :
         {"x^bA\x01^", "^]bA\x01^", "^^b A^", "^^b5a^", "^^bA-^", "^^bA\x1a^", "^^bAax"}) {
      EXPECT_FALSE(Accepts(grammar.get(), text)) << text;
    }
  }
}

TEST_F(GrammarsTest, OnlyTokensThatContinueTheTextAreAllowed) {
  const auto grammar = Compile(Kind::kJsonSchema, R"({"properties":{"ab":{"type":"boolean"}}})");
  ASSERT_EQ(Await(*grammar), absl::OkStatus());
  int answers = 0;
  const auto woken = [&](const ConstraintStep& step) -> const ConstraintStep& {
    for (++answers; wakes_ <= answers;) std::this_thread::yield();  // each answer has a wake-up
    return step;
  };
  while (wakes_ == 0) std::this_thread::yield();
  const auto matcher = grammar->NewMatcher({.forced = true, .end_tokens = {kEnd}});
  const ConstraintStep& first = woken(Next(matcher.get(), ""));
  EXPECT_EQ(first.forced, std::vector<int32_t>{'{'});
  EXPECT_TRUE(Allows(first, '"') && Allows(first, '}') && Allows(first, ' '));
  EXPECT_FALSE(Allows(first, 'a') || Allows(first, kEnd) || Allows(first, kTrue));
  matcher->TakeForced();
  const ConstraintStep& key = woken(Push(matcher.get(), {'"'}));
  EXPECT_EQ(key.forced, (std::vector<int32_t>{'a', 'b'}));  // then '"', or '":'
  matcher->TakeForced();
  const ConstraintStep& value = woken(Push(matcher.get(), {128}));
  EXPECT_TRUE(Allows(value, kTrue) && Allows(value, 't') && Allows(value, 'f'));
  const ConstraintStep& end = woken(Next(matcher.get(), "false}"));
  EXPECT_EQ(end.kind, StepKind::kEnd);
  EXPECT_TRUE(matcher->Bits().empty());
  EXPECT_GT(wakes_, 4);
}

TEST_F(GrammarsTest, ATokenThatCannotFollowFailsItsMatcherAlone) {
  const auto grammar = Compile(Kind::kRegex, "abc");
  ASSERT_EQ(Await(*grammar), absl::OkStatus());
  const auto bad = grammar->NewMatcher({}), good = grammar->NewMatcher({});
  const ConstraintStep& step = Next(bad.get(), "aac");
  EXPECT_EQ(step.kind, StepKind::kFailed);
  EXPECT_EQ(ReasonOf(step.status), "CONSTRAINT_MISMATCH");
  EXPECT_EQ(step.status.message().substr(0, 8), "Token 1 ");
  EXPECT_EQ(Next(good.get(), "ab").kind, StepKind::kChoice);
  // Written in parts, of which the first fails.
  EXPECT_EQ(Next(good.get(), "c" + std::string(20000, 'a')).kind, StepKind::kFailed);
  Next(grammar->NewMatcher({}).get(), "a");  // what is said about the other parts comes before
  EXPECT_EQ(good->step()->kind, StepKind::kFailed);
  EXPECT_EQ(good->step()->status.message().substr(0, 8), "Token 1 ");
}

TEST_F(GrammarsTest, TextBeginsBehindTheFirstOfAfter) {
  const auto grammar = Compile(Kind::kJsonObject, "");
  ASSERT_EQ(Await(*grammar), absl::OkStatus());
  const MatcherSpec spec = {
      .end_tokens = {kEnd}, .before = "<think>", .after = {"</think>", "END"}};
  auto matcher = grammar->NewMatcher(spec);
  const ConstraintStep& free = Next(matcher.get(), "so I think EN ");
  EXPECT_TRUE(Allows(free, 'z') && Allows(free, '}'));
  EXPECT_FALSE(Allows(free, kEnd));
  Next(matcher.get(), "</thin");
  const ConstraintStep& last = Next(matcher.get(), "k");
  EXPECT_TRUE(Allows(last, '>') && Allows(last, 133));  // ">{": a text begins with what is behind
  EXPECT_EQ(Next(matcher.get(), ">").kind, StepKind::kChoice);
  EXPECT_FALSE(Allows(*matcher->step(), 'z'));
  EXPECT_TRUE(Accepts(grammar.get(), "{}"));
  matcher = grammar->NewMatcher(spec);
  EXPECT_EQ(Push(matcher.get(), {'x', 130, 131}).kind, StepKind::kChoice);
  EXPECT_TRUE(Allows(*matcher->step(), '{') && !Allows(*matcher->step(), 'z'));
  for (const std::string after : {"</think>", "</think>\n"}) {
    matcher = grammar->NewMatcher({.before = "<think>\n</think>\n\n", .after = {after}});
    EXPECT_FALSE(Allows(Next(matcher.get(), ""), 'z')) << after;
  }
}

TEST_F(GrammarsTest, AVocabularyThatSpellsNoTextIsRefused) {
  // The vocabulary has ASCII. An object may have white space at many places before its name.
  const std::string name =
      R"({"type":"array","minItems":1,"items":{"properties":{"caf\u00e9":{}},"required":["caf\u00e9"]}})";
  EXPECT_EQ(ReasonOf(Await(*Compile(Kind::kJsonSchema, name))), "CONSTRAINT_NOT_SPELLABLE");
  EXPECT_EQ(ReasonOf(Await(*Compile(Kind::kRegex, "ab?\u00e9|[ab]{3}\u00e9+c"))),
            "CONSTRAINT_NOT_SPELLABLE");
  EXPECT_EQ(Await(*Compile(Kind::kRegex, "\u00e9|\n(\u00e9|a\u00e9|ab)")), absl::OkStatus());
  EXPECT_EQ(Await(*Compile(Kind::kJsonSchema, R"({"enum":["\u00e9"," \t ",["\u00e9"]]})")),
            absl::OkStatus());
}

TEST_F(GrammarsTest, HostileGrammarsEndWithAnErrorThatSaysWhy) {
  const auto grammar = Compile(Kind::kJsonSchema, R"({"$ref":"#"})");  // nothing satisfies it
  EXPECT_EQ(ReasonOf(Await(*grammar)), "CONSTRAINT_NOT_SPELLABLE");
  const auto accents = Compile(Kind::kRegex, "\xC3\xA9");
  EXPECT_EQ(ReasonOf(Await(*accents)), "CONSTRAINT_NOT_SPELLABLE");
  // Compiled at once, but a mask takes exponential time.
  std::string nested = "a";
  for (int i = 0; i < 800; ++i) nested = "(" + nested + "){1,9}";
  const auto slow = Compile(Kind::kRegex, nested);
  ASSERT_EQ(Await(*slow), absl::OkStatus());
  const auto matcher = slow->NewMatcher({}), other = slow->NewMatcher({});
  Next(other.get(), "");
  for (int i = 0; i < 1000 && Next(matcher.get(), "a").kind == StepKind::kChoice; ++i) continue;
  EXPECT_EQ(matcher->step()->kind, StepKind::kFailed);
  EXPECT_EQ(ReasonOf(matcher->step()->status), "CONSTRAINT_TOO_HARD");
  EXPECT_NE(matcher->step()->status.message().find("too much time"), std::string::npos)
      << matcher->step()->status;
  EXPECT_EQ(Next(other.get(), "a").kind, StepKind::kFailed);  // of the same process
  EXPECT_EQ(Await(*Compile(Kind::kRegex, std::string(60000, 'a'))), absl::OkStatus());
}

TEST_F(GrammarsTest, MoreGrammarsThanProcessesWait) {
  grammars_ = CreateGrammars(tokenizer_, tokenizer_.size(),
                             {.program = Program(), .max_kept = 1, .max_processes = 2});
  auto first = Compile(Kind::kRegex, "a");
  const auto second = Compile(Kind::kRegex, "b"), third = Compile(Kind::kRegex, "c");
  EXPECT_EQ(Await(*first), absl::OkStatus());
  EXPECT_EQ(Await(*second), absl::OkStatus());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(third->status());
  first.reset();
  EXPECT_EQ(Await(*third), absl::OkStatus());
}

TEST_F(GrammarsTest, AGrammarIsKeptUntilItFails) {
  const auto first = Compile(Kind::kRegex, "abc");
  ASSERT_EQ(Await(*first), absl::OkStatus());
  EXPECT_EQ(Compile(Kind::kRegex, "abc"), first);
  const auto matcher = first->NewMatcher({});
  ASSERT_EQ(Next(matcher.get(), "a").kind, StepKind::kChoice);
  // The only child of this process.
  pid_t child = 0;
  std::ifstream("/proc/thread-self/children") >> child;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (child == 0) std::ifstream(thread.path() / "children") >> child;
  }
  ASSERT_GT(child, 0);
  kill(child, SIGKILL);
  while (first->status()->ok()) std::this_thread::yield();
  const auto again = Compile(Kind::kRegex, "abc");  // maybe before `first` is forgotten
  EXPECT_EQ(ReasonOf(*first->status()), "CONSTRAINT_TOO_HARD");
  EXPECT_EQ(Next(matcher.get(), "b").kind, StepKind::kFailed);
  EXPECT_EQ(Await(*again), absl::OkStatus());
}

TEST_F(GrammarsTest, AServerWithoutTheLibrarySaysWhatToRun) {
  const std::string program = absl::StrFormat("%sgrammars_test-%d", ::testing::TempDir(), getpid());
  grammars_ = CreateGrammars(tokenizer_, tokenizer_.size(), {.program = program});
  const absl::Status status = Await(*Compile(Kind::kRegex, "a"));
  EXPECT_EQ(ReasonOf(status), "CONSTRAINT_UNAVAILABLE");
  EXPECT_NE(status.message().find("deploy/setup.sh --constraints"), std::string::npos);
  std::filesystem::create_symlink(Program(), program);
  EXPECT_EQ(Await(*Compile(Kind::kRegex, "a")), absl::OkStatus());  // a failure is not kept
  std::filesystem::remove(program);
}

}  // namespace
}  // namespace rivulet
