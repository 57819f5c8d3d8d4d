// SPDX-License-Identifier: Apache-2.0
// ErrorCounts: counts the errors that clients got.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/base/mutex.h"

namespace rivulet {

// By code and reason in ErrorInfo; the server has a fixed number of reasons. Only errors take the
// lock. Thread: any.
class ErrorCounts {
 public:
  using Counts = std::map<std::pair<absl::StatusCode, std::string>, int64_t>;

  void Add(absl::StatusCode code, absl::string_view reason) {
    MutexLock lock(&mutex_);
    ++counts_[{code, std::string(reason)}];
  }
  Counts counts() const {
    MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  mutable Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
