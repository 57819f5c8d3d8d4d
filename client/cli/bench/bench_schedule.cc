// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_schedule.h"

#include <cmath>

namespace rivulet {

ArrivalSchedule::ArrivalSchedule(double rate, bool poisson, uint64_t seed)
    : rate_(rate), poisson_(poisson), random_(seed) {}

int64_t ArrivalSchedule::Next() {
  if (poisson_) {
    // Not std::exponential_distribution, whose numbers differ between standard libraries.
    const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;  // [0, 1)
    seconds_ -= std::log1p(-uniform) / rate_;
  } else {
    // A product, because a sum would drift.
    seconds_ = static_cast<double>(index_++) / rate_;
  }
  return static_cast<int64_t>(seconds_ * 1e9);
}

}  // namespace rivulet
