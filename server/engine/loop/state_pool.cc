// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/state_pool.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace rivulet {
namespace {

// A slot given back twice would be handed to two sessions at once: no answer is better than a wrong
// one.
void CheckOrDie(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "StatePool: %s\n", what);
  std::abort();
}

}  // namespace

StatePool::StatePool(int num_slots) {
  CheckOrDie(num_slots >= 0, "the number of slots is negative");
  used_.resize(static_cast<size_t>(num_slots) + 1, false);
  free_.resize(static_cast<size_t>(num_slots));
  std::iota(free_.rbegin(), free_.rend(), kGuardSlot + 1);
}

Slot StatePool::Take() {
  if (free_.empty()) return kGuardSlot;
  const Slot slot = free_.back();
  free_.pop_back();
  used_[static_cast<size_t>(slot)] = true;
  return slot;
}

void StatePool::Give(Slot slot) {
  CheckOrDie(slot > kGuardSlot && slot <= capacity(), "a slot that does not exist is given back");
  CheckOrDie(used_[static_cast<size_t>(slot)], "a free slot is given back");
  used_[static_cast<size_t>(slot)] = false;
  free_.push_back(slot);
}

}  // namespace rivulet
