// SPDX-License-Identifier: Apache-2.0
// Sends requests in a closed or an open loop and measures the replies. Callbacks on gRPC's own
// threads do all the work except the timing, so that one core handles thousands of replies at once.
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

// Results over the measured requests of a run: all requests except the warm-up. In an open loop the
// schedule gives a request its intended time; in a closed loop the intended time is the time of
// sending.
struct Measurements {
  // Since the intended time, of the requests that succeeded.
  BenchHistogram first_token, end_to_end;
  // The same two from the actual time of sending, without the delay within this process.
  BenchHistogram first_token_sent, end_to_end_sent;
  // Time between messages of one reply that hold tokens. Tokens that come during the sending of a
  // message share the next message. So this is the gap that a reader sees, not the server's step
  // time.
  BenchHistogram message_gap;
  // From the intended time to the time of sending.
  BenchHistogram send_delay;

  // Numbers of requests by their end.
  int64_t succeeded = 0, failed = 0;
  int64_t rejected = 0;     // failed requests with RESOURCE_EXHAUSTED
  int64_t interrupted = 0;  // in flight when the run was interrupted
  int64_t unsent = 0;       // due, but still waiting here when the run was interrupted
  int64_t warmup = 0;       // not measured
  int64_t late = 0;         // sent more than kLateNanoseconds after the intended time
  int64_t tokens = 0;       // generated or scored, in requests that succeeded

  struct Error {
    int64_t count = 0;
    std::string message;  // of the first such error
  };
  std::map<std::pair<std::string, std::string>, Error> errors;  // by code and reason
  absl::Status first_error;

  // Throughput: what arrived in the window for every request, measured or not, because all requests
  // load the server. The window begins after the warm-up and ends after the set duration, or else
  // with the last reply.
  double window_seconds = 0;
  int64_t window_tokens = 0, window_messages = 0, window_requests = 0;  // requests that succeeded
  // Duration of the whole run with its warm-up, and the processor time of this process in that
  // time.
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
  // Called about ten times a second on the thread of RunLoad(); false interrupts the run: no more
  // requests are sent, and requests in flight are cancelled.
  std::function<bool(const LoadState&)> on_tick;
};

// Sends the requests of `options` to `model`, until the run and every reply have ended. Request i
// uses client i % clients.size(). `measurements` is new. Errors: the status of a request that the
// server calls invalid. It ends the run, because every other request would fail in the same way.
// REQUIRES: options come from ParseCommandLine().
absl::Status RunLoad(const BenchOptions& options, const v1::GetModelReply& model,
                     std::vector<Client> clients, const LoadCallbacks& callbacks,
                     Measurements* measurements);

}  // namespace rivulet
