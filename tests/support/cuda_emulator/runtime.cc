// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/runtime.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "tests/support/cuda_emulator/block.h"

extern "C" const char __executable_start;  // of the linker: where the program begins

namespace rivulet::cuda_emulator {
namespace {

// A kernel touched a page that is nobody's: says which, then dies as the process would have.
void OnFault(int signal_number, siginfo_t* info, void*) {
  signal(signal_number, SIG_DFL);
  const char* why = Runtime::Get().memory.Explain(info->si_addr);
  char text[600];
  const int n =
      snprintf(text, sizeof text, "cuda emulator: %s%s\n", why,
               *RunningKernel() != '\0' ? RunningKernel() : " by host code, or by a copy");
  if (n > 0 && write(2, text, static_cast<size_t>(n)) < 0) _exit(1);
  raise(signal_number);
}

void CatchFaults() {
  static char stack[65536];  // the fault may be an overflow of the stack in use
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

bool Counts(int* countdown) { return *countdown > 0 && --*countdown == 0; }

}  // namespace

Runtime::Runtime() { CatchFaults(); }

Runtime& Runtime::Get() {
  static auto* runtime = new Runtime;  // outlives every static of a test
  return *runtime;
}

cudaError_t Runtime::Enter(const char* call) {
  ++counters.calls;
  if (sticky != cudaSuccess) return sticky;
  Fault& f = call_fault;
  if ((f.call.empty() || f.call == call) && Counts(&f.countdown)) {
    if (f.sticky) Poison(f.error);
    return Remember(f.error);
  }
  return cudaSuccess;
}

cudaError_t Runtime::Remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last = error;
  return error;
}

void Runtime::Poison(cudaError_t error) {
  sticky = last = error;
  for (Stream* s : streams) {
    s->done += static_cast<int64_t>(s->items.size());
    s->items.clear();
    s->early = nullptr;
    s->hung = false;
  }
}

cudaError_t Runtime::Queue(Stream* stream, Item item) {
  if (stream == nullptr) {
    RunBlockingStreams("a call on the legacy stream");
    if (sticky != cudaSuccess) return sticky;
    Stream now;
    now.items.push_back(std::move(item));
    now.queued = 1;
    streams.insert(&now);
    Run(&now, 1, 1);
    const bool hung = now.hung;
    streams.erase(&now);
    if (hung) Die("a kernel that never ends on the legacy stream");
    return sticky;
  }
  if (streams.count(stream) == 0 || stream->destroyed) {
    return Remember(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture != nullptr) {
    stream->capture->items.push_back(std::move(item));
    return cudaSuccess;
  }
  stream->items.push_back(std::move(item));
  ++stream->queued;
  return cudaSuccess;
}

// The stream's next item; false where it cannot go on.
bool Runtime::RunItem(Stream* stream) {
  if (stream->hung) return false;
  const Item& next = stream->items.front();
  if (next.wait_stream != nullptr && next.wait_stream->done < next.wait_ticket) {
    Run(next.wait_stream, next.wait_ticket, INT_MAX);
    if (sticky != cudaSuccess || next.wait_stream->done < next.wait_ticket) return false;
  }
  if (next.launch != nullptr) {
    if (Counts(&hang_countdown)) {
      stream->hung = true;
      return false;
    }
    if (Counts(&kernel_fault.countdown)) {
      Poison(kernel_fault.error);
      return false;
    }
    ++counters.kernels;
  }
  const Item item = std::move(stream->items.front());
  stream->items.pop_front();
  if (item.launch != nullptr) RunLaunch(stream, item);
  if (item.run) {
    item.run();
    memory.CheckGuards();
  }
  ++stream->done;
  return true;
}

int Runtime::Run(Stream* stream, int64_t ticket, int limit) {
  int did = 0;
  while (did < limit && !stream->items.empty() && stream->done < ticket && RunItem(stream)) ++did;
  return did;
}

void Runtime::RunAll(Stream* stream, const char* call) {
  Run(stream, LLONG_MAX, INT_MAX);
  if (!stream->items.empty()) Die("%s would wait for ever: a kernel never ends", call);
}

void Runtime::RunBlockingStreams(const char* call) {
  for (Stream* s : std::set<Stream*>(streams)) {
    if (s->blocking) RunAll(s, call);
  }
}

void Reset(const Options& options) {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  r.options = options;
  r.counters = {};
  r.device = 0;
  r.sticky = r.last = cudaSuccess;
  r.call_fault = r.kernel_fault = {};
  r.hang_countdown = 0;
  r.launch_seed = options.seed;
  for (Stream* s : r.streams) {
    s->hung = false;
    delete std::exchange(s->capture, nullptr);  // left open where every call failed
  }
}

void FailCall(int n, cudaError_t error, bool sticky) { FailCallOf("", n, error, sticky); }

void FailCallOf(const char* name, int n, cudaError_t error, bool sticky) {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  r.call_fault = {name, n, error, sticky};
}

void FailKernel(int n, cudaError_t error) {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  r.kernel_fault = {"", n, error, true};
}

void HangKernel(int n) {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  r.hang_countdown = n;
}

bool Advance(int items) {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  int did = 0;
  for (Stream* s : std::set<Stream*>(r.streams)) did += r.Run(s, LLONG_MAX, items);
  return did > 0;
}

Counters Count() {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  Counters c = r.counters;
  for (int d = 0; d < r.options.num_devices; ++d) c.device_bytes += r.memory.allocated(d);
  return c;
}

namespace {

// For tests/machine_code: a line with the kernel's place in the program and its bytes of dynamic
// shared memory, whenever they are new, in the file that RIVULET_EMULATOR_LAUNCHES names.
void NoteLaunch(const void* function, size_t shared_bytes) {
  static const char* const path = std::getenv("RIVULET_EMULATOR_LAUNCHES");
  if (path == nullptr) return;
  static FILE* const file = fopen(path, "w");
  static std::set<std::pair<size_t, size_t>> noted;
  const auto place = static_cast<size_t>(static_cast<const char*>(function) - &__executable_start);
  if (!noted.insert({place, shared_bytes}).second) return;
  if (file == nullptr || fprintf(file, "%zx %zu\n", place, shared_bytes) < 0) abort();
  fflush(file);
}

// For tests/gpu/emulated_test.py: a line with the kernel's name, in the file that
// RIVULET_EMULATOR_PROFILE names, whenever a kernel runs while a profiler looks.
void NoteProfiled(const void* kernel) {
  static const char* const path = std::getenv("RIVULET_EMULATOR_PROFILE");
  if (path == nullptr) return;
  FILE* const file = fopen(path, "a");
  if (file == nullptr || fprintf(file, "%s\n", KernelName(kernel)) < 0) abort();
  fclose(file);
}

}  // namespace

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* function,
                         std::function<void()> body) {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  if (const cudaError_t e = r.Enter("cudaLaunchKernelEx")) return e;
  const dim3 g = config.gridDim, b = config.blockDim;
  const bool grid_fits =
      g.x >= 1 && g.x <= INT_MAX && g.y >= 1 && g.y <= 65535 && g.z >= 1 && g.z <= 65535;
  const bool block_fits =
      b.x >= 1 && b.y >= 1 && b.z >= 1 && b.z <= 64 && uint64_t{b.x} * b.y * b.z <= 1024;
  const auto it = r.shared_limits.find(function);
  const size_t shared_limit = it == r.shared_limits.end() ? 48 << 10 : size_t(it->second);
  if (!grid_fits || !block_fits) return r.Remember(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > shared_limit) return r.Remember(cudaErrorInvalidValue);
  bool overlap = false;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& a = config.attrs[i];
    overlap |= a.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
               a.val.programmaticStreamSerializationAllowed != 0;
  }
  // Needs compute capability 9.
  if (overlap && r.options.major < 9) return r.Remember(cudaErrorNotSupported);
  const auto carveout = r.carveouts.find(function);
  if (carveout == r.carveouts.end() || carveout->second != cudaSharedmemCarveoutMaxShared) {
    ++r.counters.kernels_without_preference;
  }
  if (overlap) ++r.counters.overlapping;
  NoteLaunch(function, config.dynamicSmemBytes);
  Item item;
  item.launch = std::make_shared<const Launch>(
      Launch{g, b, config.dynamicSmemBytes, overlap, function, std::move(body)});
  return r.Queue(config.stream, std::move(item));
}

// A kernel that may overlap begins before its predecessor does, if that is a kernel, too, of the
// same launch of a graph or of none: all else it waits for. It does not begin before the kernel in
// front of that has ended: on a device, a kernel lets its successor begin behind its own wait.
void Runtime::RunLaunch(Stream* stream, const Item& item) {
  const auto begin = [this](const Item& kernel) {
    if (options.seed != 0) launch_seed = launch_seed * 6364136223846793005u + 1;
    return NewWork(kernel.launch, options.seed == 0 ? 0 : launch_seed | 1);
  };
  std::shared_ptr<Work> work = std::exchange(stream->early, nullptr);
  if (work == nullptr) work = begin(item);
  const Item next = stream->items.empty() ? Item() : stream->items.front();
  if (next.launch != nullptr && next.launch->overlap && next.graph == item.graph) {
    stream->early = begin(next);
    RunEarly(*stream->early);
  }
  const Launch& launch = *item.launch;
  counters.blocks += int64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  if (profiling) NoteProfiled(launch.kernel);
  RunKernel(*work);
}

}  // namespace rivulet::cuda_emulator
