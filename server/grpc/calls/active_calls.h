// SPDX-License-Identifier: Apache-2.0
// Counts the requests whose last byte was not sent yet, so that a drain can wait for slow readers,
// too.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rivulet {

// Thread: any.
class ActiveCalls {
 public:
  void Enter() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Leave() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }
  // False if calls are still active at `deadline`.
  bool WaitUntilNone(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithDeadline(absl::Condition(
                                        +[](int* count) { return *count == 0; }, &count_),
                                    deadline);
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rivulet
