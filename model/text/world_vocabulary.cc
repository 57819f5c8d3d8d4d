// SPDX-License-Identifier: Apache-2.0
#include "model/text/world_vocabulary.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"
#include "model/text/bpe.h"
#include "model/text/byte_trie.h"

namespace rivulet {
namespace {

constexpr size_t kMaxTokenBytes = 256;

// The value of `count` hexadecimal digits at the beginning of `text`, which are removed.
std::optional<uint32_t> TakeHex(size_t count, absl::string_view* text) {
  if (text->size() < count) return std::nullopt;
  uint32_t value = 0;
  for (const char c : text->substr(0, count)) {
    if (!absl::ascii_isxdigit(static_cast<uint8_t>(c))) return std::nullopt;
    const int digit = absl::ascii_isdigit(static_cast<uint8_t>(c))
                          ? c - '0'
                          : absl::ascii_tolower(static_cast<uint8_t>(c)) - 'a' + 10;
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  text->remove_prefix(count);
  return value;
}

// The value of the escape behind a backslash, which is removed from `text`. In bytes \xHH is a
// byte, else a code point.
bool TakeEscape(bool is_bytes, absl::string_view* text, std::string* out) {
  if (text->empty()) return false;
  const char kind = text->front();
  text->remove_prefix(1);
  constexpr absl::string_view kNames = "nrt\\'\"", kValues = "\n\r\t\\'\"";
  const size_t simple = kNames.find(kind);
  if (simple != absl::string_view::npos) {
    out->push_back(kValues[simple]);
    return true;
  }
  const size_t digits = kind == 'x' ? 2 : is_bytes ? 0 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  const auto value = digits == 0 ? std::nullopt : TakeHex(digits, text);
  if (!value.has_value()) return false;
  if (is_bytes) {
    out->push_back(static_cast<char>(*value));
    return true;
  }
  if (*value > 0x10FFFF || (*value >= 0xD800 && *value <= 0xDFFF)) return false;
  AppendUtf8(*value, out);
  return true;
}

// The bytes of the text between the quotes of a Python literal, or nullopt if it is not valid.
// `quote`: the character that it must not contain.
std::optional<std::string> Unescaped(absl::string_view text, bool is_bytes, char quote) {
  std::string bytes;
  while (!text.empty()) {
    const char c = text.front();
    text.remove_prefix(1);
    if (c == quote || (is_bytes && static_cast<uint8_t>(c) >= 0x80)) return std::nullopt;
    if (c != '\\') {
      bytes.push_back(c);
    } else if (!TakeEscape(is_bytes, &text, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

// The bytes of a Python literal, or nullopt if it is not one.
std::optional<std::string> BytesOfLiteral(absl::string_view literal) {
  const bool is_bytes = absl::ConsumePrefix(&literal, "b");
  if (literal.size() < 2 || literal.front() != literal.back() ||
      (literal.front() != '\'' && literal.front() != '"')) {
    return std::nullopt;
  }
  return Unescaped(literal.substr(1, literal.size() - 2), is_bytes, literal.front());
}

class WorldTokenizer : public TextTokenizer {
 public:
  // `number`: of the line, from 1.
  absl::Status AddLine(absl::string_view line, size_t number);
  // `bad` makes the error.
  template <typename Bad>
  absl::Status AddToken(int32_t id, const std::string& bytes, const Bad& bad);
  absl::Status CheckComplete() const;

  absl::StatusOr<TextTokens> Encode(absl::string_view text, const EncodeOptions& options,
                                    TextBudget* budget) const override;
  absl::string_view TokenBytes(int32_t id) const override {
    return id > 0 && id < size() ? absl::string_view(bytes_[static_cast<size_t>(id)]) : "";
  }
  bool IsSpecial(int32_t id) const override { return id == 0; }
  bool adds_leading_space() const override { return false; }
  int size() const override { return static_cast<int>(bytes_.size()); }

 private:
  ByteTrie trie_;
  std::vector<std::string> bytes_ = {""};  // of each id
};

absl::Status WorldTokenizer::AddLine(absl::string_view line, size_t number) {
  const auto bad = [number](absl::string_view what) {
    return InvalidField("INVALID_TOKENIZER", absl::StrCat("line ", number),
                        absl::StrCat("line ", number, " of the vocabulary ", what));
  };
  const size_t first = line.find(' '), last = line.rfind(' ');
  int32_t id = 0, length = 0;
  if (first == absl::string_view::npos || first == last ||
      !absl::SimpleAtoi(line.substr(0, first), &id) ||
      !absl::SimpleAtoi(line.substr(last + 1), &length)) {
    return bad(absl::StrCat("is ", Quoted(line), ", not an id, a literal and a length"));
  }
  if (id < 1 || id >= kMaxVocabularyIds) {
    return bad(absl::StrCat("has the id ", id, "; allowed: 1 to ", kMaxVocabularyIds - 1));
  }
  const auto bytes = BytesOfLiteral(line.substr(first + 1, last - first - 1));
  if (!bytes.has_value()) return bad(absl::StrCat("has no Python literal: ", Quoted(line)));
  if (bytes->empty() || bytes->size() > kMaxTokenBytes ||
      bytes->size() != static_cast<size_t>(std::max(length, 0))) {
    return bad(absl::StrCat("has a token of ", bytes->size(), " bytes and the length ", length,
                            "; allowed: the same, from 1 to ", kMaxTokenBytes));
  }
  return AddToken(id, *bytes, bad);
}

template <typename Bad>
absl::Status WorldTokenizer::AddToken(int32_t id, const std::string& bytes, const Bad& bad) {
  const auto at = static_cast<size_t>(id);
  if (bytes_.size() <= at) bytes_.resize(at + 1);
  if (!bytes_[at].empty()) return bad(absl::StrCat("has the id ", id, " a second time"));
  if (!trie_.Insert(bytes, id)) {
    return bad(absl::StrCat("has the token ", Quoted(bytes), " a second time"));
  }
  bytes_[at] = bytes;
  return absl::OkStatus();
}

absl::Status WorldTokenizer::CheckComplete() const {
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    uint64_t steps = 0;
    if (trie_.Longest(absl::string_view(&text, 1), &steps).length == 0) {
      return InvalidField("INVALID_TOKENIZER", "vocabulary",
                          absl::StrFormat("the vocabulary has no token for the byte 0x%02X", byte));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TextTokens> WorldTokenizer::Encode(absl::string_view text, const EncodeOptions&,
                                                  TextBudget* budget) const {
  RIVULET_RETURN_IF_ERROR(CheckText(text));
  TextTokens tokens;
  for (size_t at = 0; at < text.size();) {
    uint64_t steps = 0;
    const ByteTrie::Match match = trie_.Longest(text.substr(at), &steps);
    if (!budget->Step(steps) || !budget->Take(kBytesPerToken)) return budget->status();
    size_t begin = at, end = at + match.length;
    at = end;
    while (IsUtf8Tail(text[begin])) --begin;
    while (end < text.size() && IsUtf8Tail(text[end])) ++end;
    tokens.ids.push_back(match.value);
    tokens.spans.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  }
  return tokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextTokenizer>> ParseWorldVocabulary(absl::string_view file) {
  if (file.size() > kMaxTokenizerBytes) {
    return InvalidField("INVALID_TOKENIZER", "vocabulary",
                        absl::StrCat("the vocabulary has ", file.size(),
                                     " bytes; allowed: at most ", kMaxTokenizerBytes));
  }
  auto tokenizer = std::make_unique<WorldTokenizer>();
  for (size_t number = 1; !file.empty(); ++number) {
    const size_t end = std::min(file.find('\n'), file.size());
    absl::string_view line = file.substr(0, end);
    absl::ConsumeSuffix(&line, "\r");
    RIVULET_RETURN_IF_ERROR(tokenizer->AddLine(line, number));
    file.remove_prefix(std::min(end + 1, file.size()));
  }
  RIVULET_RETURN_IF_ERROR(tokenizer->CheckComplete());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<TextTokenizer>> CreateWorldTokenizer(
    const std::vector<std::string>& escaped) {
  auto tokenizer = std::make_unique<WorldTokenizer>();
  if (escaped.size() > static_cast<size_t>(kMaxVocabularyIds)) {
    return InvalidField("INVALID_TOKENIZER", "vocabulary",
                        absl::StrCat("the vocabulary has ", escaped.size(),
                                     " tokens; allowed: at most ", kMaxVocabularyIds));
  }
  for (size_t id = 1; id < escaped.size(); ++id) {
    if (escaped[id].empty()) continue;
    const auto bad = [&](absl::string_view what) {
      return InvalidField("INVALID_TOKENIZER", "vocabulary",
                          absl::StrCat("token ", id, " of the vocabulary ", what));
    };
    const auto bytes = Unescaped(escaped[id], /*is_bytes=*/true, '\0');
    if (!bytes.has_value() || bytes->empty() || bytes->size() > kMaxTokenBytes) {
      return bad(absl::StrCat("is ", Quoted(escaped[id]),
                              "; allowed: the escaped bytes of a Python literal, 1 to ",
                              kMaxTokenBytes));
    }
    RIVULET_RETURN_IF_ERROR(tokenizer->AddToken(static_cast<int32_t>(id), *bytes, bad));
  }
  RIVULET_RETURN_IF_ERROR(tokenizer->CheckComplete());
  return tokenizer;
}

}  // namespace rivulet
