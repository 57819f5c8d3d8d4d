// SPDX-License-Identifier: Apache-2.0
// How the emulator runs a kernel: blocks one after another, or those of a cooperative launch at
// once; each thread of a block a fiber that runs until its next barrier, warp exchange or
// pause. Order of blocks and of ready threads: by seed (cuda_emulator.h). Whoever waits for threads
// that cannot come is told, and the process aborts. What a kernel that may overlap does before it
// waits for its predecessor runs before the predecessor does anything, so that it reads what was
// there before. Thread: one kernel at a time, under the runtime's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "cuda_runtime_api.h"

namespace rivulet::cuda_emulator {

struct Site {
  const char* file = "";
  int line = 0;
};

inline constexpr size_t kPayloadBytes = 64;

// Called by kernels, on a fiber.
int Lane();
int BlockBarrier(Site site, bool vote = false);  // returns the number of votes
// The same among `size` threads with neighbouring numbers, a divisor of the block's.
int PartBarrier(int size, Site site, bool vote = false);
// Waits until all lanes of `mask` are here; then LanePayload() reads what each of them gave.
void WarpCollective(const char* op, unsigned mask, const void* payload, size_t bytes, Site site);
const void* LanePayload(int lane, unsigned mask, const char* op, Site site);
unsigned Ballot(unsigned mask, bool predicate, Site site);
void WaitForPredecessor();  // with overlap every thread must call it
// For threads that wait for other blocks: lets all others run, then comes back.
void Pause();
// A clock for them, which runs away where nobody is left but threads that pause.
uint64_t Nanoseconds();
void* SharedMemory();  // the block's dynamic shared memory; poisoned, between guard zones

// One launch.
struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  bool overlap = false;  // may start before its predecessor ends
  bool cooperative = false;
  const void* kernel = nullptr;
  std::function<void()> body;  // runs one thread
};
// One that has begun.
struct Work;
std::shared_ptr<Work> NewWork(std::shared_ptr<const Launch> launch, uint64_t seed);
// What some of its blocks do before they wait for the predecessor. REQUIRES: it has not run.
void RunEarly(Work& early);
// All the rest, once. `lost_block`: a block that never runs, -1: none.
void RunKernel(Work& begun, int lost_block);

// The name of a kernel, without template arguments. Valid until the next call.
const char* KernelName(const void* kernel);
// What runs right now, for messages; empty outside kernels.
const char* RunningKernel();

// Checks, as the driver does, and queues on the stream.
cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* function,
                         std::function<void()> body);

// Prints "cuda emulator: ..." with what runs, and aborts.
[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace rivulet::cuda_emulator
