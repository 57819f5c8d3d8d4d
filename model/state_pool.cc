// SPDX-License-Identifier: Apache-2.0
#include "model/state_pool.h"

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
  queue_.resize(static_cast<size_t>(num_slots));
  std::iota(queue_.begin(), queue_.end(), kGuardSlot + 1);
}

Slot StatePool::Take() {
  if (free() == 0) return kGuardSlot;
  const Slot slot = queue_[head_];
  head_ = (head_ + 1) % queue_.size();
  used_[static_cast<size_t>(slot)] = true;
  ++num_used_;
  return slot;
}

void StatePool::Give(Slot slot) {
  CheckOrDie(slot > kGuardSlot && slot <= capacity(), "a slot that does not exist is given back");
  CheckOrDie(used_[static_cast<size_t>(slot)], "a free slot is given back");
  used_[static_cast<size_t>(slot)] = false;
  // The free slots are the free() entries from head_ on; this one goes behind them.
  queue_[(head_ + static_cast<size_t>(free())) % queue_.size()] = slot;
  --num_used_;
}

}  // namespace rivulet
