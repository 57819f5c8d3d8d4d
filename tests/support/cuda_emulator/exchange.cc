// SPDX-License-Identifier: Apache-2.0
// Where threads of a block meet: barriers and warp exchanges.
#include <bit>
#include <cstring>

#include "tests/support/cuda_emulator/running.h"

namespace rivulet::cuda_emulator {
namespace {

// Every thread that exists has arrived at the barrier: all go on.
void ReleaseBarrier() {
  block->last_votes = block->votes;
  block->votes = block->at_barrier = 0;
  for (int i = 0; i < block->count; ++i) Wake(*block->threads[static_cast<size_t>(i)]);
}

bool Same(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }

// Completes the exchange that `last` waits in, if all lanes of its mask wait in it.
void TryWarp(Thread& last) {
  const int first = last.index / kWarp * kWarp;
  // Too few are here to look at each. Where lanes may be missing, each is looked at.
  int& waiting = block->exchanging[static_cast<size_t>(last.index / kWarp)];
  const bool all_exist = block->live == block->count && first + kWarp <= block->count;
  if (++waiting < std::popcount(last.mask) && all_exist) return;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((last.mask >> lane & 1u) == 0) continue;
    if (first + lane >= block->count) {
      Die("%s names lane %d, which the block does not have (%s:%d)", last.op, lane, last.site.file,
          last.site.line);
    }
    const Thread& other = *block->threads[static_cast<size_t>(first + lane)];
    if (other.state == State::kDone) {
      Die("%s names lane %d, which has exited (%s:%d)", last.op, lane, last.site.file,
          last.site.line);
    }
    if (other.state != State::kAtWarp) return;
    if (other.mask != last.mask || other.site.line != last.site.line || !Same(other.op, last.op)) {
      return;  // it may yet come; if not, the block stops and all are listed
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((last.mask >> lane & 1u) == 0) continue;
    Thread& other = *block->threads[static_cast<size_t>(first + lane)];
    memcpy(other.shown, other.given, kPayloadBytes);
    --waiting;
    Wake(other);
  }
}

}  // namespace

void Wait(State state, const char* op, Site site) {
  Thread& me = *block->current;
  me.state = state;
  me.op = op;
  me.site = site;
  me.fiber.Yield();
}

void Wake(Thread& thread) {
  thread.state = State::kReady;
  block->ready[static_cast<size_t>(thread.index / kWarp)].push_back(thread.index);
  ++block->num_ready;
}

int Lane() { return block->current->index % kWarp; }

int BlockBarrier(Site site, bool vote) {
  block->votes += vote ? 1 : 0;
  if (++block->at_barrier == block->count) {
    for (int i = 0; i < block->count; ++i) {
      const Thread& t = *block->threads[static_cast<size_t>(i)];
      if (&t != block->current && t.site.line != site.line) {
        Die("threads meet at different barriers: thread %d at line %d, thread %d at %s:%d", i,
            t.site.line, block->current->index, site.file, site.line);
      }
    }
    block->current->state = State::kAtBarrier;
    ReleaseBarrier();
    block->current->fiber.Yield();
  } else {
    Wait(State::kAtBarrier, "__syncthreads", site);
  }
  return block->last_votes;
}

int PartBarrier(int size, Site site, bool vote) {
  const auto count = static_cast<size_t>(block->count / size);
  if (block->count % size != 0) {
    Die("a barrier of %d of %d threads (%s:%d)", size, block->count, site.file, site.line);
  }
  if (block->parts.size() != count) block->parts.assign(count, {});
  const int first = block->current->index / size * size;
  Part& part = block->parts[static_cast<size_t>(first / size)];
  part.votes += vote ? 1 : 0;
  if (++part.arrived < size) {
    Wait(State::kAtPart, "a barrier of a part", site);
    return part.last_votes;
  }
  for (int i = first; i < first + size; ++i) {
    Thread& t = *block->threads[static_cast<size_t>(i)];
    if (&t == block->current) continue;
    if (t.site.line != site.line) {
      Die("threads meet at different barriers: thread %d at line %d, thread %d at %s:%d", i,
          t.site.line, block->current->index, site.file, site.line);
    }
    Wake(t);
  }
  part.last_votes = part.votes;
  part.votes = part.arrived = 0;
  return part.last_votes;
}

void WarpCollective(const char* op, unsigned mask, const void* payload, size_t bytes, Site site) {
  Thread& me = *block->current;
  if ((mask >> Lane() & 1u) == 0) {
    Die("%s is called by lane %d, which its mask leaves out (%s:%d)", op, Lane(), site.file,
        site.line);
  }
  if (bytes > 0) memcpy(me.given, payload, bytes);
  me.mask = mask;
  me.state = State::kAtWarp;
  me.op = op;
  me.site = site;
  TryWarp(me);
  me.fiber.Yield();
}

const void* LanePayload(int lane, unsigned mask, const char* op, Site site) {
  if (lane < 0 || lane >= kWarp || (mask >> lane & 1u) == 0) {
    Die("%s reads lane %d, which takes no part (%s:%d)", op, lane, site.file, site.line);
  }
  return block->threads[static_cast<size_t>(block->current->index / kWarp * kWarp + lane)]->shown;
}

unsigned Ballot(unsigned mask, bool predicate, Site site) {
  WarpCollective("__ballot_sync", mask, &predicate, sizeof predicate, site);
  unsigned bits = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    if (*static_cast<const bool*>(LanePayload(lane, mask, "__ballot_sync", site))) {
      bits |= 1u << lane;
    }
  }
  return bits;
}

}  // namespace rivulet::cuda_emulator
