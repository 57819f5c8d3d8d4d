// SPDX-License-Identifier: Apache-2.0
// ScarceMemory: large allocations of the whole test program throw, as with limited memory.
#pragma once

#include <cstddef>

namespace rivulet::testing {

// While an object exists, `operator new` throws std::bad_alloc from this size on. One object at a
// time.
class ScarceMemory {
 public:
  explicit ScarceMemory(size_t too_many);
  ~ScarceMemory();
  ScarceMemory(const ScarceMemory&) = delete;
  ScarceMemory& operator=(const ScarceMemory&) = delete;
};

}  // namespace rivulet::testing
