// SPDX-License-Identifier: Apache-2.0
// StatePool: which slots are free. Pure bookkeeping: it owns no memory and knows no device.
#pragma once

#include <cstdint>
#include <vector>

#include "model/backend.h"

namespace rivulet {

// Slots 1..num_slots; slot 0 is the guard that padding rows use, and is never handed out.
// Invariant: free() + used() == capacity(); a slot is either free or used.
// Thread: the engine's loop thread only.
class StatePool {
 public:
  explicit StatePool(int num_slots);

  // A free slot, the one freed last first: what few requests at a time touch stays few slots, in
  // the caches and in memory. kGuardSlot where none is free. The caller zeroes it.
  Slot Take();
  // Gives a slot back. REQUIRES: it is used. The caller has zeroed it.
  void Give(Slot slot);

  int capacity() const { return static_cast<int>(used_.size()) - 1; }
  int free() const { return static_cast<int>(free_.size()); }
  int used() const { return capacity() - free(); }

 private:
  std::vector<bool> used_;  // [slots + 1]
  std::vector<Slot> free_;  // a stack: the last is handed out next
};

}  // namespace rivulet
