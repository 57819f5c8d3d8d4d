// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "tests/support/cuda_emulator/block.h"

namespace rivulet::cuda_emulator {
namespace {

constexpr ptrdiff_t kAlignment = 256;  // of cudaMalloc
constexpr unsigned char kGuard = 0xA5;

size_t Pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

void* DeviceMemory::Allocate(size_t bytes, int device) {
  const size_t page = Pages(1);
  constexpr size_t kStep{kAlignment};
  const size_t rounded = (bytes + kStep - 1) / kStep * kStep;
  const size_t body = Pages(rounded);
  void* p =
      mmap(nullptr, body + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  char* map = static_cast<char*>(p);
  mprotect(map + page, body, PROT_READ | PROT_WRITE);
  memset(map + page, kGuard, body);
  char* data = map + page + (body - rounded);
  memset(data, 0xFF, bytes);  // NaN, and -1
  blocks_[reinterpret_cast<uintptr_t>(data)] = {map, body + 2 * page, bytes, device};
  allocated_[device] += bytes;
  return data;
}

bool DeviceMemory::Free(void* pointer) {
  const auto it = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == blocks_.end()) return false;
  CheckGuards();
  const Block& b = it->second;
  allocated_[b.device] -= b.bytes;
  // The pages go back, the addresses stay taken: a later access faults.
  mmap(b.map, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
  freed_.insert(blocks_.extract(it));
  return true;
}

const DeviceMemory::Block* DeviceMemory::Find(const Blocks& blocks, const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto holds = [&](const Block& b) {
    const auto map = reinterpret_cast<uintptr_t>(b.map);
    return address >= map && address < map + b.map_bytes;
  };
  // The page before the first byte is the block's too.
  const auto next = blocks.upper_bound(address);
  if (next != blocks.end() && holds(next->second)) return &next->second;
  if (next == blocks.begin()) return nullptr;
  const Block& last = std::prev(next)->second;
  return holds(last) ? &last : nullptr;
}

bool DeviceMemory::Holds(const void* p, size_t bytes) const {
  auto it = blocks_.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (it == blocks_.begin()) return false;
  --it;
  return reinterpret_cast<uintptr_t>(p) + bytes <= it->first + it->second.bytes;
}

bool DeviceMemory::Touches(const void* p) const {
  return Find(blocks_, p) != nullptr || Find(freed_, p) != nullptr;
}

void DeviceMemory::CheckGuards() const {
  const size_t page = Pages(1);
  for (const auto& entry : blocks_) {
    const Block& b = entry.second;
    const auto* data = reinterpret_cast<const unsigned char*>(entry.first);
    const auto* begin = reinterpret_cast<const unsigned char*>(b.map) + page;
    const auto* end = reinterpret_cast<const unsigned char*>(b.map) + b.map_bytes - page;
    const auto check = [&](const unsigned char* from, const unsigned char* to) {
      // memcmp is faster than a loop over bytes, and every launch checks all allocations.
      const auto equal = [&] { return std::memcmp(from, from + 1, size_t(to - from) - 1) == 0; };
      if (from >= to || (*from == kGuard && equal())) return;
      const auto* p = std::find_if(from, to, [](unsigned char byte) { return byte != kGuard; });
      Die("a write %td bytes from the beginning of an allocation of %zu bytes",
          static_cast<ptrdiff_t>(p - data), b.bytes);
    };
    check(data - begin > kAlignment ? data - kAlignment : begin, data);
    check(data + b.bytes, end);
  }
}

size_t DeviceMemory::allocated(int device) const { return allocated_[device]; }

const char* DeviceMemory::Explain(const void* p) const {
  static char text[160];
  if (const Block* const live = Find(blocks_, p)) {
    snprintf(text, sizeof text, "an access outside an allocation of %zu bytes", live->bytes);
  } else if (const Block* const freed = Find(freed_, p)) {
    snprintf(text, sizeof text, "a use of freed memory: %zu bytes", freed->bytes);
  } else {
    snprintf(text, sizeof text, "an access to address %p, which is no device memory", p);
  }
  return text;
}

}  // namespace rivulet::cuda_emulator
