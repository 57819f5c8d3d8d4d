// SPDX-License-Identifier: Apache-2.0
#include "model/base/team_size.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace rivulet {
namespace {

// The second number of the file: nanoseconds on the run queue of a core without running.
int64_t NanosecondsQueued(int file) {
  char text[96];
  const ssize_t size = pread(file, text, sizeof text - 1, 0);
  if (size <= 0) return 0;
  text[size] = '\0';
  char* end = nullptr;
  (void)std::strtoll(text, &end, 10);
  return std::strtoll(end, nullptr, 10);
}

// A thread beside an equal neighbour has no core for half of the time; for a team alone, the
// longest wait was a fifth of the window in the worst tenth of windows (deploy/BENCHMARKS.md).
bool Crowded(int64_t window, int64_t longest_wait) { return 5 * longest_wait > 2 * window; }

}  // namespace

CoreWait::~CoreWait() {
  if (file_ >= 0) close(file_);
}

void CoreWait::WatchThisThread() {
  if (file_ >= 0) close(file_);
  file_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  taken_ = 0;
  (void)Take();
}

int64_t CoreWait::Take() {
  if (file_ < 0) return 0;
  const int64_t before = taken_;
  taken_ = std::max(before, NanosecondsQueued(file_));
  return taken_ - before;
}

void TeamSize::Observe(int64_t window, int64_t longest_wait) {
  const bool tried = trying_;
  trying_ = false;
  if (Crowded(window, longest_wait)) {
    if (tried) patience_ = std::min(2 * patience_, kLongestPatience);
    threads_ = std::max(1, threads_ - 1);
    calm_ = 0;
    return;
  }
  if (tried) patience_ = 1;
  if (threads_ == most_ || ++calm_ < patience_) return;
  ++threads_;
  calm_ = 0;
  trying_ = true;
}

}  // namespace rivulet
