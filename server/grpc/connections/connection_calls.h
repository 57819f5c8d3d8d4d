// SPDX-License-Identifier: Apache-2.0
// gRPC's counts of the calls of each connection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rivulet {

// A connection of this process's gRPC servers, with its calls since it began.
struct ConnectionCalls {
  int64_t id = 0;         // of the connection; never used again
  std::string peer;       // "ipv4:1.2.3.4:56", as ServerContext::peer() has it
  int64_t started = 0;    // calls that gRPC has begun
  int64_t succeeded = 0;  // of these, destroyed after their status was sent
  int64_t failed = 0;     // of these, destroyed without a status: reset, or their connection ended

  // Calls that have begun and not been destroyed, reset ones included.
  int64_t unfinished() const { return started - succeeded - failed; }
};

// All connections, from gRPC's channelz; takes some 30 us per connection. Thread: any.
std::vector<ConnectionCalls> CallsByConnection();

}  // namespace rivulet
