// SPDX-License-Identifier: Apache-2.0
// Sends requests in a closed or an open loop and measures the replies. The callbacks of gRPC's own
// threads do all of it but the timing, so that one core carries thousands of replies at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/bench/bench_histogram.h"
#include "client/cli/options/options.h"
#include "rivulet/client.h"

namespace rivulet {

// Of the requests of a run that are measured: all but those of the warm-up. A request's intended
// time is that of the schedule in an open loop; in a closed one it is sent as intended.
struct Measurements {
  // Since the intended time, of the requests that succeeded.
  BenchHistogram first_token, end_to_end;
  // The same two since the request was really sent: what this process kept waiting is missing.
  BenchHistogram first_token_sent, end_to_end_sent;
  // Between messages of one reply that hold tokens. Tokens that come while a message is on its way
  // share the next one, so this is what a reader sees, not a step of the server.
  BenchHistogram message_gap;
  // From intended to sent.
  BenchHistogram send_delay;

  // Requests by what became of them.
  int64_t succeeded = 0, failed = 0;
  int64_t rejected = 0;     // of the failed: RESOURCE_EXHAUSTED
  int64_t interrupted = 0;  // under way when the run was interrupted
  int64_t unsent = 0;       // due, but still waiting here when the run was interrupted
  int64_t warmup = 0;       // not measured
  int64_t late = 0;         // sent more than kLateNanoseconds after the intended time
  int64_t tokens = 0;       // of those that succeeded: generated, or scored

  struct Error {
    int64_t count = 0;
    std::string message;  // of the first
  };
  std::map<std::pair<std::string, std::string>, Error> errors;  // by code and reason
  absl::Status first_error;

  // Throughput: what arrived in the window, of every request, as all of them load the server. It
  // begins after the warm-up and ends with the duration, else with the last reply.
  double window_seconds = 0;
  int64_t window_tokens = 0, window_messages = 0, window_requests = 0;  // requests that succeeded
  // Of the whole run, warm-up included, and the processor time of this process in it.
  double run_seconds = 0, cpu_seconds = 0;
  bool was_interrupted = false;
};

inline constexpr int64_t kLateNanoseconds = 10'000'000;

// What a run is doing, for a display.
struct LoadState {
  double seconds = 0;         // since the start
  double window_seconds = 0;  // since the end of the warm-up
  int64_t sent = 0, in_flight = 0, failed = 0;
  int64_t ended = 0;     // measured requests
  int64_t tokens = 0;    // in the window
  bool waiting = false;  // for the last replies
};

struct LoadCallbacks {
  // Called about ten times a second on the thread of RunLoad(); false interrupts the run: nothing
  // more is sent and what is under way is cancelled.
  std::function<bool(const LoadState&)> on_tick;
};

// Sends what `options` says to `model` until the run has ended and every reply has. Request i uses
// client i % clients.size(). `measurements` is new. Errors: the status of a request that the server
// calls bad, which ends the run, as every other one would fail like it. REQUIRES: options come from
// ParseCommandLine().
absl::Status RunLoad(const BenchOptions& options, const v1::GetModelReply& model,
                     std::vector<Client> clients, const LoadCallbacks& callbacks,
                     Measurements* measurements);

}  // namespace rivulet
