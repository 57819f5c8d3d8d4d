// SPDX-License-Identifier: Apache-2.0
// The emulator's runtime: options, faults, memory, streams. Everything happens under its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/cuda_emulator/memory.h"

namespace rivulet::cuda_emulator {

struct Launch;
struct Work;

// One piece of a stream's work.
struct Item {
  std::shared_ptr<const Launch> launch;  // of a kernel
  std::function<void()> run;             // of others
  int64_t graph = 0;                     // graph launch that it belongs to; 0: none
  Stream* wait_stream = nullptr;         // a wait for the first `wait_ticket` items of that stream
  int64_t wait_ticket = 0;
};

struct Stream {
  bool blocking = false;  // waits for, and is waited for by, the legacy stream
  std::deque<Item> items;
  int64_t queued = 0, done = 0;  // items ever
  std::shared_ptr<Work> early;   // of its first item, if begun
  bool hung = false;             // its first item never ends
  bool destroyed = false;
  Graph* capture = nullptr;
  bool capture_failed = false;
};

struct Event {
  Stream* stream = nullptr;  // null: never recorded
  int64_t ticket = 0;
};

struct Graph {
  std::vector<Item> items;
};
struct GraphExec {
  std::vector<Item> items;
};

struct Fault {
  std::string call;   // empty: any
  int countdown = 0;  // 0: none
  cudaError_t error = cudaSuccess;
  bool sticky = false;
};

class Runtime {
 public:
  static Runtime& Get();

  // Called at the start of every API call: counts it, and returns the error that it must return.
  cudaError_t Enter(const char* call);
  cudaError_t Remember(cudaError_t error);  // for cudaGetLastError
  void Poison(cudaError_t error);

  // Null stands for the legacy stream.
  cudaError_t Queue(Stream* stream, Item item);
  // Lets `stream` do items until `ticket` are done, at most `limit`. Returns their number.
  int Run(Stream* stream, int64_t ticket, int limit);
  void RunAll(Stream* stream, const char* call);  // aborts if that would block for ever
  // Waits for the streams for which a call on the legacy stream waits.
  void RunBlockingStreams(const char* call);

  std::recursive_mutex mutex;
  Options options;
  Counters counters;
  DeviceMemory memory;
  int device = 0;
  cudaError_t sticky = cudaSuccess, last = cudaSuccess;
  Fault call_fault, kernel_fault;
  int hang_countdown = 0;
  std::set<Stream*> streams;
  std::map<const void*, int> shared_limits;  // of functions, where raised
  std::map<const void*, int> carveouts;      // of functions: percent of shared memory, where set
  std::map<void*, size_t> host_allocations;
  uint64_t launch_seed = 0;
  bool profiling = false;  // between cudaProfilerStart and cudaProfilerStop

 private:
  Runtime();
  bool RunItem(Stream* stream);
  void RunLaunch(Stream* stream, const Item& item);
};

using Lock = std::lock_guard<std::recursive_mutex>;

}  // namespace rivulet::cuda_emulator
