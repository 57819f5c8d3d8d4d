// SPDX-License-Identifier: Apache-2.0
#include "model/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr size_t kHeapBytes = size_t{64} << 20;  // most memory of one match

// A search within a window: the limit of PCRE2's tries, and the steps charged for them. The window
// doubles until a match is found.
constexpr size_t kWindowBytes = 64, kMaxWindowBytes = 4096;
constexpr uint32_t kWindowTries = 64, kWindowTriesPerByte = 4;
constexpr uint64_t kWindowSteps = 8;
// The number of characters of an item with a fixed count that cost one step.
constexpr uint32_t kCharactersPerStep = 16;

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Freed<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>>;

std::string MessageOf(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

size_t CodePointBytes(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

absl::Status ForEachLiteral(absl::string_view subject, absl::string_view literal,
                            TextBudget* budget, Pattern::MatchAction action) {
  for (size_t at = 0, found = 0; found != absl::string_view::npos;) {
    found = subject.find(literal, at);
    const size_t end = found == absl::string_view::npos ? subject.size() : found + literal.size();
    if (!budget->Step(end - at)) return budget->status();
    if (found != absl::string_view::npos) RIVULET_RETURN_IF_ERROR(action({found, end}));
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace

struct Pattern::Compiled {
  Code code, counted;  // counted: with a callout before each item
  uint64_t steps_per_item = 1;
  std::string field;
};

absl::StatusOr<Pattern> Pattern::Compile(absl::string_view pattern, absl::string_view field) {
  if (pattern.size() > kMaxPatternBytes) {
    return kTokenizerRules.Unsupported(field, "is a pattern of ", pattern.size(),
                                       " bytes; allowed: at most ", kMaxPatternBytes);
  }
  RIVULET_ASSIGN_OR_RETURN(const TranslatedPattern translated, TranslatePattern(pattern, field));
  std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // the character that . does not match
  int error = 0;
  const auto compile = [&](uint32_t options) {
    PCRE2_SIZE offset = 0;
    return Code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.text.data()),
                              translated.text.size(), options | PCRE2_UTF | PCRE2_UCP, &error,
                              &offset, context.get()));
  };
  auto compiled = std::make_shared<Compiled>();
  compiled->field = std::string(field);
  compiled->steps_per_item = 1 + translated.longest_interval / kCharactersPerStep;
  compiled->code = compile(0);
  if (compiled->code != nullptr) compiled->counted = compile(PCRE2_AUTO_CALLOUT);
  if (compiled->counted == nullptr) {
    return kTokenizerRules.Unsupported(field, "is the pattern ", Quoted(pattern),
                                       ", which PCRE2 refuses: ", MessageOf(error));
  }
  Pattern made;
  made.compiled_ = std::move(compiled);
  return made;
}

Pattern Pattern::Literal(absl::string_view text) {
  Pattern made;
  made.literal_ = std::string(text);
  return made;
}

// The matches in one subject.
class Pattern::Search {
 public:
  Search(const Compiled& pattern, absl::string_view subject, TextBudget* budget)
      : pattern_(pattern),
        subject_(subject),
        budget_(budget),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    pcre2_set_heap_limit(context_.get(),
                         static_cast<uint32_t>(std::min(kHeapBytes, budget->bytes_left()) >> 10));
    pcre2_set_callout(context_.get(), &Search::Count, this);
  }

  // The first match at `at` or behind it; begin is npos if there is none.
  absl::StatusOr<TextRange> Next(size_t at) {
    for (size_t window = kWindowBytes; at <= subject_.size();
         window = std::min(2 * window, kMaxWindowBytes)) {
      const size_t end = WindowEnd(at, window);
      const bool whole = end == subject_.size();
      pcre2_set_match_limit(context_.get(),
                            kWindowTries + kWindowTriesPerByte * static_cast<uint32_t>(end - at));
      const int result = Match(pattern_.code, at, end, whole ? 0 : PCRE2_PARTIAL_HARD);
      if (result >= 0 && (whole || Found().begin < end)) {
        if (!budget_->Step(kWindowSteps + Found().end - at)) return budget_->status();
        return Found();
      }
      if (!budget_->Step(kWindowSteps + end - at)) return budget_->status();
      if (result >= 0 || result == PCRE2_ERROR_NOMATCH) {
        if (whole) break;
        at = end;
        continue;
      }
      if (result == PCRE2_ERROR_PARTIAL) at = Found().begin;
      if (result != PCRE2_ERROR_PARTIAL && result != PCRE2_ERROR_MATCHLIMIT) return Failed(result);
      RIVULET_ASSIGN_OR_RETURN(const bool matches, MatchesAt(at));
      if (matches) return Found();
      if (at == subject_.size()) break;
      at += CodePointBytes(subject_[at]);
      window = kWindowBytes / 2;
    }
    return TextRange{absl::string_view::npos, absl::string_view::npos};
  }

 private:
  size_t WindowEnd(size_t at, size_t window) const {
    if (subject_.size() - at <= window) return subject_.size();
    size_t end = at + window;
    while (end < subject_.size() && IsUtf8Tail(subject_[end])) ++end;
    return end;
  }
  int Match(const Code& code, size_t at, size_t end, uint32_t options) {
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(subject_.data()), end, at,
                       options | PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  }
  TextRange Found() const {
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
    return {ends[0], ends[1]};
  }
  absl::Status Failed(int result) const {
    return InvalidField("TEXT_TOO_HARD", "text",
                        absl::StrCat("the tokenizer's ", pattern_.field,
                                     " gives up on this text: ", MessageOf(result)));
  }

  // Whether a match begins at `at`, whatever its length; counts the cost.
  absl::StatusOr<bool> MatchesAt(size_t at) {
    position_ = at;
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
    const int result = Match(pattern_.counted, at, subject_.size(), PCRE2_ANCHORED);
    if (result >= 0 || result == PCRE2_ERROR_NOMATCH) return result >= 0;
    if (!budget_->status().ok()) return budget_->status();
    return Failed(result);
  }
  static int Count(pcre2_callout_block* block, void* search) {
    Search& self = *static_cast<Search*>(search);
    const size_t position = block->current_position;
    const size_t moved = position < self.position_ ? 0 : position - self.position_;
    self.position_ = position;
    const bool goes_on = self.budget_->Step(self.pattern_.steps_per_item + moved);
    return goes_on ? 0 : PCRE2_ERROR_CALLOUT;
  }

  const Compiled& pattern_;
  const absl::string_view subject_;
  TextBudget* const budget_;
  const MatchData data_;
  const MatchContext context_;
  size_t position_ = 0;  // of the item before
};

absl::Status Pattern::ForEachMatch(absl::string_view subject, TextBudget* budget,
                                   MatchAction action) const {
  if (compiled_ == nullptr) return ForEachLiteral(subject, literal_, budget, action);
  Search search(*compiled_, subject, budget);
  bool any = false;
  for (size_t at = 0, last_end = 0; at <= subject.size();) {
    RIVULET_ASSIGN_OR_RETURN(const TextRange match, search.Next(at));
    if (match.begin == absl::string_view::npos) break;
    if (match.begin == match.end && any && last_end == match.end) {
      at = match.end < subject.size() ? match.end + CodePointBytes(subject[match.end])
                                      : match.end + 1;
      continue;
    }
    RIVULET_RETURN_IF_ERROR(action(match));
    at = last_end = match.end;
    any = true;
  }
  return absl::OkStatus();
}

}  // namespace rivulet
