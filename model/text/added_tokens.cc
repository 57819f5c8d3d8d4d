// SPDX-License-Identifier: Apache-2.0
#include "model/text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/utf8.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {
namespace {

// \w of Unicode's regular expressions: Alphabetic, M, Nd, Pc and the joiners. Of Alphabetic only
// the letters in circles and squares are in none of the categories.
bool IsWord(uint32_t c) {
  if (c == 0x200C || c == 0x200D) return true;
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

// The beginning of the code point that ends at `end`. REQUIRES: end > 0.
size_t BeginBefore(absl::string_view text, size_t end) {
  size_t begin = end - 1;
  while (IsUtf8Tail(text[begin])) --begin;
  return begin;
}

uint32_t CodePointAt(absl::string_view text, size_t at, size_t* length) {
  uint32_t code_point = 0;
  *length = DecodeUtf8(text.substr(at), &code_point);
  return code_point;
}

bool IsWordBefore(absl::string_view text, size_t end) {
  size_t length = 0;
  return end > 0 && IsWord(CodePointAt(text, BeginBefore(text, end), &length));
}

bool IsWordAt(absl::string_view text, size_t at) {
  size_t length = 0;
  return at < text.size() && IsWord(CodePointAt(text, at, &length));
}

// The beginning of the white space that ends at `end`, not before `least`.
size_t SpaceBefore(absl::string_view text, size_t end, size_t least) {
  size_t length = 0;
  while (end > least && IsWhiteSpace(CodePointAt(text, BeginBefore(text, end), &length))) {
    end = BeginBefore(text, end);
  }
  return end;
}

// The end of the white space that begins at `begin`.
size_t SpaceBehind(absl::string_view text, size_t begin) {
  size_t length = 0;
  while (begin < text.size() && IsWhiteSpace(CodePointAt(text, begin, &length))) begin += length;
  return begin;
}

absl::StatusOr<AddedToken> Read(const JsonValue& value, absl::string_view path) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields,
                           JsonReader::Of(kTokenizerRules, value, path,
                                          {"id", "content", "single_word", "lstrip", "rstrip",
                                           "normalized", "special"}));
  AddedToken token;
  RIVULET_RETURN_IF_ERROR(fields.Int("id", 0, kMaxVocabularyIds - 1, &token.id));
  RIVULET_RETURN_IF_ERROR(fields.Text("content", &token.content));
  RIVULET_RETURN_IF_ERROR(fields.Bool("single_word", &token.single_word, false));
  RIVULET_RETURN_IF_ERROR(fields.Bool("lstrip", &token.lstrip, false));
  RIVULET_RETURN_IF_ERROR(fields.Bool("rstrip", &token.rstrip, false));
  RIVULET_RETURN_IF_ERROR(fields.Bool("special", &token.special, false));
  RIVULET_RETURN_IF_ERROR(fields.Bool("normalized", &token.normalized, !token.special));
  return token;
}

}  // namespace

absl::Status AddedTokens::Add(const JsonValue& value, absl::string_view path, const BpeModel& model,
                              const Normalizer& normalizer) {
  RIVULET_ASSIGN_OR_RETURN(AddedToken token, Read(value, path));
  const std::string at = absl::StrCat(path, ".content");
  std::string needle = token.content;
  if (token.normalized) {
    TextBudget budget(kMaxAddedTokenBytes);
    const auto normalized = normalizer.Apply(AlignedText(needle, 0), &budget);
    if (!normalized.ok())
      return kTokenizerRules.Invalid(
          at, "is ", Quoted(token.content),
          ", which the normalizer does not finish: ", normalized.status().message());
    needle = std::string(normalized->text());
  }
  if (needle.empty() || std::max(needle.size(), token.content.size()) > kMaxAddedTokenBytes) {
    return kTokenizerRules.Invalid(at, "is ", Quoted(token.content), ", of ", needle.size(),
                                   " bytes; allowed: 1 to ", kMaxAddedTokenBytes);
  }
  const int32_t known = model.IdOf(token.content);
  const auto id = static_cast<size_t>(token.id);
  const bool taken = id < model.tokens().size() && !model.tokens()[id].empty() && known != token.id;
  if ((known >= 0 && known != token.id) || taken) {
    return kTokenizerRules.Invalid(
        absl::StrCat(path, ".id"), "is ", token.id, " for ", Quoted(token.content),
        "; model.vocab has ",
        known >= 0 ? absl::StrCat("the id ", known, " for it")
                   : absl::StrCat("another token of that id, ", Quoted(model.tokens()[id])));
  }
  ByteTrie& trie = token.normalized ? normalized_ : raw_;
  if (!trie.Insert(needle, static_cast<int32_t>(tokens_.size()))) {
    return kTokenizerRules.Invalid(at, "is ", Quoted(token.content), " a second time");
  }
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

absl::StatusOr<AddedTokens> AddedTokens::Create(JsonReader* file, const BpeModel& model,
                                                const Normalizer& normalizer) {
  AddedTokens made;
  constexpr char kField[] = "added_tokens";
  if (file->Find(kField) == nullptr) return made;
  RIVULET_RETURN_IF_ERROR(file->ForEach(kField, [&](const JsonValue& item, absl::string_view at) {
    return made.Add(item, at, model, normalizer);
  }));
  std::vector<bool> seen(kMaxVocabularyIds);
  for (size_t i = 0; i < made.tokens_.size(); ++i) {
    const auto id = static_cast<size_t>(made.tokens_[i].id);
    if (seen[id]) {
      return kTokenizerRules.Invalid(absl::StrCat(kField, "[", i, "].id"), "is ", id,
                                     " a second time");
    }
    seen[id] = true;
  }
  return made;
}

absl::Status AddedTokens::Split(absl::string_view text, bool normalized, bool parse_special_tokens,
                                TextBudget* budget, SegmentAction action) const {
  const ByteTrie& trie = normalized ? normalized_ : raw_;
  size_t done = 0;
  const auto close = [&action, &done](size_t end) {
    return done < end ? action({{done, end}, -1}) : absl::OkStatus();
  };
  for (size_t at = 0; trie.longest() > 0 && at < text.size();) {
    uint64_t steps = 0;
    const ByteTrie::Match match = trie.Longest(text.substr(at), &steps);
    if (!budget->Step(steps)) return budget->status();
    if (match.length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.value)];
    TextRange range{at, at + match.length};
    at = range.end;
    if (token.special && !parse_special_tokens) continue;
    if (token.single_word && (IsWordBefore(text, range.begin) || IsWordAt(text, range.end))) {
      continue;
    }
    if (token.lstrip) range.begin = SpaceBefore(text, range.begin, done);
    if (token.rstrip) range.end = SpaceBehind(text, range.end);
    if (!budget->Step(range.end - range.begin)) return budget->status();
    RIVULET_RETURN_IF_ERROR(close(range.begin));
    RIVULET_RETURN_IF_ERROR(action({range, token.id}));
    at = done = range.end;
  }
  return close(text.size());
}

}  // namespace rivulet
