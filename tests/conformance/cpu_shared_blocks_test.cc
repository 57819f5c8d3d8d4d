// SPDX-License-Identifier: Apache-2.0
// Steps of hybrids on many threads. Far into their contexts, on more threads than there are heads
// of keys, the threads share the blocks of a head; they share the columns of experts; and no bit
// changes. Backends run steps of such small models on one thread, so the test calls the network.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "model/cpu/cpu_network.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

constexpr int kRows = 128;
constexpr int64_t kLong = kSharedBlocks * kernels::kCacheBlock + 70, kShort = 200;

// The outputs of the last token, of each sequence.
using Outputs = std::vector<std::vector<float>>;

class SharedBlocksTest : public ::testing::TestWithParam<std::tuple<const char*, WeightPrecision>> {
 protected:
  void SetUp() override {
    const auto& [directory, weights] = GetParam();
    auto model = Model::Load(SourcePath(std::string("tests/conformance/") + directory));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto network = CpuNetwork::Load(*model_, weights, kernels::CacheType::kF32);
    ASSERT_TRUE(network.ok()) << network.status();
    network_ = *std::move(network);
  }

  void Pass(const std::vector<CpuSegment>& piece, CpuActivations* activations, int threads) {
    SpinBarrier barrier(threads);
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) {
      others.emplace_back([&, i] { network_->Pass(piece, *activations, i, threads, barrier); });
    }
    network_->Pass(piece, *activations, 0, threads, barrier);
    for (std::thread& other : others) other.join();
  }

  // A state of `seed`, with room for kLong + 8 tokens. To feed so many tokens would take ten times
  // the time of the steps, and threads treat a random state as any other.
  std::vector<float> RandomState(uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<float> state(model_->config().state().size().At(kLong + 8) / sizeof(float));
    for (float& v : state) v = value(random);
    return state;
  }
  int32_t TokenAt(int64_t position) const {
    return int32_t(position * 7 % model_->config().vocab_size);
  }

  // Two steps of these sequences together, each `fed` tokens into its state.
  Outputs Steps(const std::vector<int64_t>& fed, std::vector<std::vector<float>>* states,
                int threads) {
    const auto activations = network_->NewActivations(kRows, threads);
    Outputs outputs;
    for (int step = 0; step < 2; ++step) {
      std::vector<int32_t> tokens;
      tokens.reserve(fed.size());
      for (const int64_t count : fed) tokens.push_back(TokenAt(count + step));
      std::vector<CpuSegment> piece;
      for (size_t i = 0; i < fed.size(); ++i) {
        piece.push_back({(*states)[i].data(), fed[i] + step, {&tokens[i], 1}, 1});
      }
      Pass(piece, activations.get(), threads);
      for (size_t i = 0; i < fed.size(); ++i) {
        const float* const output = activations->output(int(i));
        outputs.emplace_back(output, output + model_->config().output_size());
      }
    }
    return outputs;
  }

  std::shared_ptr<const Model> model_;
  std::unique_ptr<const CpuNetwork> network_;
};

TEST_P(SharedBlocksTest, ThreadsChangeNoBit) {
  const std::vector<std::vector<float>> fed = {RandomState(1), RandomState(2)};
  for (const std::vector<int64_t>& counts : {std::vector{kLong}, {kLong, kShort}}) {
    std::vector<std::vector<float>> alone = fed;
    const Outputs expected = Steps(counts, &alone, 1);
    for (const int threads : {2, 3, 5, 7}) {
      std::vector<std::vector<float>> states = fed;
      EXPECT_EQ(Steps(counts, &states, threads), expected) << threads << " threads";
      EXPECT_EQ(states, alone) << threads << " threads";
    }
  }
}

// Also where the numbers of one sequence are none, so that its experts are.
TEST_P(SharedBlocksTest, TheOthersInAPassChangeNoBit) {
  constexpr size_t kBad = 5;
  std::vector<std::vector<float>> states;
  std::vector<int64_t> counts;
  for (uint32_t i = 0; i < 12; ++i) {
    states.push_back(RandomState(i));
    counts.push_back(kShort + i);
  }
  std::fill(states[kBad].begin(), states[kBad].end(), std::nanf(""));
  for (const int threads : {1, 3}) {
    std::vector<std::vector<float>> all = states;
    const Outputs together = Steps(counts, &all, threads);
    for (size_t i = 0; i < counts.size(); ++i) {
      std::vector<std::vector<float>> one = {states[i]};
      const Outputs alone = Steps({counts[i]}, &one, 1);
      if (i == kBad) {
        EXPECT_TRUE(std::isnan(together[i][0])) << "as the test needs it";
        continue;
      }
      EXPECT_EQ(together[i], alone[0]) << i;
      EXPECT_EQ(together[counts.size() + i], alone[1]) << i;
      EXPECT_EQ(all[i], one[0]) << i;
    }
  }
}

std::string NameOf(
    const ::testing::TestParamInfo<std::tuple<const char*, WeightPrecision>>& param) {
  const auto& [directory, weights] = param.param;
  return TestName(directory, weights == WeightPrecision::kAuto   ? "auto"
                             : weights == WeightPrecision::kInt8 ? "int8"
                                                                 : "int4");
}

INSTANTIATE_TEST_SUITE_P(All, SharedBlocksTest,
                         ::testing::Combine(::testing::Values("hybrid/granite-nope",
                                                              "hybrid/qwen35-text",
                                                              "hybrid/falcon-h1-bf16"),
                                            ::testing::Values(WeightPrecision::kAuto)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(
    Experts, SharedBlocksTest,
    ::testing::Combine(::testing::Values("family/qwen35-moe", "family/nemotron-moe"),
                       ::testing::Values(WeightPrecision::kAuto, WeightPrecision::kInt8,
                                         WeightPrecision::kInt4)),
    NameOf);

}  // namespace
}  // namespace rivulet::testing
