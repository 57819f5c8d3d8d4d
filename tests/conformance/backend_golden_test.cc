// SPDX-License-Identifier: Apache-2.0
// Whole models against their float64 goldens, straight through the CPU backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "model/cpu_backend.h"
#include "model/model.h"
#include "tests/support/golden.h"

namespace rivulet::testing {
namespace {

std::vector<std::string> GoldenDirectories() {
  std::vector<std::string> directories;
  for (const char* parent : {"/tests/conformance/models", "/model/zoo"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(RIVULET_SOURCE_DIR) + parent)) {
      if (entry.is_directory()) directories.push_back(entry.path().string());
    }
  }
  std::sort(directories.begin(), directories.end());
  return directories;
}

class BackendGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(BackendGoldenTest, OutputsAndLikelihoodMatchFloat64) {
  const std::string& directory = GetParam();
  auto model = Model::Load(directory);
  ASSERT_TRUE(model.ok()) << model.status();
  auto backend = CreateCpuBackend(*model, {.num_slots = 2});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const Golden golden = ReadGolden(directory);
  ASSERT_FALSE(golden.sequences.empty());
  const double tolerance = OutputTolerance(directory);
  for (const GoldenSequence& sequence : golden.sequences) {
    const BackendScore score =
        ScoreThroughBackend(**backend, (*model)->config(), 1, sequence.tokens, 1024);
    ASSERT_EQ(int64_t(score.logprobs.size()), sequence.num_scored);
    EXPECT_NEAR(score.nll_nats, sequence.nll_nats, 1e-4 * sequence.nll_nats);
    double worst = 0;
    for (size_t j = 0; j < golden.positions.size(); ++j) {
      const std::vector<float>& outputs = score.outputs[size_t(golden.positions[j])];
      ASSERT_EQ(outputs.size(), sequence.outputs[j].size());
      for (size_t i = 0; i < outputs.size(); ++i) {
        worst = std::max(worst, std::fabs(double{outputs[i]} - sequence.outputs[j][i]));
      }
    }
    EXPECT_LE(worst, tolerance);
    RecordProperty("worst_output_error", std::to_string(worst));
    std::printf("  %s: worst output error %.2g (limit %.2g)\n",
                directory.c_str() + directory.rfind('/') + 1, worst, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendGoldenTest, ::testing::ValuesIn(GoldenDirectories()),
                         [](const auto& param) {
                           std::string name = param.param.substr(param.param.rfind('/') + 1);
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace rivulet::testing
