// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace rivulet {
namespace {

using ::testing::ElementsAre;

BenchOptions Options() {
  BenchOptions options;
  options.sampling.seed = 5;
  return options;
}

v1::GetModelReply Model() {
  v1::GetModelReply model;
  model.mutable_summary()->set_name("m");
  model.mutable_architecture()->set_vocab_size(11);
  model.mutable_architecture()->mutable_categorical();
  return model;
}

TEST(WorkloadTest, EveryRequestHasASeedOfItsOwn) {
  BenchOptions options = Options();
  options.tokens = {3, 4};
  options.max_tokens = 9;
  options.ignore_eos = true;
  options.sampling.temperature = 0.5f;
  const Workload workload(options, Model());
  const v1::GenerateRequest request = workload.Generate(2);
  EXPECT_EQ(request.model(), "m");
  EXPECT_THAT(request.tokens().ids(), ElementsAre(3, 4));
  EXPECT_EQ(request.max_tokens(), 9);
  EXPECT_TRUE(request.stop().ignore_eos());
  EXPECT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().seed(), 7u);
  EXPECT_EQ(workload.Generate(3).sampling().seed(), 8u);
}

TEST(WorkloadTest, RandomPromptsFillTheVocabularyAndAreRepeatable) {
  BenchOptions options = Options();
  options.prompt_length = 1000;
  const Workload workload(options, Model());
  const auto ids = workload.Score(4).tokens().ids();
  ASSERT_EQ(ids.size(), 1000);
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()),
            (std::set<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(workload.Generate(4).tokens().SerializeAsString(),
            workload.Score(4).tokens().SerializeAsString());
  EXPECT_NE(workload.Score(5).tokens().SerializeAsString(),
            workload.Score(4).tokens().SerializeAsString());
}

TEST(WorkloadTest, RandomPromptsOfImageModelsAreLevels) {
  BenchOptions options = Options();
  options.prompt_length = 500;
  v1::GetModelReply model = Model();
  model.mutable_architecture()->set_vocab_size(257);
  model.mutable_architecture()->mutable_mixture_of_logistics()->set_num_levels(2);
  const auto ids = Workload(options, model).Generate(0).tokens().ids();
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()), (std::set<int32_t>{0, 1}));
}

TEST(WorkloadTest, TextGoesAsText) {
  BenchOptions options = Options();
  options.prompt = "ROMEO:";
  EXPECT_EQ(Workload(options, Model()).Generate(0).text(), "ROMEO:");
  EXPECT_EQ(Workload(options, Model()).Score(0).text(), "ROMEO:");
}

}  // namespace
}  // namespace rivulet
