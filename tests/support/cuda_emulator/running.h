// SPDX-License-Identifier: Apache-2.0
// The state that block.cc (runs blocks) and exchange.cc (barriers and exchanges of threads) share.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "tests/support/cuda_emulator/block.h"
#include "tests/support/cuda_emulator/fiber.h"

namespace rivulet::cuda_emulator {

inline constexpr int kWarp = 32, kMostWarps = 32;
enum class State : uint8_t { kReady, kAtBarrier, kAtPart, kAtWarp, kAtPredecessor, kDone };

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
  int shown = 0;  // the payload of the last completed exchange; the other one is of the next
  alignas(16) unsigned char payloads[2][kPayloadBytes];  // aligned, since they are read as structs
  std::vector<Copy> copies;                              // waiting copies that are in no group yet
  std::vector<std::vector<Copy>> groups;                 // groups of copies, the oldest first
};

// A part of a block's threads, with its own barrier.
struct Part {
  int arrived = 0, votes = 0, last_votes = 0;
};

// Lanes as bits.
struct Warp {
  unsigned ready = 0, exchanging = 0;
  unsigned gone = 0;  // have exited, or never were
  int lanes = 0;
};

// A block at work.
struct Block {
  uint3 at = {};
  std::vector<std::unique_ptr<Thread>> threads;  // grows, never shrinks
  int count = 0, live = 0, at_barrier = 0;
  int votes = 0, last_votes = 0;
  std::vector<Part> parts;  // parts of the block with their own barriers
  int waited = 0;           // threads that have waited for the predecessor
  std::array<Warp, kMostWarps> warps;
  unsigned ready_warps = 0;     // warps with threads that are ready, as bits
  int num_warps = 0, warp = 0;  // warp: ran last
  bool one_ahead = false;       // this block lets a warp run as far as it can
  Thread* current = nullptr;
  std::vector<unsigned char> shared;
  unsigned char* shared_begin = nullptr;
};

extern Block* block;  // block of the running thread

// The running thread stops until it is woken.
void Wait(State state, const char* op, Site site);
// The same for a thread whose state says already what it waits for.
void RunOthers();
// `thread` of `block` is ready again.
void Wake(Thread& thread);

}  // namespace rivulet::cuda_emulator
