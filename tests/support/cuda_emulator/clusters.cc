// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/clusters.h"

#include <cstring>
#include <vector>

#include "tests/support/cuda_emulator/running.h"

namespace rivulet::cuda_emulator {
namespace {

// What the eight bytes of a barrier hold.
struct Counted {
  int32_t bytes;  // expected and not yet here; negative: here before they were expected
  uint8_t count, left;
  uint8_t phase;
  uint8_t mark;
};
static_assert(sizeof(Counted) == sizeof(uint64_t));
constexpr uint8_t kMark = 0x5B;
// After so long nothing comes any more: the clock runs away where nobody does anything.
constexpr uint64_t kNever = 3'600'000'000'000;

struct Copy {
  Block* block;
  unsigned char* to;
  const void* from;
  size_t bytes;
  uint64_t* barrier;
};
std::vector<Copy> pending;
uint64_t asked = 0;
unsigned arrived = 0;  // at the cluster's barrier
uint64_t generation = 0;

Counted Load(const uint64_t* barrier, Site site) {
  Counted state;
  if (reinterpret_cast<uintptr_t>(barrier) % sizeof state != 0) {
    Die("a barrier at %p: not aligned (%s:%d)", static_cast<const void*>(barrier), site.file,
        site.line);
  }
  std::memcpy(&state, barrier, sizeof state);
  if (state.mark != kMark) Die("a barrier that nobody made (%s:%d)", site.file, site.line);
  return state;
}

void Store(uint64_t* barrier, Counted state) {
  if (state.left == 0 && state.bytes == 0) {
    state.left = state.count;
    ++state.phase;
  }
  std::memcpy(barrier, &state, sizeof state);
}

// What lies in block `rank` where `p` lies in this one.
template <class T>
T* Peer(T* p, unsigned rank, size_t bytes, Site site) {
  const auto offset =
      reinterpret_cast<const unsigned char*>(p) - static_cast<unsigned char*>(SharedMemory());
  if (offset < 0 || static_cast<size_t>(offset) + bytes > SharedBytes()) {
    Die("%p is not in shared memory (%s:%d)", static_cast<const void*>(p), site.file, site.line);
  }
  Block* const peer = PeerBlock(rank);
  if (peer == nullptr) Die("the cluster has no block %u (%s:%d)", rank, site.file, site.line);
  if (peer->live == 0) {
    Die("reaches into block %u of the cluster, which has exited (%s:%d)", rank, site.file,
        site.line);
  }
  return reinterpret_cast<T*>(peer->shared_begin + offset);
}

void Land(const Copy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  Counted state = Load(copy.barrier, {});
  state.bytes -= static_cast<int32_t>(copy.bytes);
  Store(copy.barrier, state);
}

// Lets one copy land for which `barrier` of this block waits.
void LandOne(const uint64_t* barrier) {
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].barrier != barrier) continue;
    const Copy copy = pending[i];
    pending.erase(pending.begin() + static_cast<ptrdiff_t>(i));
    Land(copy);
    return;
  }
}

}  // namespace

unsigned ClusterRank() { return blockIdx.x % ClusterSize(); }

void ClusterBarrier(Site site) {
  const uint64_t mine = generation, begin = Nanoseconds();
  if (++arrived == ClusterSize() * static_cast<unsigned>(block->count)) {
    arrived = 0;
    ++generation;
    return;
  }
  while (generation == mine) {
    if (Nanoseconds() - begin > kNever) {
      Die("a barrier of a cluster is not reached by all its threads (%s:%d)", site.file, site.line);
    }
    Pause();
  }
}

void InitBarrier(uint64_t* barrier, unsigned count) {
  if (count < 1 || count > 255) Die("a barrier of %u", count);
  const Counted state = {0, static_cast<uint8_t>(count), static_cast<uint8_t>(count), 0, kMark};
  std::memcpy(barrier, &state, sizeof state);
}

void ExpectBytes(uint64_t* barrier, unsigned bytes, Site site) {
  Counted state = Load(barrier, site);
  if (state.left == 0) Die("more arrive at a barrier than it is for (%s:%d)", site.file, site.line);
  state.bytes += static_cast<int32_t>(bytes);
  --state.left;
  Store(barrier, state);
}

void ArriveAt(uint64_t* barrier, unsigned rank, Site site) {
  uint64_t* const there = Peer(barrier, rank, sizeof *barrier, site);
  Counted state = Load(there, site);
  if (state.left == 0) Die("more arrive at a barrier than it is for (%s:%d)", site.file, site.line);
  --state.left;
  Store(there, state);
}

void AwaitPhase(uint64_t* barrier, unsigned parity, Site site) {
  const uint64_t begin = Nanoseconds();
  while ((Load(barrier, site).phase & 1u) == parity) {
    if (Nanoseconds() - begin > kNever) {
      const Counted state = Load(barrier, site);
      Die("a barrier's phase never ends: %d of %d and %d bytes are missing (%s:%d)", state.left,
          state.count, state.bytes, site.file, site.line);
    }
    LandOne(barrier);
    if ((Load(barrier, site).phase & 1u) == parity) Pause();
  }
}

void CopyToBlocks(void* to, const void* from, size_t bytes, uint64_t* barrier, unsigned blocks,
                  Site site) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 ||
      bytes % 16 != 0 || bytes == 0) {
    Die("a bulk copy of %zu bytes from %p to %p: not multiples of 16 (%s:%d)", bytes, from, to,
        site.file, site.line);
  }
  for (unsigned rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1u) == 0) continue;
    const Copy copy = {PeerBlock(rank), Peer(static_cast<unsigned char*>(to), rank, bytes, site),
                       from, bytes, Peer(barrier, rank, sizeof *barrier, site)};
    if (++asked % 2 == 0) {
      Land(copy);
    } else {
      pending.push_back(copy);
    }
  }
}

void BeginCluster() {
  arrived = 0;
  pending.clear();
}

void CheckEndedBlock() {
  for (const Copy& copy : pending) {
    if (copy.block == block) Die("a bulk copy is on its way into a block that has exited");
  }
}

}  // namespace rivulet::cuda_emulator
