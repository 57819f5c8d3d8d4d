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
  // Beginning of the last turn whose ends were all delivered.
  absl::Time told() const { return began(told_turn_); }

  void Move(absl::Duration by) {
    now_ += by;
    went_back_ |= by < absl::ZeroDuration();
  }
  // `runs`: number of the backend's runs so far.
  void BeginTurn(int64_t runs) {
    now_ += absl::Microseconds(1);  // so that events of different turns have different times
    latest_ = std::max(latest_, now_);
    began_.push_back(now_);
    runs_.push_back(runs);
  }
  // Everything published by the end of this turn has been delivered.
  void Told() { told_turn_ = turn(); }

  // Whether a turn may have seen, or must have seen, that `time` has come.
  bool MayHavePassed(absl::Time time) const { return went_back_ || latest_ >= time; }
  bool HasPassed(absl::Time time) const { return !went_back_ && latest_ >= time; }
  // Number of the backend's runs before the turn that contains `time`. REQUIRES: !went_back().
  int64_t RunsBefore(absl::Time time) const {
    const auto after = std::upper_bound(began_.begin(), began_.end(), time);
    return runs_[static_cast<size_t>(after - began_.begin() - 1)];
  }

 private:
  absl::Time now_ = Start();
  std::vector<absl::Time> began_{now_};  // [turn]
  std::vector<int64_t> runs_{0};         // [turn] runs before it
  int told_turn_ = 0;
  absl::Time latest_ = now_;  // latest beginning of any turn
  bool went_back_ = false;
};

}  // namespace rivulet::simulated
