// SPDX-License-Identifier: Apache-2.0
// What a server knows of its clients: their connections and calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/grpc/calls/active_calls.h"
#include "server/grpc/connections/connections.h"

namespace rivulet {

// How often clients were told RESOURCE_EXHAUSTED, by the reason of its ErrorInfo; there are as many
// as the server's code has. Only errors take the lock. Thread: any.
class RefusalCounts {
 public:
  void Add(absl::string_view reason) {
    absl::MutexLock lock(&mutex_);
    ++counts_[std::string(reason)];
  }
  std::map<std::string, int64_t> counts() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

struct ServerCalls {
  ActiveCalls active;  // Generate, Score, Multiplex and the calls of SessionService
  RefusalCounts refusals;
  Connections connections;
};

}  // namespace rivulet
