// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/server/scarce_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace rivulet::testing {
namespace {

std::atomic<size_t> least_that_throws{SIZE_MAX};

}  // namespace

ScarceMemory::ScarceMemory(size_t too_many) { least_that_throws = too_many; }
ScarceMemory::~ScarceMemory() { least_that_throws = SIZE_MAX; }

}  // namespace rivulet::testing

// All forms but those for aligned types, as one's memory may be freed by another. Without those for
// arrays, AddressSanitizer would have its own; gRPC's slices are arrays. Inlined, GCC would warn of
// a `free` of what `new` has made.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  const size_t limit = rivulet::testing::least_that_throws.load(std::memory_order_relaxed);
  return size < limit ? std::malloc(std::max(size, size_t{1})) : nullptr;
}
[[gnu::noinline]] void* operator new(size_t size) {
  void* const memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
[[gnu::noinline]] void* operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
