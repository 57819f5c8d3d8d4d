// SPDX-License-Identifier: Apache-2.0
// ResetRates: which connections reset calls faster than a server can end them.
//
// A call that its client resets leaves its connection's streams at once, so --max-streams does not
// bound how many there are. But it costs as much as any other, and holds its memory (about 20 KB in
// gRPC 1.51) until it has been handled. What an attacker (CVE-2023-44487) cannot hide is what gRPC
// counts: calls that begin and do not end well.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/grpc/connections/connection_calls.h"

namespace rivulet {

// Thread: one at a time.
class ResetRates {
 public:
  // Resets a second that one address may make.
  static constexpr int64_t kMaxRate = 2000;

  // `max_streams` is of one connection. Less than 1000 count as 1000, so that a client that cancels
  // all it has and begins anew is no offender.
  explicit ResetRates(int max_streams) : max_streams_(std::max(max_streams, 1000)) {}

  // More calls than this are many: those of four connections.
  int64_t many() const { return 4 * max_streams_; }

  // Which connections to close, of `open`, which are all there are at `now`. A connection serves
  // somebody if 10 % of the calls that it began in the last 3 s ended well, or some 20 of them did.
  // - One with more than twice the calls that it may have streams, while there are more than many()
  //   calls. A balancer's connection may have them for a moment.
  // - Those of an address that together reset more than kMaxRate calls a second, over 3 s, or over
  //   half a second where there are many() calls and more: of them, those that serve nobody and
  //   have a part in it that counts.
  // So the connection of a balancer stays open while clients of it are served. An attacker who also
  // makes calls that end well is left to the limit on unfinished calls alone.
  std::vector<ConnectionCalls> Offenders(const std::vector<ConnectionCalls>& open, absl::Time now);

 private:
  static constexpr double kEnoughSucceeded = 20;  // recent calls of a connection

  // Calls of a connection, each the less the longer ago. Sums over a time as in e^(-t / time).
  struct Recent {
    ConnectionCalls before;  // as it was when this was last brought up to date
    double started = 0;
    double succeeded = 0;
    double resets = 0;
    double latest_resets = 0;  // over the shorter time

    bool ServesNobody() const { return succeeded < std::min(0.1 * started, kEnoughSucceeded); }
    // Of the given sum of resets, what is part of a storm.
    double Part(double recent_resets) const;
  };

  int64_t ResetsOf(const ConnectionCalls& connection) const;
  void Update(const std::vector<ConnectionCalls>& open, absl::Time now);

  const int64_t max_streams_;
  absl::Time updated_ = absl::InfinitePast();
  std::unordered_map<int64_t, Recent> recent_;  // by the connection's id; of those that are open
};

}  // namespace rivulet
