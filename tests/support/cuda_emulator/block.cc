// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/block.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "tests/support/cuda_emulator/running.h"
#include "tests/support/cuda_emulator/runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace rivulet::cuda_emulator {

Block* block = nullptr;

struct Work {
  uint64_t Random() {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
  }
  // 0 to below - 1, without a division, which a switch between threads would notice.
  template <class Int>
  Int Random(Int below) {
    return static_cast<Int>(Random() * static_cast<uint64_t>(below) >> 31);
  }

  std::shared_ptr<const Launch> launch;
  bool shuffled = false, early = false;  // early: stops where it waits for its predecessor
  uint64_t random_state = 0;
  // Blocks run in an order of its own: i -> (i stride + offset) mod count.
  uint64_t count = 0, stride = 1, offset = 0, next = 0;
  std::vector<std::unique_ptr<Block>> blocks;  // that have begun
  size_t last = 0;                             // of them, that ran last
};

namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xA5;
// Blocks that begin early have at most so many threads together, or there is one block: each thread
// keeps its stack until the kernel goes on. With 1024 the tests take a third longer.
constexpr uint64_t kEarlyThreads = 256;

Work* work = nullptr;                       // that runs
std::vector<std::unique_ptr<Block>> spare;  // with their stacks, for later launches

void ThreadMain() {
  work->launch->body();
  Thread& me = *block->current;
  me.state = State::kDone;
  block->warps[static_cast<size_t>(me.index / kWarp)].gone |= 1u << me.index % kWarp;
  --block->live;
  RunOthers();
  abort();  // a finished thread is not resumed
}

[[noreturn]] void DieStuck() {
  block->current = nullptr;
  char list[900];
  int used = 0, listed = 0;
  for (int i = 0; i < block->count && listed < 4; ++i) {
    const Thread& t = *block->threads[static_cast<size_t>(i)];
    if (t.state == State::kDone) continue;
    bool repeated = false;  // one line for each place
    for (int j = 0; j < i && !repeated; ++j) {
      const Thread& o = *block->threads[static_cast<size_t>(j)];
      repeated = o.state == t.state && o.site.line == t.site.line;
    }
    if (repeated) continue;
    used += snprintf(list + used, sizeof list - static_cast<size_t>(used),
                     "; thread %d waits in %s (%.100s:%d)", i, t.op, t.site.file, t.site.line);
    ++listed;
  }
  const int exited = block->count - block->live;
  Die("a barrier or warp exchange is not reached by all its threads: %d of %d have exited%s",
      exited, block->count, list);
}

// The first bit that is set, from bit `from` on and around.
int NextBit(unsigned bits, int from) {
  return (from + std::countr_zero(std::rotr(bits, from))) % 32;
}

// The thread of `block` that runs next; at least one can. In order: warp by warp, by index.
// Shuffled: any thread of any warp, or, in every other block, of one warp until all of it waits.
Thread* Pick() {
  const bool stays = block->one_ahead && (block->ready_warps >> block->warp & 1u) != 0;
  if (work->shuffled && !stays) block->warp = work->Random(block->num_warps);
  block->warp = NextBit(block->ready_warps, block->warp);
  Warp& warp = block->warps[static_cast<size_t>(block->warp)];
  const int lane = NextBit(warp.ready, work->shuffled ? work->Random(warp.lanes) : 0);
  warp.ready &= ~(1u << lane);
  if (warp.ready == 0) block->ready_warps &= ~(1u << block->warp);
  return block->threads[static_cast<size_t>(block->warp * kWarp + lane)].get();
}

void PrepareShared(size_t bytes) {
  // Ends exactly at the guard, begins on 128 bytes.
  block->shared.resize(bytes + 2 * kGuardBytes + 128);
  std::fill(block->shared.begin(), block->shared.end(), kGuard);
  auto begin = reinterpret_cast<uintptr_t>(block->shared.data()) + kGuardBytes;
  begin = (begin + 127) / 128 * 128;
  block->shared_begin = reinterpret_cast<unsigned char*>(begin);
  memset(block->shared_begin, 0xFF, bytes);  // NaN, and -1
}

void CheckShared(size_t bytes) {
  const unsigned char* data = block->shared.data();
  const auto begin = static_cast<size_t>(block->shared_begin - data), end = begin + bytes;
  for (size_t i = 0; i < block->shared.size(); i = i + 1 == begin ? end : i + 1) {
    if (data[i] != kGuard) {
      Die("a write outside the %zu bytes of dynamic shared memory, at offset %td", bytes,
          static_cast<ptrdiff_t>(i) - static_cast<ptrdiff_t>(begin));
    }
  }
}

// The next block.
void BeginBlock() {
  const Launch& launch = *work->launch;
  const uint64_t b = (work->next++ * work->stride + work->offset) % work->count;
  if (spare.empty()) spare.push_back(std::make_unique<Block>());
  work->blocks.push_back(std::move(spare.back()));
  spare.pop_back();
  block = work->blocks.back().get();
  block->at = {static_cast<unsigned>(b % launch.grid.x),
               static_cast<unsigned>(b / launch.grid.x % launch.grid.y),
               static_cast<unsigned>(b / launch.grid.x / launch.grid.y)};
  block->count = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  while (static_cast<int>(block->threads.size()) < block->count) {
    block->threads.push_back(std::make_unique<Thread>());
    block->threads.back()->index = static_cast<int>(block->threads.size()) - 1;
  }
  block->live = block->count;
  block->at_barrier = block->votes = block->waited = 0;
  block->num_warps = (block->count + kWarp - 1) / kWarp;
  for (int i = 0; i < block->num_warps; ++i) {
    const int lanes = std::min(block->count - i * kWarp, kWarp);
    block->warps[static_cast<size_t>(i)] = {.gone = lanes == kWarp ? 0 : ~0u << lanes,
                                            .lanes = lanes};
  }
  block->parts.clear();
  block->ready_warps = 0;
  block->warp = 0;
  block->one_ahead = work->shuffled && work->Random() % 2 == 0;
  for (int i = 0; i < block->count; ++i) {
    Thread& t = *block->threads[static_cast<size_t>(i)];
    t.fiber.Prepare(ThreadMain);
    t.copies.clear();
    t.groups.clear();
    const unsigned u = static_cast<unsigned>(i);
    t.at = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
    Wake(t);
  }
  PrepareShared(launch.shared_bytes);
}

