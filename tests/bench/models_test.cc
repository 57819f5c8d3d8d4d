// SPDX-License-Identifier: Apache-2.0
// Models that benchmarks make of random numbers: each kind loads and generates, and a kept one is
// made once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/model.h"
#include "tests/bench/backend_choice.h"
#include "tests/bench/family_shape.h"
#include "tests/bench/generation.h"
#include "tests/support/random_model.h"

namespace rivulet::bench {
namespace {

namespace fs = std::filesystem;

constexpr char kSmallest[] = "cifar-10";  // of the models that LoadModel makes

// Two rows of the model generate on the CPU; returns its settings.
ModelConfig Generates(const testing::TempDir& directory, const absl::Status& written) {
  EXPECT_TRUE(written.ok()) << written;
  auto model = Model::Load(directory.path());
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return {};
  }
  const std::shared_ptr<const Model> made = *std::move(model);
  const auto backend = NewBackend({}, made, 2, {}, 1);
  Generation generation(backend.get(), made->config(), 2, 4);
  generation.Run();
  EXPECT_EQ(generation.records().size(), 8u);
  for (const Record& record : generation.records()) EXPECT_FALSE(record.non_finite);
  return made->config();
}

TEST(BenchModelsTest, Rwkv7WithTheRanksOfTheLargestGenerates) {
  const testing::TempDir directory;
  Generates(directory, WriteRwkv7(directory.path(), {.hidden = 128,
                                                     .layers = 2,
                                                     .vocab = 64,
                                                     .decay = 128,
                                                     .rate = 128,
                                                     .value = 96,
                                                     .gate = 480}));
}

TEST(BenchModelsTest, Mamba2Generates) {
  const testing::TempDir directory;
  Generates(directory, WriteMamba2(directory.path(), {.hidden = 64, .layers = 2, .vocab = 64}));
}

TEST(BenchModelsTest, GraniteGenerates) {
  const testing::TempDir directory;
  Generates(directory, WriteGranite(directory.path(), {.hidden = 128,
                                                       .layers = 4,
                                                       .vocab = 64,
                                                       .attention_every = 2,
                                                       .heads = 2,
                                                       .kv_heads = 1,
                                                       .ffn = 96}));
}

TEST(BenchModelsTest, Qwen35Generates) {
  const testing::TempDir directory;
  const ModelConfig config = Generates(directory, WriteQwen35(directory.path(), {.hidden = 64,
                                                                                 .layers = 4,
                                                                                 .vocab = 64,
                                                                                 .delta_heads = 2,
                                                                                 .heads = 2,
                                                                                 .kv_heads = 1,
                                                                                 .ffn = 96}));
  EXPECT_TRUE(config.block().layers[3].attends);
}

TEST(BenchModelsTest, AFullSequenceBeginsAgainBehindItsContext) {
  const testing::TempDir directory;
  ASSERT_TRUE(WriteGranite(directory.path(), {.hidden = 128,
                                              .layers = 2,
                                              .vocab = 64,
                                              .attention_every = 2,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .ffn = 96})
                  .ok());
  Choice choice;
  choice.models = directory.path();
  choice.max_context = 128 + 16;
  const auto model = LoadModel(choice, ".");
  const auto backend = NewBackend(choice, model, 2, {}, 1);
  EXPECT_EQ(backend->limits().context, 128 + 16);
  Generation generation(backend.get(), model->config().WithContext(backend->limits().context), 2,
                        4);
  generation.RestartBehind(128);
  for (int run = 0; run < 9; ++run) {
    generation.Run();
    EXPECT_GT(generation.position(), 128);
    EXPECT_LE(generation.position(), 128 + 16);
  }
}

std::vector<std::string> EntriesOf(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

Choice Keeping(const fs::path& folder) {
  Choice choice;
  choice.kept = folder.string();
  return choice;
}

TEST(BenchModelsTest, AKeptModelIsMadeOnce) {
  const testing::TempDir directory;
  const fs::path folder = fs::path(directory.path()) / "kept" / "models";
  const Choice choice = Keeping(folder);
  LoadModel(choice, kSmallest);
  EXPECT_EQ(EntriesOf(folder), std::vector<std::string>{kSmallest});
  const fs::path config = folder / kSmallest / "config.json";
  std::ofstream(config, std::ios::app) << "  ";  // a second making would replace it
  const auto size = fs::file_size(config);
  LoadModel(choice, kSmallest);
  EXPECT_EQ(fs::file_size(config), size);
  EXPECT_EQ(EntriesOf(folder), std::vector<std::string>{kSmallest});
}

TEST(BenchModelsTest, TwoThatKeepTheSameModelAtOnceBothHaveIt) {
  const testing::TempDir directory;
  const Choice choice = Keeping(directory.path());
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back([&] { LoadModel(choice, kSmallest); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(EntriesOf(directory.path()), std::vector<std::string>{kSmallest});
}

TEST(BenchModelsTest, AProcessThatIsKilledLeavesNoHalfOfAModel) {
  const testing::TempDir directory;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    LoadModel(Keeping(directory.path()), "mamba2-130m");
    _exit(0);
  }
  while (EntriesOf(directory.path()).empty() && waitpid(child, nullptr, WNOHANG) == 0) {
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const fs::path made = fs::path(directory.path()) / "mamba2-130m";
  // Whole where this process was slow to kill.
  EXPECT_TRUE(!fs::exists(made) || Model::Load(made.string()).ok());
}

TEST(BenchModelsTest, AFolderThatCannotBeMadeEndsTheProgram) {
  const testing::TempDir directory;
  const std::string file = directory.File("file");
  ASSERT_TRUE(testing::WriteFile(file, "no folder").ok());
  EXPECT_EXIT(LoadModel(Keeping(file), kSmallest), ::testing::ExitedWithCode(1), "cannot make ");
}

}  // namespace
}  // namespace rivulet::bench
