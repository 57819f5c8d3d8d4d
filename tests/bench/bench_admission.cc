// SPDX-License-Identifier: Apache-2.0
// What it costs the loop to decide who gets slots, by the number of tenants (or keys of one tenant)
// that wait. An iteration is one admission, with the request that takes its place in the queue, or
// one turn in which nobody can be admitted.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/policy/admission.h"

namespace rivulet {
namespace {

constexpr int kSlots = 256;

struct Crowd {
  Crowd(int64_t count, const AdmissionLimits& limits) : admission(limits) {
    for (int64_t i = 0; i < count; ++i) names.push_back(absl::StrCat("tenant-", i));
  }
  void Add(int64_t i) {
    admission.Add(++last, names[static_cast<size_t>(i)], Priority::kNormal, 1);
  }

  Admission admission;
  std::vector<std::string> names;
  RequestId last = 0;
};

AdmissionLimits Limits(int slots, int64_t max_begun = 0) {
  AdmissionLimits limits;
  limits.slots = slots;
  limits.max_begun = max_begun;
  return limits;
}

// Tenants that hold nothing.
void BM_Waiting(benchmark::State& state) {
  Crowd crowd(state.range(0), Limits(kSlots));
  for (int64_t i = 0; i < state.range(0); ++i) crowd.Add(i);
  int64_t turn = 0;
  for (auto _ : state) {
    const auto id = crowd.admission.Next(1, 1);
    crowd.admission.GiveBack(*id, 1);
    crowd.Add(turn++ % state.range(0));
  }
}

// Tenants that all hold their share and wait for more.
void BM_Holding(benchmark::State& state) {
  const auto tenants = static_cast<int>(state.range(0));
  Crowd crowd(tenants, Limits(tenants + 1));
  for (int64_t i = 0; i < tenants; ++i) crowd.Add(i);
  while (crowd.admission.Next(1, 1)) {
  }
  for (int64_t i = 0; i < tenants; ++i) crowd.Add(i);
  int64_t turn = 0;
  for (auto _ : state) {
    const auto id = crowd.admission.Next(1, 1);
    crowd.admission.GiveBack(*id, 1);
    crowd.Add(turn++ % tenants);
  }
}

// Turns while the memory for preempted requests is used up: nobody may begin.
void BM_MemoryFull(benchmark::State& state) {
  Crowd crowd(state.range(0), Limits(kSlots, kSlots + 1));
  std::vector<RequestId> first;
  for (int i = 0; i < kSlots; ++i) {
    crowd.admission.Add(++crowd.last, "hoarder", Priority::kNormal, 1);
  }
  while (const auto id = crowd.admission.Next(1, 1)) first.push_back(*id);
  crowd.admission.Preempt(first.back());  // and another takes its slot
  for (int64_t i = 0; i < state.range(0); ++i) crowd.Add(i);
  crowd.admission.Next(1, 2);
  for (auto _ : state) benchmark::DoNotOptimize(crowd.admission.Victims(0, 2));
}

// Turns in which one tenant has all slots, and nobody's quantum has ended.
void BM_NothingDue(benchmark::State& state) {
  AdmissionLimits limits = Limits(kSlots, 4 * kSlots);
  limits.quantum = 1 << 30;
  Crowd crowd(state.range(0), limits);
  for (int i = 0; i < kSlots; ++i) {
    crowd.admission.Add(++crowd.last, "hoarder", Priority::kNormal, 1);
  }
  while (crowd.admission.Next(1, 1)) {
  }
  for (int64_t i = 0; i < state.range(0); ++i) crowd.Add(i);
  for (auto _ : state) benchmark::DoNotOptimize(crowd.admission.Victims(0, 2));
}

// One tenant, each of whose keys has a request waiting; half of the keys are at their limit.
void BM_Keys(benchmark::State& state) {
  Crowd crowd(state.range(0), Limits(kSlots));
  const auto add = [&crowd](int64_t i, int64_t most) {
    crowd.admission.Add(++crowd.last, "one", Priority::kNormal, 1,
                        {crowd.names[static_cast<size_t>(i)], most});
  };
  for (int64_t i = 0; i < state.range(0); i += 2) add(i, 1);
  while (crowd.admission.Next(1, 1)) {
  }
  for (int64_t i = 0; i < state.range(0); ++i) add(i, i % 2 == 0 ? 1 : 2);
  int64_t turn = 0;
  for (auto _ : state) {
    const auto id = crowd.admission.Next(1, 1);
    crowd.admission.GiveBack(*id, 1);
    add((turn++ * 2 + 1) % state.range(0), 2);
  }
}

BENCHMARK(BM_Waiting)->RangeMultiplier(100)->Range(1, 10000);
BENCHMARK(BM_Holding)->RangeMultiplier(100)->Range(1, 10000);
BENCHMARK(BM_MemoryFull)->RangeMultiplier(100)->Range(1, 10000);
BENCHMARK(BM_NothingDue)->RangeMultiplier(100)->Range(1, 10000);
BENCHMARK(BM_Keys)->RangeMultiplier(100)->Range(2, 20000);

}  // namespace
}  // namespace rivulet

BENCHMARK_MAIN();
