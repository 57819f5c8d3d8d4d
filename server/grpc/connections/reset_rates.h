// SPDX-License-Identifier: Apache-2.0
// ResetRates: finds the connections that reset calls faster than a server can end them.
//
// A call that its client resets leaves the streams of its connection at once, so --max-streams does
// not bound the number of such calls. But such a call costs the same as any other call, and holds
// its memory (about 20 KB in gRPC 1.51) until it has been handled. An attacker (CVE-2023-44487)
// cannot hide what gRPC counts: calls that begin and do not end well.
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
  // Resets per second that one address may make.
  static constexpr int64_t kMaxRate = 2000;

  // `max_streams`: limit of one connection. Less than 1000 counts as 1000, so that a client that
  // cancels all its calls and makes new calls is no offender.
  explicit ResetRates(int max_streams) : max_streams_(std::max(max_streams, 1000)) {}

  // The threshold for "many calls": the calls of four connections.
  int64_t many() const { return 4 * max_streams_; }

  // The connections to close out of `open`, all connections at `now`. A connection is *useful* if
  // 10 % of the calls that it began in the last 3 s, or about 20 of them, ended well. Offenders are
  // - a connection with more than 2 * max_streams calls, while there are more than many() calls in
  //   all (a balancer's connection may have more than 2 * max_streams calls for a moment);
  // - where the connections of one address reset more than kMaxRate calls per second, over 3 s, or
  //   over half a second while there are many() calls or more: the connections among them that are
  //   not useful and that cause a considerable part of the resets.
  // So a balancer's connection stays open while its clients are served. Against an attacker who
  // also makes calls that end well, only the limit on unfinished calls helps.
  std::vector<ConnectionCalls> Offenders(const std::vector<ConnectionCalls>& open, absl::Time now);

 private:
  static constexpr double kEnoughSucceeded = 20;  // recent calls of a connection

  // Sums over the calls of a connection. A call that was a time t ago has the weight e^(-t / time).
  struct Recent {
    ConnectionCalls before;  // the counts at the last Update
    double started = 0;
    double succeeded = 0;
    double resets = 0;
    double latest_resets = 0;  // over the shorter time

    bool ServesNobody() const { return succeeded < std::min(0.1 * started, kEnoughSucceeded); }
    // The part of this sum of resets that counts against the connection.
    double Part(double recent_resets) const;
  };

  int64_t ResetsOf(const ConnectionCalls& connection) const;
  void Update(const std::vector<ConnectionCalls>& open, absl::Time now);

  const int64_t max_streams_;
  absl::Time updated_ = absl::InfinitePast();
  std::unordered_map<int64_t, Recent> recent_;  // of open connections, by id
};

}  // namespace rivulet
