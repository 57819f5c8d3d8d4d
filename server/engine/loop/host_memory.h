// SPDX-License-Identifier: Apache-2.0
// Host memory for the states of parked and of preempted replies (EngineOptions::max_host_bytes).
//
// Preempted replies: while one tenant's replies have their turn, all samples that other tenants
// have begun may be preempted, and each tenant may have begun one sample per slot. So for two
// tenants, with any requests, the memory must hold the states of all slots twice, at their largest
// size. Preempted replies get two thirds of the memory, and at least LeastHostBytes. The rest is
// for parked replies, which nobody reads: they feed nothing, so the present size of their states
// counts. By default parked replies have 256 MiB of their own, because slow readers without room
// there keep slots from other requests of their tenant.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/backend.h"

namespace rivulet {

struct StateMemory {
  int64_t begun = 0;         // samples that hold slots or were preempted
  int64_t reader_bytes = 0;  // of the states of samples that nobody reads
};

// The least that max_host_bytes may be, unless it is 0.
inline int64_t LeastHostBytes(const BackendLimits& limits) {
  return 2 * int64_t{limits.num_slots} * static_cast<int64_t>(limits.bytes_per_slot);
}

// `max_bytes` 0: twice what all slots take, and for readers 256 MiB, or once what all slots take.
inline StateMemory StateMemoryOf(int64_t max_bytes, const BackendLimits& limits) {
  constexpr int64_t kReadersBytes = int64_t{256} << 20;
  const int64_t slots = limits.num_slots, least = 2 * slots;
  const auto slot_bytes = static_cast<int64_t>(limits.bytes_per_slot);
  if (max_bytes == 0) return {least, std::max(slots * slot_bytes, kReadersBytes)};
  const int64_t all = max_bytes / slot_bytes;
  StateMemory room;
  room.begun = std::min(all, std::max(least, all / 3 * 2));
  room.reader_bytes = (all - room.begun) * slot_bytes;
  return room;
}

}  // namespace rivulet
