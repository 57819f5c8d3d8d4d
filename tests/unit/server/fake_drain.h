// SPDX-License-Identifier: Apache-2.0
// The drain of a FakeEngine.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rivulet::testing {

// Thread: any.
class FakeDrain {
 public:
  // Engine::Drain: returns true at once. After Hold, waits for End and returns its value.
  bool Run(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    deadlines_.push_back(deadline);
    mutex_.Await(absl::Condition(&ends_));
    return all_ended_;
  }
  void Hold(int client_sessions) {
    absl::MutexLock lock(&mutex_);
    client_sessions_ = client_sessions;
    ends_ = false;
  }
  void End(bool all_ended) {
    absl::MutexLock lock(&mutex_);
    all_ended_ = all_ended;
    ends_ = true;
  }
  // Waits for `count` drains and returns their deadlines.
  std::vector<absl::Time> WaitFor(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto come = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return deadlines_.size() >= count;
    };
    mutex_.Await(absl::Condition(&come));
    return deadlines_;
  }
  int client_sessions() const {
    absl::MutexLock lock(&mutex_);
    return client_sessions_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<absl::Time> deadlines_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = true;
  bool all_ended_ ABSL_GUARDED_BY(mutex_) = true;
  int client_sessions_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rivulet::testing
