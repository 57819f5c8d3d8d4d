// SPDX-License-Identifier: Apache-2.0
// MemoryShares: the memory that data of clients, such as arriving snapshots, may take. Tenants
// share it as they share sessions (fair_share.h), so that no tenant keeps the others out.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/base/mutex.h"

namespace rivulet {

// Thread: any.
class MemoryShares {
 public:
  // `reason`: of the error if no memory is left. `holders`: what takes the memory, for example
  // "snapshots that are being restored". Both are literals.
  MemoryShares(int64_t bytes, const char* reason, const char* holders)
      : bytes_(bytes), reason_(reason), holders_(holders) {}

  // Errors: RESOURCE_EXHAUSTED (`reason`), saying whose limit is reached; nothing is taken.
  absl::Status Take(const std::string& tenant, int64_t bytes);
  // Called after the memory was freed. From time to time this returns free memory to the system,
  // which may take some milliseconds. REQUIRES: `tenant` has taken at least `bytes`.
  void Give(const std::string& tenant, int64_t bytes);

 private:
  absl::Status Refused(absl::string_view message) const;

  const int64_t bytes_;
  const char* const reason_;
  const char* const holders_;
  Mutex mutex_;
  int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int64_t> taken_by_ ABSL_GUARDED_BY(mutex_);  // > 0
  int64_t kept_ ABSL_GUARDED_BY(mutex_) = 0;  // given since memory last went back to the system
};

}  // namespace rivulet
