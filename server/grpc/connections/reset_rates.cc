// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/reset_rates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/grpc/connections/connections.h"

namespace rivulet {
namespace {

// The times over which a rate is taken. The longer one is for clients that give up a few thousand
// calls at once and then wait, the shorter one for when that would already hold up other clients.
constexpr double kSeconds = 3;
constexpr double kSecondsOfMany = 0.5;
constexpr double kLeastPart = 100;  // recent resets of a connection that count

}  // namespace

// The least number of reset calls: failed calls, and unfinished calls that cannot be streams.
int64_t ResetRates::ResetsOf(const ConnectionCalls& connection) const {
  return connection.failed + std::max<int64_t>(0, connection.unfinished() - max_streams_);
}

void ResetRates::Update(const std::vector<ConnectionCalls>& open, absl::Time now) {
  const double seconds = absl::ToDoubleSeconds(now - std::exchange(updated_, now));
  std::unordered_map<int64_t, Recent> updated;
  for (const ConnectionCalls& connection : open) {
    Recent recent;
    if (const auto found = recent_.find(connection.id); found != recent_.end()) {
      recent = std::move(found->second);
    }
    const auto add = [seconds](int64_t more, double over, double* sum) {
      *sum = std::max(0.0, *sum * std::exp(-seconds / over) + static_cast<double>(more));
    };
    const int64_t resets = ResetsOf(connection) - ResetsOf(recent.before);
    add(connection.started - recent.before.started, kSeconds, &recent.started);
    add(connection.succeeded - recent.before.succeeded, kSeconds, &recent.succeeded);
    add(resets, kSeconds, &recent.resets);
    add(resets, kSecondsOfMany, &recent.latest_resets);
    recent.before = connection;
    updated.emplace(connection.id, std::move(recent));
  }
  recent_ = std::move(updated);
}

double ResetRates::Recent::Part(double recent_resets) const {
  // Calls that began long ago and end together are no storm.
  const double part = std::min(started, recent_resets);
  return ServesNobody() && part > kLeastPart ? part : 0;
}

std::vector<ConnectionCalls> ResetRates::Offenders(const std::vector<ConnectionCalls>& open,
                                                   absl::Time now) {
  Update(open, now);
  int64_t unfinished = 0;
  for (const ConnectionCalls& connection : open) unfinished += connection.unfinished();
  const bool are_many = unfinished > many();
  const double most = kMaxRate * (are_many ? kSecondsOfMany : kSeconds);
  const auto part_of = [&](const Recent& recent) {
    return recent.Part(are_many ? recent.latest_resets : recent.resets);
  };
  std::unordered_map<std::string, double> storms;  // by address
  for (const auto& [id, recent] : recent_) {
    storms[AddressOf(recent.before.peer)] += part_of(recent);
  }
  std::vector<ConnectionCalls> offenders;
  for (const ConnectionCalls& connection : open) {
    const Recent& recent = recent_.at(connection.id);
    const bool has_too_many = are_many && connection.unfinished() > 2 * max_streams_;
    const bool is_too_fast = part_of(recent) > 0 && storms.at(AddressOf(connection.peer)) > most;
    if (has_too_many || is_too_fast) offenders.push_back(connection);
  }
  return offenders;
}

}  // namespace rivulet
