// SPDX-License-Identifier: Apache-2.0
// Clock: the times of an engine. Thread: any.
#pragma once

#include <time.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace rivulet {

class Clock {
 public:
  // The machine's clocks.
  Clock() : Clock([] { return absl::Now(); }, SinceBoot) {}
  Clock(std::function<absl::Time()> wall, std::function<absl::Duration()> steady)
      : wall_(std::move(wall)), steady_(std::move(steady)) {}
  // For tests: both clocks show `time`.
  template <typename Time>
  requires std::is_invocable_r_v<absl::Time, const Time&>
  // NOLINTNEXTLINE(google-explicit-constructor): a function passes for a Clock
  Clock(const Time& time)
      : Clock(time, [time] { return absl::Time(time()) - absl::UnixEpoch(); }) {}

  // The time of day (wall clock). It goes back where somebody sets the clock back.
  absl::Time operator()() const { return wall_(); }
  // The time since the machine booted, its sleep included. It never goes back.
  absl::Duration Steady() const { return steady_(); }

 private:
  static absl::Duration SinceBoot() {
    timespec time = {};
    clock_gettime(CLOCK_BOOTTIME, &time);
    return absl::DurationFromTimespec(time);
  }

  std::function<absl::Time()> wall_;
  std::function<absl::Duration()> steady_;
};

}  // namespace rivulet
