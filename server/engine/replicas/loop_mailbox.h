// SPDX-License-Identifier: Apache-2.0
// LoopMailbox: work that other threads leave for the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace rivulet {

// Thread: any, except as noted. It outlives the loop where other threads hold it.
class LoopMailbox {
 public:
  // `wake`: called with each Post.
  explicit LoopMailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Post(std::function<void()> work) {
    MutexLock lock(&mutex_);
    if (wake_ == nullptr) return;
    work_.push_back(std::move(work));
    wake_();
  }
  // Thread: the loop. Does the posted work, in order.
  void Run() {
    std::vector<std::function<void()>> work;
    {
      MutexLock lock(&mutex_);
      work.swap(work_);
    }
    for (const auto& next : work) next();
  }
  // The loop has ended: work that is posted from now on is dropped.
  void Close() {
    MutexLock lock(&mutex_);
    wake_ = nullptr;
    work_.clear();
  }

 private:
  Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
};

// A callback for another thread, which posts `take` with its result.
template <typename Result>
std::function<void(Result)> Posting(const std::shared_ptr<LoopMailbox>& mailbox,
                                    std::function<void(const Result&)> take) {
  return [mailbox, take = std::move(take)](Result result) {
    mailbox->Post([take, result = std::move(result)] { take(result); });
  };
}

}  // namespace rivulet
