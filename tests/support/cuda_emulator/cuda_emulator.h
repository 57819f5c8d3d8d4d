// SPDX-License-Identifier: Apache-2.0
// The CUDA emulator: kernels and host code of the CUDA backend on a machine without a GPU. The same
// .cu files are compiled as C++ (include/cuda_runtime.h) and run on fibers; the same host code
// links an imitation of the runtime API. It finds logic errors: wrong indices, missing barriers,
// loads before the wait for the predecessor, host buffers reused too early, unhandled errors. It
// does not model time, caches or the rounding of tensor cores.
//
// A stream is a queue whose work runs LAZILY: only at synchronize, query (a few items each), event
// waits, Advance(). Fresh device and shared memory holds NaN patterns; guard zones and inaccessible
// pages around device memory stop stray accesses; freed memory stays inaccessible.
// An error of a kernel (barrier not reached by all, out-of-bounds access, ...) aborts the process
// with one line that names kernel and place. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_runtime_api.h"

namespace rivulet::cuda_emulator {

struct Options {
  int num_devices = 1;
  int major = 9, minor = 0, multiprocessors = 4;
  size_t memory_bytes = size_t{1} << 30;  // of each device
  size_t shared_bytes = 227 << 10;        // most that one block can have
  // Order of threads and blocks: 0 = by index, else shuffled by this seed, differently each launch.
  uint64_t seed = 1;
  int items_per_query = 3;  // items that a query lets a stream do
};

// Forgets injected faults, sticky errors and counters, and sets options. Memory, streams and events
// that exist stay valid. Called at the start of a test.
void Reset(const Options& options = {});

// The n-th API call from now on (1 = the next; cudaGetErrorString and its like not counted) returns
// `error` and does nothing. `sticky`: so does every later call.
void FailCall(int n, cudaError_t error, bool sticky = false);
// The same for the n-th call of the function `name` (for example "cudaMalloc") from now on.
void FailCallOf(const char* name, int n, cudaError_t error, bool sticky = false);
// The n-th kernel that runs from now on (1 = the next) raises a sticky error; queued work is lost.
void FailKernel(int n, cudaError_t error = cudaErrorIllegalAddress);
// The n-th kernel that runs from now on never ends: queries answer cudaErrorNotReady for ever, and
// a call that would block for ever aborts.
void HangKernel(int n);

// Lets every stream do up to `items` items, as a GPU does on its own. Returns whether any did one.
bool Advance(int items);

// Since Reset().
struct Counters {
  int64_t calls = 0;        // API calls
  int64_t mallocs = 0;      // cudaMalloc, cudaHostAlloc
  int64_t kernels = 0;      // kernels run
  int64_t overlapping = 0;  // launched so that they may begin before their predecessor ends
  int64_t blocks = 0;       // of these
  int64_t graph_launches = 0;
  int64_t kernels_without_preference = 0;  // launched, but not set to prefer all shared memory
  size_t device_bytes = 0;                 // allocated now, of all devices (not since Reset)
};
Counters Count();

}  // namespace rivulet::cuda_emulator
