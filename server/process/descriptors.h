// SPDX-License-Identifier: Apache-2.0
// File descriptors of this process: how many it may open, how many are left for connections, and a
// few in reserve.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace rivulet {

// The soft limit of RLIMIT_NOFILE, which is the limit in force, in descriptors.
int64_t DescriptorLimit();

// Raises the soft limit to the hard one, for this process. Returns the soft limit before.
int64_t RaiseDescriptorLimit();

// Descriptors that are open now.
int64_t OpenDescriptors();

// The number of connections of `each` descriptors that fit beside `open` descriptors under a soft
// limit of `limit`, if a quarter of the limit, at most 512, stays free for other descriptors. At
// least 1.
int64_t ConnectionsThatFit(int64_t limit, int64_t open, int each);

// Reserved descriptors, for when the process or the machine has no more. Thread: any.
class SpareDescriptors {
 public:
  explicit SpareDescriptors(int count);
  ~SpareDescriptors();

  // Closes one descriptor, so that the next call that needs a descriptor gets it, unless another
  // thread is faster. False if none is left.
  bool Release();
  // Replaces the released descriptors, as far as the system has descriptors. Costs nothing if none
  // is missing.
  void Refill();

 private:
  const size_t count_;
  Mutex mutex_;
  std::vector<int> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
