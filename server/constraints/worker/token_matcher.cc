// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/worker/token_matcher.h"

#include <algorithm>
#include <utility>

namespace rivulet {
namespace {

constexpr size_t kMaxTail = 256;    // bytes; more than the longest of Constraint::after
constexpr size_t kManyTokens = 64;  // so many that one of them continues well
constexpr std::string_view kSpaces = " \t\r\n";

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Whether `text` holds the end of `after` and more behind it, for some text before.
bool MayComplete(std::string_view text, std::string_view after) {
  for (size_t part = 1; part < after.size() && part < text.size(); ++part) {
    if (text.substr(0, part) == after.substr(after.size() - part)) return true;
  }
  const size_t found = text.find(after);
  return found != std::string_view::npos && found + after.size() < text.size();
}

}  // namespace

TokenMatcher::TokenMatcher(const Vocabulary* vocabulary, const xgrammar::CompiledGrammar& grammar,
                           MatcherStart start)
    : vocabulary_(*vocabulary),
      matcher_(grammar),
      start_(std::move(start)),
      free_(!start_.after.empty()),
      tail_(start_.before) {
  for (std::string_view before = start_.before; !before.empty(); before.remove_suffix(1)) {
    for (const std::string& after : start_.after) free_ = free_ && !EndsWith(before, after);
    if (kSpaces.find(before.back()) == std::string_view::npos) break;
  }
  for (size_t token = 0; free_ && token < vocabulary_.texts.size(); ++token) {
    const auto completes = [&](const std::string& after) {
      return MayComplete(vocabulary_.texts[token], after);
    };
    if (std::any_of(start_.after.begin(), start_.after.end(), completes)) {
      may_end_free_.push_back(static_cast<int32_t>(token));
    }
  }
}

bool TokenMatcher::Accept(int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= vocabulary_.texts.size()) return false;
  // The library logs a token without text.
  if (!free_) {
    const bool has_text = !vocabulary_.grammar_texts[static_cast<size_t>(token)].empty();
    const bool follows = has_text && matcher_.AcceptToken(token);
    if (follows) ++steps_;
    return follows;
  }
  const std::string_view text = vocabulary_.texts[static_cast<size_t>(token)];
  const std::optional<size_t> end = EndOfAfter(text);
  if (end) {
    free_ = false;
    return AcceptsRest(text.substr(*end));
  }
  tail_.append(text);
  if (tail_.size() > 2 * kMaxTail) tail_.erase(0, tail_.size() - kMaxTail);
  return true;
}

std::optional<size_t> TokenMatcher::EndOfAfter(std::string_view text) const {
  const std::string whole = tail_ + std::string(text);
  std::optional<size_t> first;
  for (const std::string& after : start_.after) {
    // Not in what was written before alone.
    const size_t from = tail_.size() - std::min(tail_.size(), after.size() - 1);
    const size_t found = whole.find(after, from);
    if (found == std::string::npos) continue;
    const size_t end = found + after.size() - tail_.size();
    if (!first || end < *first) first = end;
  }
  return first;
}

bool TokenMatcher::AcceptsRest(std::string_view text) {
  if (text.empty()) return true;
  const bool follows = matcher_.AcceptString(std::string(text));
  if (follows) ++steps_;
  return follows;
}

void TokenMatcher::Set(int32_t token, bool allowed, std::vector<uint32_t>* mask) const {
  uint32_t& word = (*mask)[static_cast<size_t>(token) / 32];
  const uint32_t bit = uint32_t{1} << (token % 32);
  word = allowed ? word | bit : word & ~bit;
}

// The library sets bits behind the last token, too.
void TokenMatcher::ClearRest(std::vector<uint32_t>* mask) const {
  const size_t last = vocabulary_.texts.size() % 32;
  if (last > 0) mask->back() &= (uint32_t{1} << last) - 1;
}

