// SPDX-License-Identifier: Apache-2.0
// The emulator's device memory: every allocation between inaccessible pages, its end close to one,
// filled with NaN patterns; freed memory stays inaccessible. Thread: under the runtime's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace rivulet::cuda_emulator {

class DeviceMemory {
 public:
  // Null if the machine has no address space left.
  void* Allocate(size_t bytes, int device);
  // False for a pointer that was not allocated, or freed before.
  bool Free(void* pointer);
  // Whether [p, p + bytes) lies in one allocation / begins in any.
  bool Holds(const void* p, size_t bytes) const;
  bool Touches(const void* p) const;
  // Aborts, naming the allocation, if a guard zone was written.
  void CheckGuards() const;
  size_t allocated(int device) const;

  // Text for an address that faulted; never null.
  const char* Explain(const void* p) const;

 private:
  struct Block {
    char* map;
    size_t map_bytes;
    size_t bytes;
    int device;
  };
  using Blocks = std::map<uintptr_t, Block>;  // by first byte of the allocation
  // The block whose pages, inaccessible ones included, hold `p`; null: none.
  static const Block* Find(const Blocks& blocks, const void* p);
  Blocks blocks_, freed_;
  size_t allocated_[16] = {};
};

}  // namespace rivulet::cuda_emulator
