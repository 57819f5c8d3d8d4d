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

Warp& WarpOf(const Thread& thread) {
  return block->warps[static_cast<size_t>(thread.index / kWarp)];
}

// The threads of `lanes` of the warp of `thread`.
template <class Fn>
void ForLanes(const Thread& thread, unsigned lanes, const Fn& fn) {
  const auto* const first = &block->threads[static_cast<size_t>(thread.index / kWarp * kWarp)];
  for (; lanes != 0; lanes &= lanes - 1) fn(*first[std::countr_zero(lanes)]);
}

// Completes the exchange that `last` waits in, if all lanes of its mask wait in it.
void TryWarp(const Thread& last) {
  Warp& warp = WarpOf(last);
  if (const unsigned gone = last.mask & warp.gone; gone != 0) {
    const int lane = std::countr_zero(gone);
    Die("%s names lane %d, which %s (%s:%d)", last.op, lane,
        lane < warp.lanes ? "has exited" : "the block does not have", last.site.file,
        last.site.line);
  }
  if ((last.mask & ~warp.exchanging) != 0) return;
  bool all = true;
  ForLanes(last, last.mask, [&](const Thread& other) {
    all = all && other.mask == last.mask && other.site.line == last.site.line &&
          Same(other.op, last.op);
  });
  if (!all) return;  // others may yet come; if not, the block stops and all are listed
  warp.exchanging &= ~last.mask;
  ForLanes(last, last.mask, [](Thread& other) {
    other.shown ^= 1;
    Wake(other);
  });
}

}  // namespace

void Wait(State state, const char* op, Site site) {
  Thread& me = *block->current;
  me.state = state;
  me.op = op;
  me.site = site;
  RunOthers();
}

void Wake(Thread& thread) {
  thread.state = State::kReady;
  WarpOf(thread).ready |= 1u << thread.index % kWarp;
  block->ready_warps |= 1u << thread.index / kWarp;
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
    RunOthers();
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
  if (bytes > 0) memcpy(me.payloads[me.shown ^ 1], payload, bytes);
  me.mask = mask;
  me.state = State::kAtWarp;
  me.op = op;
  me.site = site;
  WarpOf(me).exchanging |= 1u << Lane();
  TryWarp(me);
  RunOthers();
}

const void* LanePayload(int lane, unsigned mask, const char* op, Site site) {
  if (lane < 0 || lane >= kWarp || (mask >> lane & 1u) == 0) {
    Die("%s reads lane %d, which takes no part (%s:%d)", op, lane, site.file, site.line);
  }
  const Thread& giver =
      *block->threads[static_cast<size_t>(block->current->index / kWarp * kWarp + lane)];
  return giver.payloads[giver.shown];
}

unsigned Ballot(unsigned mask, bool predicate, Site site) {
  WarpCollective("__ballot_sync", mask, &predicate, sizeof predicate, site);
  unsigned bits = 0;
  ForLanes(*block->current, mask, [&](const Thread& giver) {
    if (giver.payloads[giver.shown][0] != 0) bits |= 1u << giver.index % kWarp;
  });
  return bits;
}

}  // namespace rivulet::cuda_emulator
