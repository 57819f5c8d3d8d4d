// SPDX-License-Identifier: Apache-2.0
#include "model/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/text/json_fields.h"

namespace rivulet {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr uint32_t kMatchSteps = 10000;
constexpr uint32_t kMatchStepsPerByte = 16;
constexpr uint32_t kHeapKib = 65536;  // of one match

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
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

std::vector<TextRange> FindLiteral(absl::string_view subject, absl::string_view literal) {
  std::vector<TextRange> found;
  for (size_t at = 0; (at = subject.find(literal, at)) != absl::string_view::npos;) {
    found.push_back({at, at + literal.size()});
    at += literal.size();
  }
  return found;
}

}  // namespace

struct Pattern::Compiled {
  std::unique_ptr<pcre2_code, Freed<pcre2_code_free>> code;
  std::string field;
};

absl::StatusOr<Pattern> Pattern::Compile(absl::string_view pattern, absl::string_view field) {
  if (pattern.size() > kMaxPatternBytes) {
    return UnsupportedTokenizer(field, absl::StrCat("is a pattern of ", pattern.size(),
                                                    " bytes; allowed: at most ", kMaxPatternBytes));
  }
  RIVULET_ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern, field));
  std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what . does not match
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->field = std::string(field);
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                     translated.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset,
                                     context.get()));
  if (compiled->code == nullptr) {
    return UnsupportedTokenizer(field, absl::StrCat("is the pattern ", Quoted(pattern),
                                                    ", which PCRE2 refuses: ", MessageOf(code)));
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

absl::StatusOr<std::vector<TextRange>> Pattern::FindAll(absl::string_view subject,
                                                        TextBudget* budget) const {
  if (!budget->Step(subject.size())) return budget->status();
  if (compiled_ == nullptr) return FindLiteral(subject, literal_);
  const pcre2_code* code = compiled_->code.get();
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(),
                        kMatchSteps + kMatchStepsPerByte * static_cast<uint32_t>(subject.size()));
  pcre2_set_heap_limit(context.get(), kHeapKib);
  std::vector<TextRange> found;
  bool any = false;
  size_t at = 0, last_end = 0;
  while (at <= subject.size()) {
    const int result =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), at,
                    PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return InvalidField("TEXT_TOO_HARD", "text",
                          absl::StrCat("the tokenizer's ", compiled_->field,
                                       " gives up on this text: ", MessageOf(result)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[0] == ends[1] && any && last_end == ends[1]) {
      at = ends[1] < subject.size() ? ends[1] + CodePointBytes(subject[ends[1]]) : ends[1] + 1;
      continue;
    }
    found.push_back({ends[0], ends[1]});
    if (!budget->Step(1)) return budget->status();
    at = last_end = ends[1];
    any = true;
  }
  return found;
}

}  // namespace rivulet
