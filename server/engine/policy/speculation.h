// SPDX-License-Identifier: Apache-2.0
// How many drafts each row of a run gets. Decisions without clock, threads or backend: the loop
// tells what passes took. Nothing here changes a token.
//
// A row with k drafts, each right with probability p if the ones before it are, brings
// 1 + p + ... + p^k tokens a pass [Leviathan 2023, eq. 1], and a pass costs more with more rows.
// Drafts are given one after another, each to the row that gains most by it, for as long as the
// tokens per second of all rows rise. Where there are several rows, drafts may make a pass at most
// a tenth slower, because each row waits for the others' drafts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/backend.h"

namespace rivulet {

// How often the drafts of a row were right lately. Starts as if one of two were.
class DraftAcceptance {
 public:
  // A pass checked `drafted` > 0 drafts, of which the first `right` were right.
  void Note(int drafted, int right);
  // An estimate of the probability that a draft is right if the ones before it are.
  double rate() const { return rate_; }
  // The last draft that was checked was right.
  bool was_right() const { return was_right_; }

 private:
  double rate_ = 0.5;
  bool was_right_ = true;
};

// Seconds of a pass by the number of its token rows: running means of what was measured.
class PassCosts {
 public:
  static constexpr int kMostRows = 512;
  void Note(int rows, double seconds);
  // Whether a pass of so many rows was measured.
  bool Measured(int rows) const {
    return static_cast<size_t>(rows) < means_.size() && means_[static_cast<size_t>(rows)] >= 0;
  }
  // nullopt: neither these rows nor more were measured.
  std::optional<double> At(int rows) const;
  // Of a guess of the backend behind a pass, likewise.
  void NoteGuess(double seconds);
  std::optional<double> guess() const { return guess_; }

 private:
  std::optional<double> guess_;
  std::vector<double> means_;  // [rows]; below 0: not measured
};

// Runs of more rows have no drafts, unless a number was asked for.
inline constexpr size_t kFewRows = 22;

// A row that decodes.
struct DraftView {
  int most = 0;            // drafts that it can use; 0: none
  bool adaptive = true;    // false: it gets `most`, whether that pays or not
  double rate = 0;         // DraftAcceptance
  bool was_right = false;  // likewise
  // The drafts that the backend may guess for its next row, and how often such are right; adaptive:
  // as many as pay.
  struct {
    int most = 0;
    double rate = 0;
    bool adaptive = true;
  } wanted = {};
};

// Fills `drafts` [rows]; none, until a pass of so many rows without drafts was measured. `run` is
// the number of the run. So that a change is noticed, each 16th run has one more draft where that
// seems not to pay but could; each 64th run has none, of n rows each 64/n-th one, at most each 8th;
// and each 257th run may have one although other rows would wait too long for it.
void PlanDrafts(std::span<const DraftView> rows, const PassCosts& costs,
                const BackendLimits& limits, uint64_t run, std::vector<int>* drafts);

// How many guesses to ask for behind a row that is alone in its run, which has `fed` token rows:
// those that pay as the next run's drafts. None where the run without them is to be measured.
int PlanGuesses(const DraftView& row, const PassCosts& costs, int fed, int most, uint64_t run);

}  // namespace rivulet
