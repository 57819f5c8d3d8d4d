// SPDX-License-Identifier: Apache-2.0
// ListenerWatch: calls the server through its own socket every few seconds, because clients cannot
// tell a stuck listener from a slow one.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace rivulet {

struct ListenerWatchOptions {
  absl::Duration period = absl::Seconds(5);        // between the end of a call and the next one
  absl::Duration call_timeout = absl::Seconds(5);  // of a call
  absl::Duration fail_after = absl::Seconds(60);   // without an answer
};

// The options for `fail_after`: a dozen calls until then, none longer than 5 s.
ListenerWatchOptions ListenerWatchFor(absl::Duration fail_after);

// Calls on a thread of its own, from construction to destruction.
class ListenerWatch {
 public:
  // A call on a connection of its own. OK: it was answered. RESOURCE_EXHAUSTED: the call could not
  // be made, which says nothing about the listener.
  using Call = std::function<absl::Status(absl::Duration timeout)>;
  // Whether calls may fail at the moment because no more connections are accepted. Such a failure
  // says nothing about the listener.
  using Full = std::function<bool()>;
  // Called once, with the last error, on the watch's thread, before failed() is true.
  using OnFailed = std::function<void(const absl::Status&)>;

  ListenerWatch(const ListenerWatchOptions& options, Call call, Full full, OnFailed on_failed);
  ~ListenerWatch();

  // Whether there was no answer for `fail_after`. Thread: any.
  bool failed() const { return failed_; }

 private:
  void Run();

  const ListenerWatchOptions options_;
  const Call call_;
  const Full full_;
  const OnFailed on_failed_;
  std::atomic<bool> failed_ = false;
  absl::Notification stop_;
  std::thread thread_;  // last: everything above exists when it starts
};

}  // namespace rivulet
