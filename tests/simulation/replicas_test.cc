// SPDX-License-Identifier: Apache-2.0
// Many schedules of replicas that share a store, each from its seed. RIVULET_SIMULATION_SEEDS=n
// runs n of them, RIVULET_SIMULATION_SEED=s runs that one and prints what happens.
#include "tests/simulation/replicas.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace rivulet {
namespace {

// What some schedules must bring, or the simulation looks away.
constexpr const char* kMustHappen[] = {
    "OK",      "SESSION_MOVED", "SESSION_STORE",        "durable",       "not durable",
    "kill",    "lost reply",    "late write",           "reported loss", "failover",
    "emptied", "store harmed",  "stopped or continued", "state read",    "state missing",
    "expired", "lost chunk",    "SESSION_LIMIT",        "clock back",    "TENANT_STORE_LIMIT"};

TEST(ReplicasTest, EverySessionIsThatOfALoneRun) {
  const char* const one = std::getenv("RIVULET_SIMULATION_SEED");
  if (one != nullptr) {
    ReplicasOptions options;
    options.verbose = true;
    Replicas replicas(std::strtoull(one, nullptr, 10), options);
    EXPECT_EQ(replicas.Run(), "");
    return;
  }
  const char* const many = std::getenv("RIVULET_SIMULATION_SEEDS");
  const uint64_t seeds = many != nullptr          ? std::strtoull(many, nullptr, 10)
                         : RIVULET_SANITIZED != 0 ? 200
                                                  : 2000;
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
  std::map<uint64_t, std::string> broken;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++t) {
    threads.emplace_back([&] {
      for (uint64_t seed = next++; seed < seeds; seed = next++) {
        Replicas replicas(seed, {});
        const std::string what = replicas.Run();
        const std::lock_guard<std::mutex> lock(mutex);
        if (!what.empty()) broken[seed] = what;
        for (const auto& [name, count] : replicas.counts()) counts[name] += count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (many != nullptr) {
    for (const auto& [name, count] : counts) {
      std::printf("%10lld %s\n", static_cast<long long>(count), name.c_str());
    }
  }
  std::string first;
  for (const auto& [seed, what] : broken) {
    if (first.size() < 2000) first += std::to_string(seed) + ": " + what + "\n";
  }
  EXPECT_EQ(broken.size(), 0u) << first;
  if (seeds < 1000) return;  // too few to bring all of it
  for (const char* name : kMustHappen) EXPECT_GT(counts[name], 0) << name;
}

}  // namespace
}  // namespace rivulet
