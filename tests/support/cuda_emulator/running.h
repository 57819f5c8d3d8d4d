// SPDX-License-Identifier: Apache-2.0
// The state that block.cc (runs blocks) and exchange.cc (barriers and exchanges of threads) share.
#pragma once

#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "tests/support/cuda_emulator/block.h"
#include "tests/support/cuda_emulator/fiber.h"

namespace rivulet::cuda_emulator {

inline constexpr int kWarp = 32;
enum class State : uint8_t { kReady, kAtBarrier, kAtPart, kAtWarp, kAtPredecessor, kPaused, kDone };

// A copy of cp.async (copies.h).
struct Copy {
  void* to;
  const void* from;
  size_t bytes, valid;
};

struct Thread {
  Fiber fiber;
  State state = State::kReady;
  int index = 0;
  uint3 at = {};
  Site site;            // where it waits
  const char* op = "";  // operation for which it waits
  unsigned mask = 0;
  bool vote = false;
  alignas(16) unsigned char given[kPayloadBytes];  // aligned, since they are read as structs
  alignas(16) unsigned char shown[kPayloadBytes];  // of the last completed exchange
  std::vector<Copy> copies;                        // waiting copies that are in no group yet
  std::vector<std::vector<Copy>> groups;           // groups of copies, the oldest first
};

// A part of a block's threads, with its own barrier.
struct Part {
  int arrived = 0, votes = 0, last_votes = 0;
};

// A block at work.
struct Block {
  uint3 at = {};
  std::vector<std::unique_ptr<Thread>> threads;  // grows, never shrinks
  int count = 0, live = 0, at_barrier = 0;
  int votes = 0, last_votes = 0;
  std::vector<Part> parts;              // parts of the block with their own barriers
  int waited = 0;                       // threads that have waited for the predecessor
  std::vector<std::vector<int>> ready;  // by warp
  std::vector<int> exchanging;          // threads that wait in an exchange, by warp
  std::vector<int> paused;
  int num_ready = 0;
  size_t warp = 0;         // ran last
  bool one_ahead = false;  // this block lets a warp run as far as it can
  Thread* current = nullptr;
  std::vector<unsigned char> shared;
  unsigned char* shared_begin = nullptr;
};

extern Block* block;  // block of the running thread

// The running thread stops until it is woken.
void Wait(State state, const char* op, Site site);
// `thread` of `block` is ready again.
void Wake(Thread& thread);

}  // namespace rivulet::cuda_emulator
