// SPDX-License-Identifier: Apache-2.0
// RateBucket: how much may be taken now of something that has a limit per minute.
//
// It is full at first, holds at most one minute's amount, and refills evenly. More may be taken
// than it holds: then it owes, and is empty until that is paid back. So over a long time nobody
// gets more than the rate, apart from the first minute's amount and the last one taken.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace rivulet {

// Times may come a little out of order, for example from several threads. A time more than a minute
// before the last one means that the clock was set back: refilling continues from there.
// Thread: one at a time. O(1).
class RateBucket {
 public:
  // REQUIRES: per_minute >= 1, here and below.
  RateBucket(int64_t per_minute, absl::Time now);

  // Refills at this rate from `now` on. What it holds or owes stays, at most the new size.
  void SetRate(int64_t per_minute, absl::Time now);
  // How long until it holds 1, in whole milliseconds, if nobody takes anything; zero: it does.
  absl::Duration TimeUntilOne(absl::Time now);
  void Take(int64_t amount, absl::Time now);

 private:
  void Refill(absl::Time now);

  double per_minute_;
  double held_;  // below 0: it owes
  absl::Time refilled_;
};

}  // namespace rivulet
