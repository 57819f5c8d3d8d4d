// SPDX-License-Identifier: Apache-2.0
// A thousand sessions in random churn, forks, rewinds, cancellations, snapshots and restores, their
// states shared, moved to files, forgotten and computed again all the while, over far fewer slots:
// each reply is compared with what its sequence draws alone. Bounded by a count of compared tokens,
// not by time: RIVULET_STRESS_SCALE multiplies it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "model/cpu/cpu_backend.h"
#include "tests/stress/crowd_client.h"
#include "tests/support/hostile_backend.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::crowd_test {
namespace {

constexpr int kClients = 4;

int64_t Scaled(int64_t tokens) {
  const char* scale = std::getenv("RIVULET_STRESS_SCALE");
  const int64_t factor = scale == nullptr ? 1 : std::max<int64_t>(1, std::atoll(scale));
  return tokens * factor / (RIVULET_SANITIZED ? 10 : 1);
}

int64_t KeptBytes(Engine& engine) {
  engine.Cancel(0);  // the loop takes note of what the disk has done
  return engine.GetLoad().states.memory_bytes;
}

// Keeps the first failure of a test, whichever thread it is of, to be told again at the end: the
// clients all stop for it.
class FirstFailure : public ::testing::EmptyTestEventListener {
 public:
  FirstFailure() { ::testing::UnitTest::GetInstance()->listeners().Append(this); }
  ~FirstFailure() override { ::testing::UnitTest::GetInstance()->listeners().Release(this); }
  // Thread: GoogleTest calls it under its own lock.
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!what_.empty() || !result.failed()) return;
    what_ = absl::StrCat(result.file_name() == nullptr ? "" : result.file_name(), ":",
                         result.line_number(), ": ", result.message());
  }
  // Once no other thread can fail.
  const std::string& what() const { return what_; }

 private:
  std::string what_;
};

struct Crowd {
  const char* model;  // directory
  int64_t tokens;     // to compare
  int slots;
  int64_t longest;  // CrowdLimits::longest
  // Of all the sessions' states, how many are kept in memory and in files; the rest is computed
  // again.
  int64_t in_memory, in_files;
};

void PrintTo(const Crowd& crowd, std::ostream* out) { *out << crowd.model; }

class CrowdTest : public ::testing::TestWithParam<Crowd> {};

TEST_P(CrowdTest, EveryReplyIsThatOfASessionAlone) {
  const Crowd& crowd = GetParam();
  FirstFailure first_failure;
  const auto model = Model::Load(SourcePath(crowd.model));
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
  options.max_pending_bytes = 32;
  // Nobody's time runs out on a slow machine: a client that computes what a reply must be reads no
  // other one meanwhile.
  options.sessions.default_idle = absl::Hours(24);
  options.reader_timeout = absl::InfiniteDuration();
  const auto state_bytes = static_cast<int64_t>(backend->limits().bytes_per_slot);
  options.prefix_cache.max_bytes = 40 * state_bytes;
  options.prefix_cache.least_gain = 4;
  options.states.max_memory_bytes = crowd.in_memory * state_bytes;
  options.states.max_disk_bytes = crowd.in_files * (state_bytes + 200);  // with their headers
  const testing::TempDir directory;
  DiskTier disk;
  if (crowd.in_files > 0) {
    auto files = OpenStateDirectory(directory.path());
    ASSERT_TRUE(files.ok()) << files.status();
    disk = {*std::move(files), StartBackgroundThread()};
  }
  const auto engine = Engine::Create(*model, std::move(backend), options, std::move(disk));

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
  int64_t most_on_disk = 0;
  while (tally.tokens < target && !HasFailure()) {
    most_on_disk = std::max(most_on_disk, engine->GetLoad().states.on_disk);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& client : clients) client.join();
  if (!RIVULET_SANITIZED) {  // else there may be too few of them
    EXPECT_GT(engine->GetLoad().cache_hits, 0);
    EXPECT_EQ(most_on_disk > 0, crowd.in_files > 0);
  }
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
  EXPECT_GE(tally.tokens, target) << "the clients stopped early, because of\n"
                                  << (first_failure.what().empty() ? "nothing that was said"
                                                                   : first_failure.what());
  // What is left are the states of cached prompts, once those on their way to files have arrived.
  for (int i = 0; i < 20000 && KeptBytes(*engine) > options.prefix_cache.max_bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(KeptBytes(*engine), options.prefix_cache.max_bytes);
  const EngineLoad load = engine->GetLoad();
  EXPECT_EQ(load.slots_used, 0);
  EXPECT_EQ(load.queued, 0);
  EXPECT_EQ(load.client_sessions, 0);
  EXPECT_EQ(load.states.file_errors, 0);
  std::printf("%lld states forgotten, most at once in files alone: %lld\n",
              static_cast<long long>(load.states.forgotten), static_cast<long long>(most_on_disk));
  EXPECT_EQ(probe->used_slots(), 0);
  EXPECT_EQ(probe->violations(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(
    Models, CrowdTest,
    ::testing::Values(Crowd{"tests/conformance/models/tiny-elu-relu", 100000, 40, 100, 150, 400},
                      Crowd{"tests/conformance/models/tiny-rfa", 10000, 40, 50, 2000, 0},
                      Crowd{"tests/conformance/models/tiny-image", 10000, 40, 20, 300, 0},
                      Crowd{"model/zoo/mnist-linear", 1000, 8, 60, 30, 60}),
    [](const auto& param) {
      std::string name = param.param.model;
      name = name.substr(name.rfind('/') + 1);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace rivulet::crowd_test
