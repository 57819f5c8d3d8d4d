// SPDX-License-Identifier: Apache-2.0
// Counts the requests whose last byte was not sent yet, so that a drain can wait for slow readers,
// too.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace rivulet {

// Thread: any.
class ActiveCalls {
 public:
  void Enter() {
    MutexLock lock(&mutex_);
    ++count_;
  }
  void Leave() {
    MutexLock lock(&mutex_);
    if (--count_ == 0) none_.NotifyAll();
  }
  // False if calls are still active at `deadline`.
  bool WaitUntilNone(absl::Time deadline) {
    MutexLock lock(&mutex_);
    while (count_ > 0) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      none_.WaitFor(&mutex_, left);
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar none_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rivulet
