// SPDX-License-Identifier: Apache-2.0
// Whole models against their float64 goldens, straight through a backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/golden.h"

namespace rivulet::testing {
namespace {

class BackendGoldenTest : public ::testing::TestWithParam<std::tuple<std::string, TestedBackend>> {
};

TEST_P(BackendGoldenTest, OutputsAndLikelihoodMatchFloat64) {
  const auto& [directory, tested] = GetParam();
  auto model = Model::Load(directory);
  ASSERT_TRUE(model.ok()) << model.status();
  auto backend = tested.same_bits[0](*model, 2);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const Golden golden = ReadGolden(directory);
  ASSERT_FALSE(golden.sequences.empty());
  // Where the divisor q.z comes close to zero every error grows, that of fp16, too.
  const bool ill_conditioned = OutputTolerance(directory) > 2e-3;
  const double growth = tested.least_output_tolerance > 0 && ill_conditioned ? 20 : 1;
  const double tolerance =
      std::max(OutputTolerance(directory), growth * tested.least_output_tolerance);
  const double nll_tolerance = growth * 1e-4;
  for (const GoldenSequence& sequence : golden.sequences) {
    const BackendScore score =
        ScoreThroughBackend(**backend, (*model)->config(), 1, sequence.tokens,
                            std::min(1024, (*backend)->limits().max_tokens));
    ASSERT_EQ(int64_t(score.logprobs.size()), sequence.num_scored);
    EXPECT_NEAR(score.nll_nats, sequence.nll_nats, nll_tolerance * sequence.nll_nats);
    const double worst = WorstOutputError(golden, sequence, score);
    EXPECT_LE(worst, tolerance);
    RecordProperty("worst_output_error", std::to_string(worst));
    std::printf("  %s: worst output error %.2g (limit %.2g)\n",
                directory.c_str() + directory.rfind('/') + 1, worst, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendGoldenTest,
                         ::testing::Combine(::testing::ValuesIn(GoldenDirectories()),
                                            ::testing::ValuesIn(TestedBackends())),
                         [](const auto& param) {
                           return TestName(std::get<0>(param.param), std::get<1>(param.param).name);
                         });

}  // namespace
}  // namespace rivulet::testing
