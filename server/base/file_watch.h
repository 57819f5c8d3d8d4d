// SPDX-License-Identifier: Apache-2.0
// FileWatch: a thread that looks at files which other processes replace, so that no other thread
// waits for the file system.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/time/time.h"

namespace rivulet {

// Thread: any, but the destructor once.
class FileWatch {
 public:
  static constexpr absl::Duration kPeriod = absl::Seconds(1);

  // A thread called `name` calls `look`: once per period with false, and after Ask with true. A
  // file system that hangs may keep `look` beyond the life of the watch, so `look` must own what it
  // uses.
  FileWatch(const char* name, absl::Duration period, std::function<void(bool asked)> look);
  // Waits for a `look` that runs, but no longer than half a second: a thread that a file system
  // keeps is left behind (server/base/leave_behind.h).
  ~FileWatch();

  // Has `look` called soon; returns at once.
  void Ask();

 private:
  struct State;
  static void Run(State* state);

  const std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

}  // namespace rivulet
