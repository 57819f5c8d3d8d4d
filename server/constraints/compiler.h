// SPDX-License-Identifier: Apache-2.0
// What the engine knows of constraints: grammars that are being compiled, and matchers that tell
// which tokens may follow in a reply. Nothing here waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/backend.h"
#include "server/constraints/constraint.h"

namespace rivulet {

// What may follow in one reply.
struct ConstraintStep {
  enum class Kind : uint8_t {
    kChoice,   // tokens of `mask`
    kEnd,      // nothing: the text is complete
    kDeadEnd,  // nothing, and the text is not complete
    kFailed,   // `status`
  };
  Kind kind = Kind::kChoice;
  // Tokens that come first, as each was the only one that could follow.
  std::vector<int32_t> forced = {};
  std::vector<uint32_t> mask = {};  // [ceil(vocab_size / 32)] of kChoice: one bit a token
  absl::Status status = {};
};

// The text of one reply so far. A function of the tokens. Thread: one, except Bits.
class ConstraintMatcher : public TokenMask {
 public:
  // These tokens were written. REQUIRES: it is the first call, or the forced tokens of the last
  // step were taken, which come before `tokens`.
  void Push(std::span<const int32_t> tokens) {
    taken_ = false;
    DoPush(tokens);
  }
  // What may follow; null: not known yet.
  virtual const ConstraintStep* step() const = 0;
  // Masks of what would follow `tokens`, each behind the tokens before it. One has no bits where
  // its token, or one before it, may not follow, or where what follows is forced. REQUIRES: tokens
  // were pushed. If the step has forced tokens that were not taken, the masks are of no use.
  virtual std::vector<std::unique_ptr<TokenMask>> Try(std::span<const int32_t> tokens) = 0;
  // The caller has written the forced tokens of step(). From now on Bits() is the mask of what
  // follows them.
  void TakeForced() { taken_ = true; }
  // The mask of step(). Empty where there is none, or it follows forced tokens that were not taken.
  std::span<const uint32_t> Bits() const final {
    const ConstraintStep* const known = step();
    if (known == nullptr || known->kind != ConstraintStep::Kind::kChoice) return {};
    if (!taken_ && !known->forced.empty()) return {};
    return known->mask;
  }

 private:
  virtual void DoPush(std::span<const int32_t> tokens) = 0;
  bool taken_ = false;
};

struct MatcherSpec {
  bool forced = false;                   // tell forced tokens
  std::vector<int32_t> end_tokens = {};  // allowed where the text may end, and nowhere else
  std::string before = {};               // the end of the prompt's text, for Constraint::after
  std::vector<std::string> after = {};   // Constraint::after
};

// Thread: any.
class ConstraintGrammar {
 public:
  virtual ~ConstraintGrammar() = default;
  // nullopt: it is being compiled. Errors: INVALID_ARGUMENT (CONSTRAINT_UNSUPPORTED: the library
  // refuses it; CONSTRAINT_TOO_HARD: it takes too much time or memory; CONSTRAINT_NOT_SPELLABLE),
  // FAILED_PRECONDITION (CONSTRAINT_UNAVAILABLE).
  virtual std::optional<absl::Status> status() const = 0;
  // REQUIRES: status() is OK.
  virtual std::unique_ptr<ConstraintMatcher> NewMatcher(const MatcherSpec& spec) = 0;
};

// For one model. Thread: any.
class ConstraintCompiler {
 public:
  virtual ~ConstraintCompiler() = default;
  // `wake`: called by any thread when a status() or a step() is there.
  virtual void SetWake(std::function<void()> wake) = 0;
  // The compiled grammar if it is kept, else one that will be compiled when it is the tenant's
  // turn. Nobody holds it any more: its compilation ends.
  virtual std::shared_ptr<ConstraintGrammar> Compile(const Grammar& grammar,
                                                     const std::string& tenant) = 0;
};

}  // namespace rivulet
