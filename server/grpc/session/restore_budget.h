// SPDX-License-Identifier: Apache-2.0
// RestoreBudget: the memory that snapshots on their way in may take, shared between tenants as
// sessions are (engine/fair_share.h), so that none keeps the others out.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace rivulet {

// Thread: any.
class RestoreBudget {
 public:
  explicit RestoreBudget(int64_t bytes) : bytes_(bytes) {}

  // Errors: RESOURCE_EXHAUSTED (RESTORE_MEMORY), saying whose limit is reached; nothing is taken.
  absl::Status Take(const std::string& tenant, int64_t bytes);
  // The memory has been freed. Now and then it is given back to the system here, which may take
  // some milliseconds. REQUIRES: `tenant` has taken as much.
  void Give(const std::string& tenant, int64_t bytes);

 private:
  const int64_t bytes_;
  absl::Mutex mutex_;
  int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int64_t> taken_by_ ABSL_GUARDED_BY(mutex_);  // > 0
  int64_t kept_ ABSL_GUARDED_BY(mutex_) = 0;  // given since memory went back to the system
};

}  // namespace rivulet
