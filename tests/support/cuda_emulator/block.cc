// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/block.h"

#include <algorithm>
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

namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xA5;

const Launch* launched = nullptr;
bool shuffled = false;
uint64_t random_state = 0;
std::vector<std::unique_ptr<Block>> blocks;  // grows, never shrinks

// The device's clock goes on with every round in which paused threads look again; where none finds
// anything new, in ever longer steps, since only time can help them then.
constexpr uint64_t kRoundNanoseconds = 1000;
uint64_t nanoseconds = 0, stalled_step = kRoundNanoseconds;
bool progress = false;  // since the last round

uint64_t Random() {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return random_state >> 33;
}

void ThreadMain() {
  launched->body();
  Thread& me = *block->current;
  me.state = State::kDone;
  --block->live;
  me.fiber.Yield();
  abort();  // a finished thread is not resumed
}

[[noreturn]] void DieStuck() {
  char list[900];
  int used = 0, listed = 0;
  for (int i = 0; i < block->count && listed < 4; ++i) {
    const Thread& t = *block->threads[static_cast<size_t>(i)];
    if (t.state == State::kDone || t.state == State::kPaused) continue;
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

// The next thread to run, null if none can. In order: warp by warp, by index. Shuffled: any thread
// of any warp, or, in every other block, of one warp until all of it waits for others.
Thread* Pick() {
  if (block->num_ready == 0) return nullptr;
  const size_t warps = block->ready.size();
  if (shuffled && !(block->one_ahead && !block->ready[block->warp].empty())) {
    block->warp = Random() % warps;
  }
  while (block->ready[block->warp].empty()) block->warp = (block->warp + 1) % warps;
  std::vector<int>& ready = block->ready[block->warp];
  const size_t at = shuffled ? Random() % ready.size() : 0;
  const int index = ready[at];
  if (shuffled) {
    ready[at] = ready.back();
    ready.pop_back();
  } else {
    ready.erase(ready.begin());
  }
  --block->num_ready;
  return block->threads[static_cast<size_t>(index)].get();
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

void Begin(Block* begun, uint3 at) {
  block = begun;
  block->at = at;
  block->count = static_cast<int>(launched->block.x * launched->block.y * launched->block.z);
  while (static_cast<int>(block->threads.size()) < block->count) {
    block->threads.push_back(std::make_unique<Thread>());
    block->threads.back()->index = static_cast<int>(block->threads.size()) - 1;
  }
  block->live = block->count;
  block->at_barrier = block->votes = block->waited = 0;
  block->ready.assign(static_cast<size_t>((block->count + kWarp - 1) / kWarp), {});
  block->exchanging.assign(block->ready.size(), 0);
  block->paused.clear();
  block->parts.clear();
  block->num_ready = 0;
  block->warp = 0;
  block->one_ahead = shuffled && Random() % 2 == 0;
  for (int i = 0; i < block->count; ++i) {
    Thread& t = *block->threads[static_cast<size_t>(i)];
    t.fiber.Prepare(ThreadMain);
    const unsigned u = static_cast<unsigned>(i);
    t.at = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
    Wake(t);
  }
  PrepareShared(launched->shared_bytes);
}

void End() {
  if (launched->overlap && block->waited != block->count) {
    Die("launched to overlap, but %d of %d threads waited for the predecessor", block->waited,
        block->count);
  }
  CheckShared(launched->shared_bytes);
}

// Lets the paused threads of the first `count` blocks look again. False where there are none.
bool NextRound(size_t count) {
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    block = blocks[i].get();
    for (const int index : block->paused) Wake(*block->threads[static_cast<size_t>(index)]);
    any = any || !block->paused.empty();
    block->paused.clear();
  }
  if (!any) return false;
  stalled_step = progress ? kRoundNanoseconds : 2 * stalled_step;
  nanoseconds += stalled_step;
  progress = false;
  return true;
}

// Which block runs next: the last as long as it can; shuffled, unless that one runs ahead, any.
bool PickBlock(size_t count, size_t* last) {
  if (shuffled && !blocks[*last]->one_ahead) *last = Random() % count;
  for (size_t i = 0; i < count; ++i) {
    block = blocks[(*last + i) % count].get();
    if (block->num_ready == 0) continue;
    *last = (*last + i) % count;
    return true;
  }
  return false;
}

// Runs the first `count` blocks, which have begun, to their ends.
void RunBlocks(size_t count) {
  size_t live = count, last = 0;
  while (live > 0) {
    if (!PickBlock(count, &last)) {
      if (NextRound(count)) continue;
      for (size_t i = 0; i < count; ++i) {
        block = blocks[i].get();
        if (block->live > 0) DieStuck();
      }
    }
    Thread* t = Pick();
    block->current = t;
    threadIdx = t->at;
    blockIdx = block->at;
    t->fiber.Resume();
    progress = progress || t->state != State::kPaused;
    block->current = nullptr;
    if (block->live > 0) continue;
    End();
    --live;
  }
}

}  // namespace

void WaitForPredecessor() { ++block->waited; }

void* SharedMemory() { return block->shared_begin; }

void Pause() {
  block->paused.push_back(block->current->index);
  Wait(State::kPaused, "a pause", {});
}

uint64_t Nanoseconds() { return nanoseconds; }

void RunKernel(const Launch& launch, uint64_t seed, int lost_block) {
  launched = &launch;
  random_state = seed;
  shuffled = seed != 0;
  gridDim = launch.grid;
  blockDim = launch.block;
  // Blocks in an order of its own, too: i -> (i stride + offset) mod n.
  const uint64_t n = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  uint64_t stride = seed == 0 ? 1 : 1 + Random() % n, offset = seed == 0 ? 0 : Random() % n;
  while (std::gcd(stride, n) != 1) ++stride;
  size_t begun = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t b = (i * stride + offset) % n;
    if (static_cast<int64_t>(b) == lost_block) continue;
    while (blocks.size() <= begun) blocks.push_back(std::make_unique<Block>());
    Begin(blocks[begun].get(), {static_cast<unsigned>(b % launch.grid.x),
                                static_cast<unsigned>(b / launch.grid.x % launch.grid.y),
                                static_cast<unsigned>(b / launch.grid.x / launch.grid.y)});
    ++begun;
    if (launch.cooperative) continue;
    RunBlocks(begun);
    begun = 0;
  }
  if (begun > 0) RunBlocks(begun);
  Runtime::Get().memory.CheckGuards();
  launched = nullptr;
}

// Kernels are local symbols, which dladdr does not know.
const char* KernelName(const void* kernel) {
  static char name[200];
  return absl::Symbolize(kernel, name, sizeof name) ? name : "without a name";
}

const char* RunningKernel() {
  static char text[300];
  if (launched == nullptr) return "";
  snprintf(text, sizeof text, " in kernel %s, block %u,%u,%u thread %d",
           KernelName(launched->kernel), blockIdx.x, blockIdx.y, blockIdx.z,
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
