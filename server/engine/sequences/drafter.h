// SPDX-License-Identifier: Apache-2.0
// Drafter: drafts of the tokens that a sample draws next, and how often they were right lately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/backend.h"
#include "server/engine/policy/speculation.h"
#include "server/engine/request.h"
#include "server/engine/sequences/lookup_index.h"

namespace rivulet {

// Thread: one.
class Drafter {
 public:
  explicit Drafter(const Speculation& asked) : asked_(asked) {}

  // Before each row. Takes in more of the prediction and of `given`, the tokens before the first
  // draw: a piece that takes little time, as all rows of a run do that. `given` is the same in each
  // call, and there is no draft before the call that takes in its end. Beside many rows (kFewRows)
  // tokens are taken in later, unless a number of drafts was asked for.
  void BeginRow(std::span<const int32_t> given, bool few_rows);
  void OnDrawn(int32_t token);

  // The backend's guesses of what follows the last drawn token; empty: it made none.
  void OnGuesses(std::vector<int32_t> guesses) { guesses_ = std::move(guesses); }

  // What it can use, if at most `most` drafts are of use.
  DraftView View(int64_t most) const;
  // Appends up to `most` guesses.
  void AddDrafts(int most, std::vector<int32_t>* drafts);
  // A pass has judged `drafted` drafts, of which the first `right` were right.
  void Note(int drafted, int right) { acceptance_[from_].Note(drafted, right); }

  // The masks of the draws after the row's drafts, one for each.
  std::vector<const TokenMask*> masks;
  int drafts() const { return static_cast<int>(masks.size()); }

 private:
  void Learn(std::span<const int32_t> given);

  static constexpr size_t kPiece = 512;

  const Speculation& asked_;
  LookupIndex index_;
  size_t learned_ = 0;          // tokens of the prediction, then given ones, then of drawn_
  bool complete_ = false;       // all of them are learned, and drawn_ is empty
  std::vector<int32_t> drawn_;  // until then
  // From where the next drafts, and those of the row, come: where the tokens were before, if they
  // were, else from the backend.
  enum Source : size_t { kLookup, kBackend };
  Source source() const { return complete_ && index_.found() ? kLookup : kBackend; }

  std::vector<int32_t> guesses_;
  Source from_ = kLookup;
  DraftAcceptance acceptance_[2];  // [Source]
};

}  // namespace rivulet
