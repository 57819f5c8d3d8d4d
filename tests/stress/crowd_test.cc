// SPDX-License-Identifier: Apache-2.0
// A thousand sessions in random churn, forks, rewinds, cancellations, snapshots and restores, their
// states forgotten and computed again all the while, over far fewer slots: each reply is compared
// with what its sequence draws alone. Bounded by a count of compared tokens, not by time:
// RIVULET_STRESS_SCALE multiplies it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "model/cpu_backend.h"
#include "tests/stress/crowd_client.h"
#include "tests/support/hostile_backend.h"

namespace rivulet {
namespace {

constexpr int kClients = 4;

int64_t Scaled(int64_t tokens) {
  const char* scale = std::getenv("RIVULET_STRESS_SCALE");
  const int64_t factor = scale == nullptr ? 1 : std::max<int64_t>(1, std::atoll(scale));
  return tokens * factor / (RIVULET_SANITIZED ? 10 : 1);
}

struct Crowd {
  const char* model;  // directory
  int64_t tokens;     // to compare
  int slots;
  int64_t longest;          // CrowdLimits::longest
  int64_t states_in_reach;  // of all the sessions', how many are kept
};

void PrintTo(const Crowd& crowd, std::ostream* out) { *out << crowd.model; }

class CrowdTest : public testing::TestWithParam<Crowd> {};

TEST_P(CrowdTest, EveryReplyIsThatOfASessionAlone) {
  const Crowd& crowd = GetParam();
  const auto model = Model::Load(std::string(RIVULET_SOURCE_DIR) + crowd.model);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto new_backend = [&](int slots) {
    return *CreateCpuBackend(*model, {.num_slots = slots, .threads = 1});
  };
  auto probe = std::make_shared<HostileProbe>();
  HostileOptions hostile;
  hostile.narrow = [](BackendLimits* limits) {
    limits->max_rows = std::max(1, limits->num_slots * 2 / 3);
    limits->preferred_steps = 4;
  };
  auto backend = std::make_unique<HostileBackend>(new_backend(crowd.slots), hostile, probe);
  EngineOptions options;
  options.prefill_tokens_busy = 24;
  options.max_pending_tokens = 8;
  options.states.max_memory_bytes =
      crowd.states_in_reach * static_cast<int64_t>(backend->limits().bytes_per_slot);
  const auto engine = Engine::Create(*model, std::move(backend), options);

  CrowdTally tally;
  CrowdLimits limits;
  limits.sessions = 1000 / kClients;
  limits.in_flight = crowd.slots;  // four times as many requests as slots
  limits.longest = crowd.longest;
  const int64_t target = Scaled(crowd.tokens);
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      CrowdClient(engine.get(), new_backend(1), "tenant " + std::to_string(c), c + 1, limits,
                  &tally)
          .Run(target);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(engine->Drain(absl::InfiniteFuture()));

  std::printf(
      "%lld tokens compared, %lld replies differ; %lld replies, %lld of them cut, %lld asked "
      "again; %lld appends, %lld forks, %lld rewinds, %lld restores, %lld opened\n",
      static_cast<long long>(tally.tokens), static_cast<long long>(tally.wrong),
      static_cast<long long>(tally.replies), static_cast<long long>(tally.cut),
      static_cast<long long>(tally.asked_again), static_cast<long long>(tally.appends),
      static_cast<long long>(tally.forks), static_cast<long long>(tally.rewinds),
      static_cast<long long>(tally.restores), static_cast<long long>(tally.reopened));
  EXPECT_EQ(tally.wrong, 0);
  EXPECT_GE(tally.tokens, target);
  const EngineLoad load = engine->GetLoad();
  EXPECT_EQ(load.slots_used, 0);
  EXPECT_EQ(load.queued, 0);
  EXPECT_EQ(load.client_sessions, 0);
  EXPECT_EQ(load.states.memory_bytes, 0);
  EXPECT_EQ(probe->used_slots(), 0);
  EXPECT_EQ(probe->violations(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(
    Models, CrowdTest,
    testing::Values(Crowd{"/tests/conformance/models/tiny-elu-relu", 100000, 40, 100, 300},
                    Crowd{"/tests/conformance/models/tiny-rfa", 10000, 40, 50, 2000},
                    Crowd{"/tests/conformance/models/tiny-image", 10000, 40, 20, 300},
                    Crowd{"/model/zoo/mnist-linear", 1000, 8, 60, 200}),
    [](const auto& param) {
      std::string name = param.param.model;
      name = name.substr(name.rfind('/') + 1);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace rivulet
