// SPDX-License-Identifier: Apache-2.0
// CallModel: what a call holds of its model from its handler to the engine's last word, while gRPC
// may cancel it at any time, also before the engine has the request.
#pragma once

#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/grpc/calls/served_models.h"

namespace rivulet {

// Thread: Cancel any; the others are for whoever has the engine's next word.
class CallModel {
 public:
  CallModel() = default;
  explicit CallModel(ModelHold hold) : hold_(std::move(hold)) {}

  // REQUIRES: nothing is held.
  void Hold(ModelHold hold) {
    MutexLock lock(&mutex_);
    hold_ = std::move(hold);
  }

  // REQUIRES: something is held, and Release has not been called.
  Engine* engine() {
    MutexLock lock(&mutex_);
    return hold_.engine();
  }
  // The engine has taken the request, and may have had its last word already.
  void SetId(RequestId id) {
    MutexLock lock(&mutex_);
    id_ = id;
    if (cancelled_ && hold_) hold_.engine()->Cancel(id_);
  }
  // The engine ends the request once it has it. No effect once released.
  void Cancel() {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    if (hold_ && id_ != 0) hold_.engine()->Cancel(id_);
  }
  // The engine has had its last word: it may end.
  void Release() {
    MutexLock lock(&mutex_);
    hold_.Release();
  }

 private:
  Mutex mutex_;
  ModelHold hold_ ABSL_GUARDED_BY(mutex_);
  RequestId id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rivulet
