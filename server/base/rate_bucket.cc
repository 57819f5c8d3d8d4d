// SPDX-License-Identifier: Apache-2.0
#include "server/base/rate_bucket.h"

#include <algorithm>

namespace rivulet {
namespace {

constexpr absl::Duration kMinute = absl::Minutes(1);
// Sums of parts of a minute are not exact.
constexpr double kOne = 1 - 1e-6;

}  // namespace

RateBucket::RateBucket(int64_t per_minute, absl::Time now)
    : per_minute_(static_cast<double>(per_minute)), held_(per_minute_), refilled_(now) {}

void RateBucket::Refill(absl::Time now) {
  if (now < refilled_ - kMinute) refilled_ = now;
  if (now <= refilled_) return;
  held_ += per_minute_ * absl::FDivDuration(now - refilled_, kMinute);
  held_ = std::min(held_, per_minute_);
  refilled_ = now;
}

void RateBucket::SetRate(int64_t per_minute, absl::Time now) {
  Refill(now);
  per_minute_ = static_cast<double>(per_minute);
  held_ = std::min(held_, per_minute_);
}

absl::Duration RateBucket::TimeUntilOne(absl::Time now) {
  Refill(now);
  if (held_ >= kOne) return absl::ZeroDuration();
  return absl::Ceil(kMinute * ((1 - held_) / per_minute_), absl::Milliseconds(1));
}

void RateBucket::Take(int64_t amount, absl::Time now) {
  Refill(now);
  held_ -= static_cast<double>(amount);
}

}  // namespace rivulet
