// SPDX-License-Identifier: Apache-2.0
// TokenMatcher: which tokens may follow in one text of a grammar. A function of the tokens that
// were written. XGrammar (arXiv:2411.15100) has the grammar; here are end tokens, the texts of
// Constraint::after, and forced tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraints/messages.h"
#include "xgrammar/matcher.h"

namespace rivulet {

// The texts of all tokens.
struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<std::string> grammar_texts;  // empty for a control token, which is in no text
};

struct MatcherStart {
  bool tell_forced = false;
  std::vector<int32_t> end_tokens;
  std::string before;              // the end of the text before
  std::vector<std::string> after;  // Constraint::after
};

// Thread: one.
class TokenMatcher {
 public:
  TokenMatcher(const Vocabulary* vocabulary, const xgrammar::CompiledGrammar& grammar,
               MatcherStart start);

  // False: the token cannot follow, and the matcher is of no use any more.
  bool Accept(int32_t token);

  struct Step {
    FromGrammar::Kind kind = FromGrammar::Kind::kChoice;  // kChoice, kEnd or kDeadEnd
    std::vector<int32_t> forced;  // accepted: the only tokens that could follow, one after another
    std::vector<uint32_t> mask;   // of kChoice: one bit a token
  };
  Step Next();

  // Accepts the token and returns the mask of what may follow it; empty where the token cannot
  // follow, or nothing may follow it, or what follows is forced.
  std::vector<uint32_t> Try(int32_t token);

  // What was accepted.
  struct Place {
    int steps;
    bool free;
    std::string tail;
  };
  Place place() const { return {steps_, free_, tail_}; }
  // `place` is that of an earlier call, and the tokens since then were not accepted.
  void GoBackTo(const Place& place);

  // False: no tokens spell a whole text of the grammar. Tries up to `tries` tokens, and is true
  // where that does not decide. `json`: it is a grammar of JSON. REQUIRES: `start` is the default.
  bool MayEnd(bool json, int* tries);

 private:
  // Where in `text`, which follows tail_, one of start_.after ends first; nullopt: none does.
  std::optional<size_t> EndOfAfter(std::string_view text) const;
  bool AcceptsRest(std::string_view text);
  std::vector<uint32_t> FreeMask();
  // What may follow now. `only`: the token that is forced, or -1.
  Step Following(int32_t* only);
  void Set(int32_t token, bool allowed, std::vector<uint32_t>* mask) const;
  void ClearRest(std::vector<uint32_t>* mask) const;

  const Vocabulary& vocabulary_;
  xgrammar::GrammarMatcher matcher_;
  const MatcherStart start_;
  int steps_ = 0;                      // of matcher_
  bool free_;                          // none of start_.after was written yet
  std::string tail_;                   // while free: the end of what was written
  std::vector<int32_t> may_end_free_;  // tokens of whose text the end of an `after` may be a part
};

}  // namespace rivulet
