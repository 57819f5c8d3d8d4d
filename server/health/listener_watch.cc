// SPDX-License-Identifier: Apache-2.0
#include "server/health/listener_watch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "model/base/thread.h"

namespace rivulet {

ListenerWatchOptions ListenerWatchFor(absl::Duration fail_after) {
  ListenerWatchOptions options;
  options.fail_after = fail_after;
  options.period = std::min(options.period, fail_after / 12);
  options.call_timeout = std::min(options.call_timeout, fail_after);
  return options;
}

ListenerWatch::ListenerWatch(const ListenerWatchOptions& options, Call call, Full full,
                             OnFailed on_failed)
    : options_(options),
      call_(std::move(call)),
      full_(std::move(full)),
      on_failed_(std::move(on_failed)),
      thread_([this] { Run(); }) {}

ListenerWatch::~ListenerWatch() {
  stop_.Notify();
  thread_.join();
}

void ListenerWatch::Run() {
  NameThread("listener-watch");
  std::optional<absl::Time> failing_since;
  while (!stop_.WaitForNotificationWithTimeout(options_.period)) {
    const absl::Status status = call_(options_.call_timeout);
    if (status.ok() || absl::IsResourceExhausted(status) || full_()) {
      failing_since.reset();
      continue;
    }
    const absl::Time now = absl::Now();
    // Counts from the end of a call: a process that was stopped for an hour has failed only once.
    if (!failing_since.has_value()) failing_since = now;
    if (now - *failing_since < options_.fail_after) continue;
    on_failed_(status);
    failed_ = true;
    return;
  }
}

}  // namespace rivulet
