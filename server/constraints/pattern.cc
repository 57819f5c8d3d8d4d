// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/pattern.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

unsigned char Byte(char c) { return static_cast<unsigned char>(c); }

constexpr uint32_t kLastCodePoint = 0x10ffff;
constexpr int kMaxRepetitions = 1 << 16;

using Range = std::pair<uint32_t, uint32_t>;  // first and last code point
using Set = std::vector<Range>;

const Set kDigits = {{'0', '9'}};
const Set kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// White space of both ECMA 262 and Python, and that of one of them alone.
const Set kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},
                     {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                     {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
const Set kOtherSpaces = {{0x1c, 0x1f}, {0x85, 0x85}, {0xfeff, 0xfeff}};
const Set kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const Set kSurrogates = {{0xd800, 0xdfff}};
const Set kEscapedInJson = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};

Set Complement(Set set) {
  std::sort(set.begin(), set.end());
  Set rest;
  uint32_t next = 0;  // the first code point that may be in the rest
  for (const auto& [first, last] : set) {
    if (first > next) rest.push_back({next, first - 1});
    next = std::max(next, last + 1);
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

Set Without(const Set& set, const Set& removed) {
  Set rest = Complement(set);
  rest.insert(rest.end(), removed.begin(), removed.end());
  return Complement(std::move(rest));
}

const std::map<char, Set> kEscapes = {
    {'d', kDigits},        {'D', Complement(kDigits)},
    {'w', kWord},          {'W', Complement(kWord)},
    {'s', kSpaces},        {'S', Without(Complement(kSpaces), kOtherSpaces)},
    {'t', {{'\t', '\t'}}}, {'n', {{'\n', '\n'}}},
    {'v', {{'\v', '\v'}}}, {'f', {{'\f', '\f'}}},
    {'r', {{'\r', '\r'}}}};

// The library prints a set without escapes but "\x1f", and reads it again. So no set begins with
// "^", and no hexadecimal digit follows a control character.
void OrderForPrint(Set* set) {
  std::stable_partition(set->begin(), set->end(), [](Range range) { return range.second > 0x1f; });
  if (set->front().first != '^') return;
  if (set->front().second == '^') {
    set->erase(set->begin());
  } else {
    set->front().first = '_';
  }
  set->push_back({'^', '^'});
}

// A set in the library's words. A set of code points of two lengths in UTF-8 would hold bytes that
// are no UTF-8, so each length has a set.
std::string SetText(const Set& set) {
  std::vector<std::string> texts;
  uint32_t begin = 0;
  for (const uint32_t end : {0x80u, 0x800u, 0x10000u, kLastCodePoint + 1}) {
    Set part;
    for (const auto& [first, last] : set) {
      if (first < end && last >= begin) {
        part.push_back({std::max(first, begin), std::min(last, end - 1)});
      }
    }
    begin = end;
    if (part.empty()) continue;
    if (part.size() == 1 && part[0].first == part[0].second) {
      texts.push_back(absl::StrFormat("\\u{%x}", part[0].first));
      continue;
    }
    OrderForPrint(&part);
    std::string text = "[";
    for (const auto& [first, last] : part) {
      absl::StrAppendFormat(&text, "\\u{%x}-\\u{%x}", first, last);
    }
    texts.push_back(text + "]");
  }
  return texts.size() == 1 ? texts[0] : absl::StrCat("(", absl::StrJoin(texts, "|"), ")");
}

class PatternReader {
 public:
  PatternReader(absl::string_view pattern, bool in_json, absl::string_view field,
                absl::string_view place)
      : pattern_(pattern), in_json_(in_json), field_(field), place_(place) {}

  absl::StatusOr<std::string> Read() {
    if (!IsUtf8(pattern_)) return Unsupported("the pattern is not UTF-8");
    Skip('^');
    while (at_ < pattern_.size()) {
      begin_ = at_;
      RIVULET_RETURN_IF_ERROR(ReadPart());
    }
    if (open_ > 0) return Unsupported("a group is not closed");
    return std::move(out_);
  }

 private:
  absl::Status Unsupported(absl::string_view why) const {
    return InvalidField("CONSTRAINT_UNSUPPORTED", field_,
                        absl::StrCat(place_, ", byte ", begin_, ": ", why, "."));
  }
  bool Skip(char c) {
    const bool found = at_ < pattern_.size() && pattern_[at_] == c;
    if (found) ++at_;
    return found;
  }
  bool SkipText(absl::string_view text) {
    const bool found = pattern_.substr(at_, text.size()) == text;
    if (found) at_ += text.size();
    return found;
  }

  absl::Status ReadPart() {
    const char c = pattern_[at_];
    if (c == '$' && at_ + 1 == pattern_.size()) return ++at_, absl::OkStatus();
    if (c == '^' || c == '$') return Unsupported("an anchor is allowed only at the ends");
    if (c == '*' || c == '+' || c == '?' || c == '{') {
      return Unsupported("a quantifier has nothing to repeat; write \\ before the character");
    }
    if (c == '|') return out_ += pattern_[at_++], absl::OkStatus();
    if (c == '(') return OpenGroup();
    if (c == ')') {
      if (open_ == 0) return Unsupported("\")\" closes no group");
      --open_;
      out_ += pattern_[at_++];
      return ReadQuantifier();
    }
    RIVULET_ASSIGN_OR_RETURN(const Set set, ReadAtom());
    Set allowed = Without(set, kSurrogates);
    if (in_json_) allowed = Without(allowed, kEscapedInJson);
    if (allowed.empty()) {
      return Unsupported(in_json_ ? "JSON escapes every character that this matches"
                                  : "no character matches");
    }
    absl::StrAppend(&out_, SetText(allowed));
    return ReadQuantifier();
  }

  absl::Status OpenGroup() {
    ++at_;
    if (SkipText("?<") && pattern_.substr(at_, 1) != "=" && pattern_.substr(at_, 1) != "!") {
      while (at_ < pattern_.size() &&
             (absl::ascii_isalnum(Byte(pattern_[at_])) || pattern_[at_] == '_')) {
        ++at_;
      }
      if (!Skip('>')) return Unsupported("the name of a group is letters, digits and _");
    } else if (!SkipText("?:") && (Skip('?') || pattern_[at_ - 1] == '<')) {
      return Unsupported("lookahead, lookbehind and flags are not supported");
    }
    ++open_;
    out_ += "(";
    return absl::OkStatus();
  }

  // A quantifier behind a group or a set, if one is there. It may be lazy, which denotes the same
  // texts.
  absl::Status ReadQuantifier() {
    begin_ = at_;
    if (at_ == pattern_.size() || !absl::StrContains("*+?{", pattern_[at_]))
      return absl::OkStatus();
    const size_t from = at_;
    if (Skip('{')) {
      const std::optional<int> least = ReadNumber();
      std::optional<int> most = least;
      if (Skip(',')) most = ReadNumber();
      if (!least || !Skip('}')) return Unsupported("a quantifier is {n}, {n,} or {n,m}");
      if (std::max(*least, most.value_or(0)) > kMaxRepetitions || most.value_or(*least) < *least) {
        return Unsupported(
            absl::StrCat("a quantifier counts to ", kMaxRepetitions, ", and not down"));
      }
    } else {
      ++at_;
    }
    // For the library "b" matches (ab+)?, but not (ab+){0,1}.
    const absl::string_view quantifier = pattern_.substr(from, at_ - from);
    absl::StrAppend(&out_, quantifier == "?" ? "{0,1}" : quantifier);
    Skip('?');
    begin_ = at_;
    if (at_ < pattern_.size() && absl::StrContains("*+?{", pattern_[at_])) {
      return Unsupported("a quantifier follows a quantifier");
    }
    return absl::OkStatus();
  }

  std::optional<int> ReadNumber() {
    const size_t from = at_;
    int number = 0;
    while (at_ < pattern_.size() && absl::ascii_isdigit(Byte(pattern_[at_]))) {
      number = std::min(number * 10 + (pattern_[at_++] - '0'), kMaxRepetitions + 1);
    }
    if (at_ == from) return std::nullopt;
    return number;
  }

  // The set of code points that one character, escape, class or dot matches.
  absl::StatusOr<Set> ReadAtom() {
    if (Skip('.')) return Complement(kLineEnds);
    if (!Skip('[')) return ReadOne(false);
    const bool negated = Skip('^');
    Set set;
    while (!Skip(']')) {
      if (at_ == pattern_.size()) return Unsupported("a class is not closed");
      RIVULET_ASSIGN_OR_RETURN(Set one, ReadOne(true));
      const bool range =
          at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']';
      if (range) {
        ++at_;
        RIVULET_ASSIGN_OR_RETURN(const Set end, ReadOne(true));
        const bool single = one.size() == 1 && one[0].first == one[0].second && end.size() == 1 &&
                            end[0].first == end[0].second && one[0].first <= end[0].first;
        if (!single) return Unsupported("a range goes from one character up to one character");
        one = {{one[0].first, end[0].first}};
      }
      set.insert(set.end(), one.begin(), one.end());
    }
    return negated ? Complement(std::move(set)) : set;
  }

  absl::StatusOr<Set> ReadOne(bool in_class) {
    if (Skip('\\')) return ReadEscape(in_class);
    uint32_t c = 0;
    at_ += DecodeUtf8(pattern_.substr(at_), &c);
    return Set{{c, c}};
  }

  absl::StatusOr<Set> ReadEscape(bool in_class) {
    if (at_ == pattern_.size()) return Unsupported("the pattern ends with \\");
    const char c = pattern_[at_];
    if (absl::ascii_ispunct(Byte(c))) return ++at_, Set{{c, c}};
    ++at_;
    if (const auto known = kEscapes.find(c); known != kEscapes.end()) return known->second;
    if (c == 'b' && in_class) return Set{{'\b', '\b'}};
    const bool octal = at_ < pattern_.size() && absl::ascii_isdigit(Byte(pattern_[at_]));
    if (c == '0' && !octal) return Set{{0, 0}};
    if (c == 'x') return ReadHex(2);
    if (c == 'u') return Skip('{') ? ReadHex(0) : ReadHex(4);
    return Unsupported(absl::StrCat("the escape \\", Escaped({&c, 1}), " is not supported"));
  }

  // `digits` 0: as many as there are, and a "}".
  absl::StatusOr<Set> ReadHex(size_t digits) {
    uint32_t code = 0;
    size_t read = 0;
    while (at_ < pattern_.size() && absl::ascii_isxdigit(Byte(pattern_[at_])) && read < 6 &&
           (digits == 0 || read < digits)) {
      const char c = absl::ascii_tolower(Byte(pattern_[at_++]));
      code = code * 16 + uint32_t(c <= '9' ? c - '0' : c - 'a' + 10);
      ++read;
    }
    const bool whole = digits == 0 ? read > 0 && Skip('}') : read == digits;
    if (!whole || code > kLastCodePoint) return Unsupported("the escape is not a code point");
    return Set{{code, code}};
  }

  const absl::string_view pattern_;
  const bool in_json_;
  const absl::string_view field_, place_;
  size_t at_ = 0;
  size_t begin_ = 0;  // of the part that is being read, for messages
  int open_ = 0;      // groups
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> PlainPattern(absl::string_view pattern, bool in_json,
                                         absl::string_view field, absl::string_view place) {
  return PatternReader(pattern, in_json, field, place).Read();
}

}  // namespace rivulet
