// SPDX-License-Identifier: Apache-2.0
// CallModel: what a call holds of its model from its handler to the engine's last word, while gRPC
// may cancel it at any time.
#pragma once

#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/grpc/calls/served_models.h"

namespace rivulet {

// Thread: Cancel any; the others are for whoever has the engine's next word.
class CallModel {
 public:
  explicit CallModel(ModelHold hold) : hold_(std::move(hold)) {}

  // REQUIRES: something is held, and Release has not been called.
  Engine* engine() {
    MutexLock lock(&mutex_);
    return hold_.engine();
  }
  // No effect once released.
  void Cancel(RequestId id) {
    MutexLock lock(&mutex_);
    if (hold_) hold_.engine()->Cancel(id);
  }
  // The engine has had its last word: it may end.
  void Release() {
    MutexLock lock(&mutex_);
    hold_.Release();
  }

 private:
  Mutex mutex_;
  ModelHold hold_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
