// SPDX-License-Identifier: Apache-2.0
// Journal: the record of a schedule: the first broken promise, counts, and notes for its reader.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "tests/simulation/turn_clock.h"

namespace rivulet::simulated {

// Thread: one.
class Journal {
 public:
  // `clock` is borrowed. Notes are kept only with `trace`.
  Journal(const TurnClock& clock, bool trace) : clock_(clock), keeps_trace_(trace) {}

  // `what`: arguments of absl::StrCat, statuses and tokens; converted to text only if kept.
  template <typename... What>
  void Note(const What&... what) {
    if (!keeps_trace_) return;
    const absl::Duration time = clock_.now() - TurnClock::Start();
    trace_.push_back(absl::StrCat("turn ", clock_.turn(), " +", absl::ToInt64Milliseconds(time),
                                  "ms ", Text(what)...));
  }
  template <typename... What>
  void Broken(const What&... what) {
    Note("BROKEN: ", what...);
    if (broken_.empty()) broken_ = absl::StrCat(Text(what)...);
  }
  void Count(const std::string& what, int64_t times = 1) {
    if (times > 0) counts_[what] += times;
  }
  // Replaces a count.
  void SetCount(const std::string& what, int64_t count) {
    if (count > 0) {
      counts_[what] = count;
    } else {
      counts_.erase(what);
    }
  }

  bool ok() const { return broken_.empty(); }
  const std::string& broken() const { return broken_; }  // the first broken promise; empty: none
  const std::vector<std::string>& trace() const { return trace_; }
  const std::map<std::string, int64_t>& counts() const { return counts_; }
  int64_t Counted(const std::string& what) const {
    const auto found = counts_.find(what);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  template <typename T>
  static const T& Text(const T& what) {
    return what;
  }
  static std::string Text(const absl::Status& status) { return status.ToString(); }
  static std::string Text(const std::vector<int32_t>& tokens) { return absl::StrJoin(tokens, " "); }

  const TurnClock& clock_;
  const bool keeps_trace_;
  std::string broken_;
  std::vector<std::string> trace_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace rivulet::simulated
