// SPDX-License-Identifier: Apache-2.0
// How the emulator runs a kernel: blocks one after another. Each thread of a block is a fiber that
// runs until its next barrier or warp exchange. A seed gives the order of blocks and of ready
// threads (cuda_emulator.h). If threads wait for threads that cannot come, the process aborts with
// a message. If a kernel may overlap, its part before the wait for the predecessor runs before the
// predecessor, so that early loads read old data. Thread: one kernel at a time, under the runtime's
// lock.
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
// The same among `size` threads with adjacent numbers; `size` divides the block size.
int PartBarrier(int size, Site site, bool vote = false);
// Waits until all lanes of `mask` are here; then LanePayload() reads the payload of each lane.
void WarpCollective(const char* op, unsigned mask, const void* payload, size_t bytes, Site site);
const void* LanePayload(int lane, unsigned mask, const char* op, Site site);
unsigned Ballot(unsigned mask, bool predicate, Site site);
void WaitForPredecessor();  // with overlap every thread must call it
void* SharedMemory();       // the block's dynamic shared memory; poisoned, between guard zones

// One launch.
struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  bool overlap = false;  // may start before its predecessor ends
  const void* kernel = nullptr;
  std::function<void()> body;  // runs one thread
};
// A launch that has begun.
struct Work;
std::shared_ptr<Work> NewWork(std::shared_ptr<const Launch> launch, uint64_t seed);
// Runs some of its blocks up to their wait for the predecessor. REQUIRES: the predecessor has not
// run.
void RunEarly(Work& early);
// Runs all the rest, once.
void RunKernel(Work& begun);

// The name of a kernel, without template arguments. Valid until the next call.
const char* KernelName(const void* kernel);
// The running kernel, for messages; empty outside kernels.
const char* RunningKernel();

// Checks, as the driver does, and queues on the stream.
cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* function,
                         std::function<void()> body);

// Prints "cuda emulator: ..." with the running kernel, and aborts.
[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace rivulet::cuda_emulator
