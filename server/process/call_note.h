// SPDX-License-Identifier: Apache-2.0
// CallNote: which method the calling thread works on, for the log and the crash handler. Not part
// of CallContext, which a signal handler cannot find and threads of the engine do not have.
#pragma once

#include <atomic>

#include "model/base/thread.h"

namespace rivulet {

// Notes `method`, for example "Generate", while this lives. The text must outlive the thread's
// calls. Thread: the thread that makes it.
class CallNote {
 public:
  explicit CallNote(const char* method) : outer_(Current()) {
    UseSignalStack();  // gRPC's threads get theirs with their first call
    Set(method);
  }
  CallNote(const CallNote&) = delete;
  CallNote& operator=(const CallNote&) = delete;
  ~CallNote() { Set(outer_); }

  // "" outside all calls. Thread: any, and signal handlers.
  static const char* Current() { return current_.load(std::memory_order_relaxed); }

 private:
  static void Set(const char* method) { current_.store(method, std::memory_order_relaxed); }

  // Atomic for the signal handler: the compiler may drop a plain store that the thread never reads.
  inline static thread_local std::atomic<const char*> current_ = "";
  const char* const outer_;
};

}  // namespace rivulet
