// SPDX-License-Identifier: Apache-2.0
// From Oniguruma's Ruby syntax to PCRE2's: the table in pattern.h.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/text/pattern.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {
namespace {

// Oniguruma's class, as in `tokenizers`: with some fractions and superscripts of Latin-1.
constexpr absl::string_view kWord =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

class Translator {
 public:
  Translator(absl::string_view pattern, absl::string_view field)
      : pattern_(pattern), field_(field) {}

  absl::StatusOr<TranslatedPattern> Translate() {
    while (at_ < pattern_.size()) {
      RIVULET_RETURN_IF_ERROR(in_class_ ? InClass() : Outside());
    }
    return TranslatedPattern{out_, longest_interval_};
  }

 private:
  absl::Status Refuse(absl::string_view what) const {
    return kTokenizerRules.Unsupported(field_, "is the pattern ", Quoted(pattern_), ", which has ",
                                       what, " at byte ", at_, "; that is not supported");
  }
  absl::string_view Rest() const { return pattern_.substr(at_); }
  void Copy(size_t count) {
    absl::StrAppend(&out_, pattern_.substr(at_, count));
    at_ += count;
  }

  absl::Status Outside() {
    switch (pattern_[at_]) {
      case '\\':
        return Escape();
      case '[':
        in_class_ = true;
        class_begins_ = true;
        Copy(absl::StartsWith(Rest(), "[^") ? 2 : 1);
        return absl::OkStatus();
      case '(':
        return Group();
      case '{':
        return Interval();
      case '^':
      case '$':
        return Refuse("an anchor");
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  absl::Status Group() {
    if (!absl::StartsWith(Rest(), "(?")) {
      if (absl::StartsWith(Rest(), "(*")) return Refuse("a verb");
      Copy(1);
      return absl::OkStatus();
    }
    for (const absl::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"}) {
      if (absl::StartsWith(Rest(), opening)) {
        Copy(opening.size());
        return absl::OkStatus();
      }
    }
    return Refuse("a group of another kind");
  }

  // {n}, {n,} and {n,m}. Ruby reads {,m} and a + behind the brace otherwise than PCRE2.
  absl::Status Interval() {
    size_t end = at_ + 1;
    int commas = 0;
    while (end < pattern_.size() && (absl::ascii_isdigit(static_cast<uint8_t>(pattern_[end])) ||
                                     (pattern_[end] == ',' && end > at_ + 1 && commas == 0))) {
      commas += pattern_[end] == ',';
      ++end;
    }
    if (end == at_ + 1 || end >= pattern_.size() || pattern_[end] != '}') {
      return Refuse("an interval of another form than {n}, {n,} or {n,m}");
    }
    if (end + 1 < pattern_.size() && pattern_[end + 1] == '+') return Refuse("a + behind {n,m}");
    uint32_t least = 0;
    const absl::string_view numbers = pattern_.substr(at_ + 1, end - at_ - 1);
    if (!absl::SimpleAtoi(numbers.substr(0, numbers.find(',')), &least)) {
      return Refuse("an interval that is too long");
    }
    longest_interval_ = std::max(longest_interval_, least);
    Copy(end + 1 - at_);
    return absl::OkStatus();
  }

  absl::Status InClass() {
    const char c = pattern_[at_];
    if (c == '[') return Refuse("a class in a class");
    if (absl::StartsWith(Rest(), "&&")) return Refuse("&&");
    if (c == ']' && class_begins_) return Refuse("an empty class");
    if (c == ']') in_class_ = false;
    class_begins_ = false;
    if (c == '\\') return Escape();
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (at_ + 1 >= pattern_.size()) return Refuse("a \\ with nothing behind it");
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') return Property(c);
    if (c == 'u') return Hexadecimal();
    absl::string_view made;
    switch (c) {
      case 's':
        made = R"(\p{White_Space})";
        break;
      case 'S':
        made = R"(\P{White_Space})";
        break;
      case 'd':
        made = R"(\p{Nd})";
        break;
      case 'D':
        made = R"(\P{Nd})";
        break;
      case 'v':
        made = R"(\x{0B})";
        break;
      case 'n':
      case 'r':
      case 't':
      case 'f':
        made = pattern_.substr(at_, 2);
        break;
      case 'w':
      case 'W':
        if (in_class_) return Refuse(absl::StrCat("\\", absl::string_view(&c, 1), " in a class"));
        absl::StrAppend(&out_, c == 'w' ? "[" : "[^", kWord, "]");
        break;
      default:
        if (!absl::ascii_ispunct(static_cast<uint8_t>(c)) && c != ' ') {
          return Refuse(absl::StrCat("the escape \\", Escaped(absl::string_view(&c, 1))));
        }
        made = pattern_.substr(at_, 2);
    }
    absl::StrAppend(&out_, made);
    at_ += 2;
    return absl::OkStatus();
  }

  // \uHHHH
  absl::Status Hexadecimal() {
    const absl::string_view digits = pattern_.substr(at_ + 2, 4);
    for (const char c : digits) {
      if (!absl::ascii_isxdigit(static_cast<uint8_t>(c)))
        return Refuse("a \\u without four digits");
    }
    if (digits.size() != 4) return Refuse("a \\u without four digits");
    absl::StrAppend(&out_, "\\x{", digits, "}");
    at_ += 6;
    return absl::OkStatus();
  }

  // \p{L}, \p{Lu}, \p{Han}, and with ^ or P the complement.
  absl::Status Property(char c) {
    const size_t end = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || end == absl::string_view::npos) {
      return Refuse("a \\p without {}");
    }
    absl::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const bool negated = absl::ConsumePrefix(&name, "^") != (c == 'P');
    for (const char letter : name) {
      if (!absl::ascii_isalpha(static_cast<uint8_t>(letter)) && letter != '_') {
        return Refuse("a property with an invalid name");
      }
    }
    if (name.empty() || name == "LC") return Refuse("a property without a name that we know");
    absl::StrAppend(&out_, negated ? "\\P{" : "\\p{", name.size() > 2 ? "sc:" : "", name, "}");
    at_ = end + 1;
    return absl::OkStatus();
  }

  const absl::string_view pattern_;
  const absl::string_view field_;
  size_t at_ = 0;
  bool in_class_ = false;
  bool class_begins_ = false;
  uint32_t longest_interval_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<TranslatedPattern> TranslatePattern(absl::string_view pattern,
                                                   absl::string_view field) {
  return Translator(pattern, field).Translate();
}

}  // namespace rivulet