void End() {
  if (work->launch->overlap && block->waited != block->count) {
    Die("launched to overlap, but %d of %d threads waited for the predecessor", block->waited,
        block->count);
  }
  CheckShared(work->launch->shared_bytes);
}

// Makes `block` the one that runs next: the last as long as it can; shuffled, unless that one runs
// ahead, any. False where none can.
bool PickBlock() {
  const size_t count = work->blocks.size();
  size_t& last = work->last;
  if (count > 1 && work->shuffled && !work->blocks[last]->one_ahead) last = work->Random(count);
  for (size_t i = 0; i < count; ++i, last = last + 1 == count ? 0 : last + 1) {
    block = work->blocks[last].get();
    if (block->ready_warps != 0) return true;
  }
  return false;
}

// The thread that runs next, of any block, as if it ran already; null if none can.
Thread* Next() {
  if (!PickBlock()) return nullptr;
  Thread* const next = Pick();
  block->current = next;
  threadIdx = next->at;
  blockIdx = block->at;
  return next;
}

// Runs the blocks that have begun to their ends; early, as far as they come.
void RunBlocks() {
  size_t live = work->blocks.size();
  work->last = 0;
  while (live > 0) {
    Thread* const next = Next();
    if (next == nullptr) {
      if (work->early) return;
      for (const auto& b : work->blocks) {
        block = b.get();
        if (block->live > 0) DieStuck();
      }
    }
    next->fiber.Resume();
    block->current = nullptr;
    if (block->live > 0) continue;
    End();
    --live;
  }
}

void Enter(Work& entered) {
  work = &entered;
  gridDim = work->launch->grid;
  blockDim = work->launch->block;
}

void Leave() {
  Runtime::Get().memory.CheckGuards();
  work = nullptr;
}

}  // namespace

void WaitForPredecessor() {
  ++block->waited;
  if (work->early) Wait(State::kAtPredecessor, "the wait for the predecessor", {});
}

void RunOthers() {
  Thread& me = *block->current;
  if (block->live == 0) me.fiber.Yield();  // to RunBlocks(), which ends the block
  Block* const mine = block;
  Thread* const next = Next();
  if (next == &me) return;
  if (next == nullptr) {
    block = mine;
    me.fiber.Yield();
  } else {
    me.fiber.SwitchTo(next->fiber);
  }
}

void* SharedMemory() { return block->shared_begin; }

std::shared_ptr<Work> NewWork(std::shared_ptr<const Launch> launch, uint64_t seed) {
  auto made = std::make_shared<Work>();
  const dim3 grid = launch->grid;
  made->launch = std::move(launch);
  made->random_state = seed;
  made->shuffled = seed != 0;
  made->count = uint64_t{grid.x} * grid.y * grid.z;
  if (made->shuffled) {
    made->stride = 1 + made->Random() % made->count;
    made->offset = made->Random() % made->count;
  }
  while (std::gcd(made->stride, made->count) != 1) ++made->stride;
  return made;
}

void RunEarly(Work& early) {
  Enter(early);
  const dim3 b = blockDim;
  const uint64_t fit = std::max<uint64_t>(1, kEarlyThreads / (uint64_t{b.x} * b.y * b.z));
  while (work->next < std::min(fit, work->count)) BeginBlock();
  work->early = true;
  RunBlocks();
  work->early = false;
  Leave();
}

void RunKernel(Work& begun) {
  Enter(begun);
  for (const auto& b : work->blocks) {
    block = b.get();
    for (int i = 0; i < block->count; ++i) {
      Thread& t = *block->threads[static_cast<size_t>(i)];
      if (t.state == State::kAtPredecessor) Wake(t);
    }
  }
  while (work->next < work->count || !work->blocks.empty()) {
    if (work->blocks.empty()) BeginBlock();
    RunBlocks();
    for (auto& b : work->blocks) spare.push_back(std::move(b));
    work->blocks.clear();
  }
  Leave();
}

// Kernels are local symbols, which dladdr does not know.
const char* KernelName(const void* kernel) {
  static char name[200];
  return absl::Symbolize(kernel, name, sizeof name) ? name : "without a name";
}

const char* RunningKernel() {
  static char text[300];
  if (work == nullptr) return "";
  snprintf(text, sizeof text, " in kernel %s%s, block %u,%u,%u thread %d",
           KernelName(work->launch->kernel), work->early ? ", before its wait" : "", blockIdx.x,
           blockIdx.y, blockIdx.z,
           block == nullptr || block->current == nullptr ? -1 : block->current->index);
  return text;
}

void Die(const char* format, ...) {
  fprintf(stderr, "cuda emulator: ");
  va_list args;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fprintf(stderr, "%s\n", RunningKernel());
  fflush(stderr);
  abort();
}

}  // namespace rivulet::cuda_emulator
