// SPDX-License-Identifier: Apache-2.0
// Many schedules, each from its seed. RIVULET_SIMULATION_SEEDS=n runs n of them and prints how
// often what happened, RIVULET_SIMULATION_SEED=s runs that one and prints all that did.
#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace rivulet {
namespace {

// What some schedules must bring, or the simulation looks away.
constexpr const char* kMustHappen[] = {"BACKEND_FAILED",
                                       "CANCELLED",
                                       "DEADLINE_EXCEEDED",
                                       "DRAINING",
                                       "MARK_LIMIT",
                                       "GIVEN_TOKENS_BEYOND_POSITION",
                                       "MARK_NOT_FOUND",
                                       "OK",
                                       "NON_FINITE_OUTPUT",
                                       "PROMPT_EMPTY",
                                       "QUEUE_FULL",
                                       "READER_TOO_SLOW",
                                       "OUTPUT_POSITION_OUT_OF_RANGE",
                                       "SESSION_BUSY",
                                       "SESSION_CLOSED",
                                       "SESSION_HASH_MISMATCH",
                                       "POSITION_OUT_OF_RANGE",
                                       "RESUME_MISMATCH",
                                       "MAX_TOKENS_OUT_OF_RANGE",
                                       "NUM_SAMPLES_OUT_OF_RANGE",
                                       "CACHE_POSITION_OUT_OF_RANGE",
                                       "WINDOW_OUT_OF_RANGE",
                                       "FORK_COUNT_OUT_OF_RANGE",
                                       "IDLE_TIMEOUT_OUT_OF_RANGE",
                                       "SESSION_NOT_FOUND",
                                       "SESSION_LIMIT",
                                       "TENANT_SESSION_LIMIT",
                                       "SHUTDOWN",
                                       "SNAPSHOT_DAMAGED",
                                       "TOO_MANY_TOKENS",
                                       "close",
                                       "expired",
                                       "fork",
                                       "list",
                                       "open",
                                       "restore",
                                       "rewind",
                                       "snapshot",
                                       "cache hit",
                                       "draft accepted",
                                       "draft rejected",
                                       "disk read",
                                       "disk fault",
                                       "parked",
                                       "preempted",
                                       "ended at the context",
                                       "a tenant's first request waited",
                                       "TENANT_QUEUE_FULL"};

struct Tally {
  std::map<uint64_t, std::string> broken;  // by seed
  std::map<std::string, int64_t> counts;
};

// Runs seeds 0 to seeds - 1, on as many threads as there are processors.
Tally RunSeeds(uint64_t seeds, const SimulationOptions& options) {
  Tally tally;
  std::mutex mutex;
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++t) {
    threads.emplace_back([&] {
      for (uint64_t seed = next++; seed < seeds; seed = next++) {
        Simulation simulation{Choices(seed), options};
        const std::string broken = simulation.Run();
        const std::lock_guard<std::mutex> lock(mutex);
        if (!broken.empty()) tally.broken[seed] = broken;
        for (const auto& [what, count] : simulation.counts()) tally.counts[what] += count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return tally;
}

void Replay(uint64_t seed) {
  SimulationOptions options;
  options.trace = true;
  Simulation simulation{Choices(seed), options};
  const std::string broken = simulation.Run();
  for (const std::string& line : simulation.trace()) std::printf("%s\n", line.c_str());
  EXPECT_EQ(broken, "");
}

TEST(SimulationTest, EverySeedKeepsEveryPromise) {
  if (const char* seed = std::getenv("RIVULET_SIMULATION_SEED")) {
    return Replay(std::strtoull(seed, nullptr, 10));
  }
  const char* wanted = std::getenv("RIVULET_SIMULATION_SEEDS");
  const uint64_t seeds = wanted != nullptr   ? std::strtoull(wanted, nullptr, 10)
                         : RIVULET_SANITIZED ? 400
                                             : 10000;
  const Tally tally = RunSeeds(seeds, SimulationOptions());
  size_t told = 0;
  for (const auto& [seed, what] : tally.broken) {
    if (++told > 5) break;
    ADD_FAILURE() << what
                  << "\nRun it alone to see what happened:\n  RIVULET_SIMULATION_SEED=" << seed
                  << " " << ::testing::internal::GetArgvs()[0]
                  << " --gtest_filter=SimulationTest.*";
  }
  EXPECT_EQ(tally.broken.size(), 0u) << "of " << seeds << " seeds";
  for (const auto& [happened, count] : tally.counts) {
    if (wanted != nullptr)
      std::printf("%8lld %s\n", static_cast<long long>(count), happened.c_str());
  }
  if (seeds < 400) return;
  for (const char* what : kMustHappen) {
    EXPECT_TRUE(tally.counts.contains(what)) << what << " never happened";
  }
}

TEST(SimulationTest, ASeedIsAlwaysTheSameSchedule) {
  SimulationOptions options;
  options.trace = true;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Simulation first{Choices(seed), options}, second{Choices(seed), options};
    first.Run();
    second.Run();
    EXPECT_EQ(first.counts(), second.counts()) << seed;
    EXPECT_EQ(first.trace().size(), second.trace().size()) << seed;
  }
}

class SimulationMutantTest : public ::testing::TestWithParam<int> {};

TEST_P(SimulationMutantTest, IsNoticed) {
  SimulationOptions options;
  options.mutant = static_cast<Mutant>(GetParam());
  constexpr uint64_t seeds = 200;  // the rarest is noticed in 12 of them
  const Tally tally = RunSeeds(seeds, options);
  EXPECT_GT(tally.broken.size(), 0u);
  std::printf("noticed in %zu of %d seeds\n", tally.broken.size(), static_cast<int>(seeds));
  if (!tally.broken.empty()) std::printf("%s\n", tally.broken.begin()->second.c_str());
}

INSTANTIATE_TEST_SUITE_P(Backend, SimulationMutantTest,
                         ::testing::Range(1, static_cast<int>(Mutant::kLosesDraw) + 1),
                         [](const auto& test) {
                           return MutantName(static_cast<Mutant>(test.param));
                         });

}  // namespace
}  // namespace rivulet
