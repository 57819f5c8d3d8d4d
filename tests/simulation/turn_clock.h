// SPDX-License-Identifier: Apache-2.0
// TurnClock: the time of a schedule, and when each turn of the engine began.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace rivulet::simulated {

// Thread: one.
class TurnClock {
 public:
  static absl::Time Start() { return absl::FromUnixSeconds(1'000'000); }

  absl::Time now() const { return now_; }
  int turn() const { return static_cast<int>(began_.size()) - 1; }  // turns begun
  bool went_back() const { return went_back_; }
  absl::Time began(int turn) const { return began_[static_cast<size_t>(turn)]; }
  // When the last turn began whose ends were all told.
  absl::Time told() const { return began(told_turn_); }

  void Move(absl::Duration by) {
    now_ += by;
    went_back_ |= by < absl::ZeroDuration();
  }
  // `runs`: those of the backend so far.
  void BeginTurn(int64_t runs) {
    now_ += absl::Microseconds(1);  // so that what happened in different turns has different times
    latest_ = std::max(latest_, now_);
    began_.push_back(now_);
    runs_.push_back(runs);
  }
  // All that was published by the end of this turn is told.
  void Told() { told_turn_ = turn(); }

  // Whether a turn can have found, or must have found, that `time` has come.
  bool MayHavePassed(absl::Time time) const { return went_back_ || latest_ >= time; }
  bool HasPassed(absl::Time time) const { return !went_back_ && latest_ >= time; }
  // The backend's runs before the turn in which it was `time`. REQUIRES: !went_back().
  int64_t RunsBefore(absl::Time time) const {
    const auto after = std::upper_bound(began_.begin(), began_.end(), time);
    return runs_[static_cast<size_t>(after - began_.begin() - 1)];
  }

 private:
  absl::Time now_ = Start();
  std::vector<absl::Time> began_{now_};  // [turn]
  std::vector<int64_t> runs_{0};         // [turn] before it
  int told_turn_ = 0;
  absl::Time latest_ = now_;  // that any turn began
  bool went_back_ = false;
};

}  // namespace rivulet::simulated
