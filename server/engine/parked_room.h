// SPDX-License-Identifier: Apache-2.0
// Host memory for the states of replies that gave up their slots (EngineOptions::max_parked_bytes),
// counted in samples.
//
// Preempted replies: while one tenant's replies have their turn, all that others have begun may be
// parked, and a tenant may have begun as much as there are slots. So for two tenants, whatever they
// ask for, it must hold the states of all slots twice. Two thirds of the memory, and at least that,
// are theirs; what is left is for replies that nobody reads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/backend.h"

namespace rivulet {

struct ParkedRoom {
  int64_t begun = 0;    // samples that hold slots or were preempted
  int64_t readers = 0;  // samples that nobody reads
};

// The least that max_parked_bytes may be, but for 0.
inline int64_t LeastParkedBytes(const BackendLimits& limits) {
  return 2 * int64_t{limits.num_slots} * static_cast<int64_t>(limits.bytes_per_slot);
}

// `max_bytes` 0: three times what all slots take.
inline ParkedRoom ParkedRoomOf(int64_t max_bytes, const BackendLimits& limits) {
  const int64_t least = 2 * int64_t{limits.num_slots};
  const int64_t all = max_bytes == 0 ? 3 * int64_t{limits.num_slots}
                                     : max_bytes / static_cast<int64_t>(limits.bytes_per_slot);
  ParkedRoom room;
  room.begun = std::min(all, std::max(least, all / 3 * 2));
  room.readers = all - room.begun;
  return room;
}

}  // namespace rivulet
