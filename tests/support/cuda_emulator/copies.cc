// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/copies.h"

#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "tests/support/cuda_emulator/block.h"

namespace rivulet::cuda_emulator {
namespace {

struct Copy {
  void* to;
  const void* from;
  size_t bytes, valid;
};

// Of one thread.
struct Pending {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

// Of the threads that have any, by block and thread.
std::map<std::pair<uint64_t, unsigned>, Pending> pending;
uint64_t asked = 0;

std::pair<uint64_t, unsigned> Me() {
  const uint64_t block =
      (uint64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + uint64_t{blockIdx.x};
  return {block, (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x};
}

void Do(const Copy& copy) {
  std::memcpy(copy.to, copy.from, copy.valid);
  std::memset(static_cast<char*>(copy.to) + copy.valid, 0, copy.bytes - copy.valid);
}

}  // namespace

void CopyAsync(void* to, const void* from, size_t bytes, size_t valid) {
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 ||
      (valid > 0 && reinterpret_cast<uintptr_t>(from) % bytes != 0)) {
    Die("an asynchronous copy of %zu bytes from %p to %p is not aligned", bytes, from, to);
  }
  if (valid > bytes) Die("an asynchronous copy of %zu bytes of %zu", valid, bytes);
  const Copy copy = {to, from, bytes, valid};
  if (++asked % 2 == 0) {
    Do(copy);
  } else {
    pending[Me()].open.push_back(copy);
  }
}

void CommitCopies() {
  Pending& mine = pending[Me()];
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

void WaitForCopies(size_t open_groups) {
  const auto found = pending.find(Me());
  if (found == pending.end()) return;
  Pending& mine = found->second;
  for (; mine.groups.size() > open_groups; mine.groups.pop_front()) {
    for (const Copy& copy : mine.groups.front()) Do(copy);
  }
  if (mine.groups.empty() && mine.open.empty()) pending.erase(found);
}

void LoadTiles(uint32_t (&r)[4], const void* row) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) Die("ldmatrix from %p: not aligned", row);
  const Site site{__FILE__, __LINE__};
  WarpCollective("LoadTiles", kAll, &row, sizeof row, site);
  for (int tile = 0; tile < 4; ++tile) {
    const void* from;
    std::memcpy(&from, LanePayload(8 * tile + Lane() / 4, kAll, "LoadTiles", site), sizeof from);
    std::memcpy(&r[tile], static_cast<const char*>(from) + Lane() % 4 * 4, 4);
  }
}

}  // namespace rivulet::cuda_emulator