std::vector<uint32_t> TokenMatcher::FreeMask() {
  std::vector<uint32_t> mask((vocabulary_.texts.size() + 31) / 32, ~uint32_t{0});
  ClearRest(&mask);
  for (const int32_t token : start_.end_tokens) Set(token, false, &mask);
  for (const int32_t token : may_end_free_) {
    const std::string_view text = vocabulary_.texts[static_cast<size_t>(token)];
    const std::optional<size_t> end = EndOfAfter(text);
    if (!end || *end == text.size()) continue;
    if (AcceptsRest(text.substr(*end))) {
      matcher_.Rollback(1);
      --steps_;
    } else {
      Set(token, false, &mask);
    }
  }
  return mask;
}

TokenMatcher::Step TokenMatcher::Following(int32_t* only) {
  using Kind = FromGrammar::Kind;
  Step step;
  *only = -1;
  if (free_) {
    step.mask = FreeMask();
    return step;
  }
  step.mask.assign((vocabulary_.texts.size() + 31) / 32, 0);
  auto words = static_cast<int64_t>(step.mask.size());
  DLTensor tensor = {step.mask.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &words, nullptr, 0};
  matcher_.FillNextTokenBitmask(&tensor);
  ClearRest(&step.mask);
  for (const int32_t token : start_.end_tokens) Set(token, false, &step.mask);
  const bool complete = matcher_.IsCompleted();
  int allowed = 0;
  int32_t last = -1;
  for (size_t i = 0; i < step.mask.size() && allowed < 2; ++i) {
    if (step.mask[i] == 0) continue;
    allowed += __builtin_popcount(step.mask[i]);
    last = static_cast<int32_t>(32 * i) + __builtin_ctz(step.mask[i]);
  }
  if (allowed == 0) step.kind = complete ? Kind::kEnd : Kind::kDeadEnd;
  if (allowed == 1 && !complete && start_.tell_forced) *only = last;
  for (const int32_t token : start_.end_tokens) Set(token, complete, &step.mask);
  return step;
}

TokenMatcher::Step TokenMatcher::Next() {
  std::vector<int32_t> forced;
  while (true) {
    int32_t only = -1;
    Step step = Following(&only);
    if (only < 0 || forced.size() == kMaxForced) {
      step.forced = std::move(forced);
      return step;
    }
    Accept(only);
    forced.push_back(only);
  }
}

std::vector<uint32_t> TokenMatcher::Try(int32_t token) {
  if (!Accept(token)) return {};
  int32_t only = -1;
  Step step = Following(&only);
  if (only >= 0 || step.kind != FromGrammar::Kind::kChoice) return {};
  return std::move(step.mask);
}

void TokenMatcher::GoBackTo(const Place& place) {
  if (steps_ > place.steps) matcher_.Rollback(steps_ - place.steps);
  steps_ = place.steps;
  free_ = place.free;
  tail_ = place.tail;
}

bool TokenMatcher::MayEnd(bool json, int* tries) {
  const Step step = Next();
  if (step.kind == FromGrammar::Kind::kEnd || matcher_.IsCompleted()) return true;
  std::vector<int32_t> allowed;
  bool between = false;  // no string of JSON holds a line end: so white space is not needed here
  for (size_t token = 0; token < vocabulary_.texts.size(); ++token) {
    if ((step.mask[token / 32] >> (token % 32) & 1) == 0) continue;
    allowed.push_back(static_cast<int32_t>(token));
    between |= json && vocabulary_.texts[token] == "\n";
  }
  if (allowed.size() > kManyTokens) return true;
  for (const int32_t token : allowed) {
    const std::string& text = vocabulary_.texts[static_cast<size_t>(token)];
    if (between && text.find_first_not_of(kSpaces) == std::string::npos) continue;
    if (--*tries < 0) return true;
    matcher_.AcceptToken(token);
    const bool ends = MayEnd(json, tries);
    matcher_.Rollback(1);
    if (ends) return true;
  }
  return false;
}

}  // namespace rivulet
