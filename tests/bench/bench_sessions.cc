// SPDX-License-Identifier: Apache-2.0
// What can be done to a client session of mnist-linear, beside the machine's speed of copying as
// many bytes as a state has; and the memory of many resident sessions beside the arithmetic.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "server/engine/engine.h"
#include "tests/bench/backend_choice.h"
#include "tests/support/session_client.h"

namespace rivulet {
namespace {

constexpr int kRounds = 400, kResident = 10000;
constexpr double kMiB = 1 << 20;

// Ends the program where a result is an error.
template <typename Result>
auto Must(Result result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  std::exit(1);
}

// Microseconds that each of `kRounds` calls takes, ascending.
std::vector<double> Times(const std::function<void(int)>& call) {
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call(i);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  return times;
}

void Print(const char* what, const std::vector<double>& times, double copy_us) {
  const double median = times[times.size() / 2];
  std::printf("| %s | %.1f | %.1f | %.2f |\n", what, median, times[times.size() * 9 / 10],
              median / copy_us);
}

// Median time to copy `bytes` between buffers that are too many for the caches.
double CopyMicroseconds(size_t bytes) {
  const size_t buffers = (size_t{256} << 20) / bytes + 1;
  std::vector<char> from(buffers * bytes, 1), to(buffers * bytes, 2);
  const std::vector<double> times = Times([&](int i) {
    const size_t at = static_cast<size_t>(i) * 7 % buffers * bytes;
    std::memcpy(to.data() + at, from.data() + at, bytes);
  });
  std::printf("copying one state of %zu bytes: %.1f us, %.1f GB/s read and as much written\n\n",
              bytes, times[times.size() / 2],
              static_cast<double>(bytes) / times[times.size() / 2] / 1e3);
  return times[times.size() / 2];
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::unique_ptr<Engine> NewEngine(const bench::Choice& choice, int slots, EngineOptions options) {
  const auto model = bench::LoadModel(choice, "mnist-linear");
  return Engine::Create(model, bench::NewBackend(choice, model, slots, WeightPrecision::kAuto, 1),
                        options);
}

void TimeOperations(const bench::Choice& choice) {
  EngineOptions options;
  options.sessions.max_open_sessions = 4 * kRounds * 16;
  const auto engine = NewEngine(choice, 8, options);
  const SessionClient client(engine.get(), "bench");
  const SessionRef session = client.Ref(Must(client.Open(1)).id);
  Must(client.Generate(session, 100));
  const double copy_us = CopyMicroseconds(engine->limits().bytes_per_slot);

  std::printf("| operation | p50 us | p90 us | copies of a state |\n| --- | --- | --- | --- |\n");
  Print("list (a call that touches nothing)", Times([&](int) { Must(client.List()); }), copy_us);
  std::vector<SessionId> forks;
  Print("fork",
        Times([&](int i) { forks.push_back(Must(client.Fork(session, 1, uint64_t(i)))[0].id); }),
        copy_us);
  Print("16 forks in one call", Times([&](int i) { Must(client.Fork(session, 16, uint64_t(i))); }),
        copy_us);
  Print("a fork's first token (its state into a slot, a step, and out again)",
        Times([&](int i) { Must(client.Generate(client.Ref(forks[size_t(i)]), 1)); }), copy_us);
  Print("rewind by one token", Times([&](int i) {
          const SessionRef fork = client.Ref(forks[size_t(i)], 100);
          Must(client.Rewind(fork));
        }),
        copy_us);
  const SessionImage image = Must(client.Snapshot(session));
  std::string bytes;
  Print("snapshot: the image", Times([&](int) { Must(client.Snapshot(session)); }), copy_us);
  Print("snapshot: the image and its bytes",
        Times([&](int) { bytes = ToSnapshotBytes(Must(client.Snapshot(session)), *engine); }),
        copy_us);
  Print("... with a MAC", Times([&](int) {
          bytes = ToSnapshotBytes(Must(client.Snapshot(session)), *engine, "a key of sixteen");
        }),
        copy_us);
  Print("restore: from bytes, MAC checked",
        Times([&](int) { Must(client.RestoreBytes(bytes, "a key of sixteen")); }), copy_us);
}

// Each with a state of its own.
void CountMemory(const bench::Choice& choice) {
  EngineOptions options;
  options.sessions.max_open_sessions = kResident;
  options.states.max_memory_bytes = int64_t{1} << 40;
  const auto engine = NewEngine(choice, 4, options);
  const SessionClient client(engine.get(), "bench");
  const auto open = [&](int i) {
    const SessionRef session = client.Ref(Must(client.Open(uint64_t(i))).id);
    Must(client.Append(session, {1 + i % 250, 3}));  // the bos and the first are fed
  };
  const SessionClient warm(engine.get(), "warm");  // every slot gets its pages
  for (int i = 0; i < 16; ++i) {
    const SessionId id = Must(warm.Open(1)).id;
    Must(warm.Append(warm.Ref(id), {1, 2}));
    (void)warm.Close(id);
  }
  const double before = ResidentBytes();
  for (int i = 0; i < kResident; ++i) open(i);
  const double grown = ResidentBytes() - before;
  const double states = static_cast<double>(engine->limits().bytes_per_slot) * kResident;
  std::printf(
      "\n%d resident sessions: %.1f MiB of states, %.1f MiB grown: %+.1f MiB, %.0f bytes a "
      "session\n",
      kResident, states / kMiB, grown / kMiB, (grown - states) / kMiB,
      (grown - states) / kResident);
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  const rivulet::bench::Choice choice = rivulet::bench::ParseChoice(&argc, argv);
  rivulet::TimeOperations(choice);
  rivulet::CountMemory(choice);
  return 0;
}
