// SPDX-License-Identifier: Apache-2.0
// ScarceMemory: large allocations of the whole test program throw, as they do where memory is
// limited.
#pragma once

#include <cstddef>

namespace rivulet::testing {

// While it lives, `operator new` throws std::bad_alloc for so many bytes or more. One at a time.
class ScarceMemory {
 public:
  explicit ScarceMemory(size_t too_many);
  ~ScarceMemory();
  ScarceMemory(const ScarceMemory&) = delete;
  ScarceMemory& operator=(const ScarceMemory&) = delete;
};

}  // namespace rivulet::testing
