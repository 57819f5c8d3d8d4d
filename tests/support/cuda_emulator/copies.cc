// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/copies.h"

#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/cuda_emulator/running.h"

namespace rivulet::cuda_emulator {
namespace {

uint64_t asked = 0;

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
    block->current->copies.push_back(copy);
  }
}

void CommitCopies() {
  Thread& me = *block->current;
  me.groups.push_back(std::move(me.copies));
  me.copies.clear();
}

void WaitForCopies(size_t open_groups) {
  std::vector<std::vector<Copy>>& groups = block->current->groups;
  for (; groups.size() > open_groups; groups.erase(groups.begin())) {
    for (const Copy& copy : groups.front()) Do(copy);
  }
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
