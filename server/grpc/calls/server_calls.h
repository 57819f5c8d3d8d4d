// SPDX-License-Identifier: Apache-2.0
// What a server knows of its clients: who they are, their connections and calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/memory_shares.h"
#include "server/grpc/calls/active_calls.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/text_pool.h"
#include "server/grpc/connections/connections.h"

namespace rivulet {

class RequestLog;
class Tracer;

// How often clients were told an error, by its code and the reason of its ErrorInfo; there are as
// many as the server's code has. Only errors take the lock. Thread: any.
class ErrorCounts {
 public:
  using Counts = std::map<std::pair<absl::StatusCode, std::string>, int64_t>;

  void Add(absl::StatusCode code, absl::string_view reason) {
    absl::MutexLock lock(&mutex_);
    ++counts_[{code, std::string(reason)}];
  }
  Counts counts() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  mutable absl::Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

// Where what is known of a request goes at its end. Borrowed; null: nowhere.
struct RequestSinks {
  RequestLog* log = nullptr;
  Tracer* tracer = nullptr;

  bool any() const { return log != nullptr || tracer != nullptr; }
};

// Of the replies of Tokenize and Detokenize that are on their way out.
inline constexpr int64_t kTextReplyBytes = int64_t{256} << 20;

struct ServerCalls {
  explicit ServerCalls(KeyRing* keys) : callers(keys) {}  // borrowed, or null

  // Generate, Score, Tokenize, Detokenize, Multiplex and the calls of SessionService
  ActiveCalls active;
  ErrorCounts errors;
  Connections connections;
  Callers callers;
  RequestSinks sinks;
  TextPool texts;  // of these calls
  // That clients have not read yet. A tenant that reads none of it keeps nobody else out.
  MemoryShares text_replies{kTextReplyBytes, "TEXT_REPLY_MEMORY",
                            "tokens and texts that have not been read"};
};

}  // namespace rivulet
