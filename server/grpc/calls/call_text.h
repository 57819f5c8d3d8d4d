// SPDX-License-Identifier: Apache-2.0
// CallText: converts the text of a call, before the call goes to its engine.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/calls/text_pool.h"
#include "server/process/call_note.h"

namespace rivulet {

// Thread: Run once; Cancel any.
class CallText {
 public:
  // Calls convert(turn) once, at once or later on a thread of the pool; turn.Check says whether the
  // text may be converted. `bytes`: size of the text, 0 where the request has none. REQUIRES: the
  // caller has a CallNote.
  template <typename Convert>
  void Run(ServerCalls* calls, const Caller& caller, absl::Time deadline, int64_t bytes,
           Convert convert) {
    auto turn = std::make_shared<TextTurn>(
        TextTurn::Order{caller.tenant, bytes, bytes * kMemoryPerByte, deadline},
        [convert = std::move(convert), method = CallNote::Current()](const TextTurn& own) {
          const CallNote note(method);
          convert(own);
        });
    {
      MutexLock lock(&mutex_);
      pool_ = &calls->texts;
      turn_ = turn;
      if (cancelled_) turn->Cancel();
    }
    calls->texts.Run(turn, caller.TakeText(bytes));
  }

  // Ends the conversion of the text; no effect once the text is converted.
  void Cancel() {
    std::shared_ptr<TextTurn> turn;
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
      turn = turn_.lock();
    }
    if (turn != nullptr) pool_->Cancel(turn);
  }

 private:
  // For each byte of a text: at most one token, and one byte of the normalised text.
  static constexpr auto kMemoryPerByte = static_cast<int64_t>(kTextBytesPerByte + 4);

  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  TextPool* pool_ = nullptr;  // set before turn_
  std::weak_ptr<TextTurn> turn_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
