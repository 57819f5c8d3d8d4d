// SPDX-License-Identifier: Apache-2.0
// RateBucket: a token bucket for a limit per minute.
//
// It is full at first, holds at most one minute's amount, and refills evenly. More may be taken
// than it holds: then it owes the rest, and is empty until the rest is paid back. So over a long
// time nobody gets more than the rate, plus the first minute's amount and the last amount taken.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace rivulet {

// Times may come a little out of order, for example from several threads. A time more than a minute
// before the last time means that the clock was set back: refilling continues from that time.
// Thread: one at a time. O(1).
class RateBucket {
 public:
  // REQUIRES: per_minute >= 1, here and below.
  RateBucket(int64_t per_minute, absl::Time now);

  // Refills at this rate from `now` on. The amount held or owed stays, at most the new size.
  void SetRate(int64_t per_minute, absl::Time now);
  // The time until it holds 1, in whole milliseconds, if nobody takes anything; zero: it holds 1.
  absl::Duration TimeUntilOne(absl::Time now);
  void Take(int64_t amount, absl::Time now);

 private:
  void Refill(absl::Time now);

  double per_minute_;
  double held_;  // below 0: it owes
  absl::Time refilled_;
};

}  // namespace rivulet
