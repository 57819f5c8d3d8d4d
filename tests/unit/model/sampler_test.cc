// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "model/base/error.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ModelConfig Categorical() { return testing::TinyConfig(); }  // 11 tokens

ModelConfig Mixture() {
  ModelConfig config = testing::TinyConfig();
  config.output = {OutputType::kMixtureOfLogistics, 3, 10, MixtureScale::kExp};
  return config;
}

using Change = std::function<void(SamplingParams*)>;

absl::Status Validate(const ModelConfig& config, const Change& change) {
  SamplingParams params;
  change(&params);
  return ValidateSampling(params, config, "sampling.");
}

void ExpectBad(const ModelConfig& config, const std::string& field, const Change& change) {
  const absl::Status status = Validate(config, change);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << field << " " << status;
  EXPECT_EQ(GetErrorDetail(status).field, "sampling." + field) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "sampling." + field)) << status;
}

TEST(SamplerTest, AcceptsDefaultsForBothHeads) {
  EXPECT_TRUE(ValidateSampling({}, Categorical(), "").ok());
  EXPECT_TRUE(ValidateSampling({}, Mixture(), "").ok());
}

TEST(SamplerTest, AcceptsTheEdgesOfEveryRange) {
  EXPECT_TRUE(Validate(Categorical(), [](SamplingParams* p) {
                p->temperature = 0;
                p->top_k = std::numeric_limits<int32_t>::max();
                p->top_p = std::numeric_limits<float>::denorm_min();
                p->min_p = 1;
                p->repetition_penalty = 0.01f;
                p->frequency_penalty = -2;
                p->presence_penalty = 2;
                p->logit_bias = {{0, -100.0f}, {10, 100.0f}};
                p->seed = ~uint64_t{0};
              }).ok());
  EXPECT_TRUE(Validate(Mixture(), [](SamplingParams* p) { p->temperature = 0.5f; }).ok());
}

TEST(SamplerTest, NamesEveryFieldThatIsOutOfRange) {
  const ModelConfig config = Categorical();
  for (const float bad : {-1.0f, -std::numeric_limits<float>::denorm_min(), kNan, kInfinity}) {
    ExpectBad(config, "temperature", [bad](SamplingParams* p) { p->temperature = bad; });
    ExpectBad(Mixture(), "temperature", [bad](SamplingParams* p) { p->temperature = bad; });
  }
  ExpectBad(config, "top_k", [](SamplingParams* p) { p->top_k = -1; });
  for (const float bad : {0.0f, -0.5f, 1.001f, kNan, kInfinity}) {
    ExpectBad(config, "top_p", [bad](SamplingParams* p) { p->top_p = bad; });
  }
  for (const float bad : {-0.001f, 1.001f, kNan, -kInfinity}) {
    ExpectBad(config, "min_p", [bad](SamplingParams* p) { p->min_p = bad; });
  }
  for (const float bad : {0.0f, -1.0f, kNan, kInfinity}) {
    ExpectBad(config, "repetition_penalty",
              [bad](SamplingParams* p) { p->repetition_penalty = bad; });
  }
  for (const float bad : {-2.001f, 2.001f, kNan, kInfinity}) {
    ExpectBad(config, "frequency_penalty",
              [bad](SamplingParams* p) { p->frequency_penalty = bad; });
    ExpectBad(config, "presence_penalty", [bad](SamplingParams* p) { p->presence_penalty = bad; });
  }
}

TEST(SamplerTest, NamesEveryBadLogitBias) {
  const ModelConfig config = Categorical();
  ExpectBad(config, "logit_bias", [](SamplingParams* p) { p->logit_bias = {{11, 1.0f}}; });
  ExpectBad(config, "logit_bias", [](SamplingParams* p) { p->logit_bias = {{-1, 1.0f}}; });
  ExpectBad(config, "logit_bias", [](SamplingParams* p) { p->logit_bias = {{3, 1}, {3, 2}}; });
  for (const float bad : {-100.5f, 100.5f, kNan, kInfinity}) {
    ExpectBad(config, "logit_bias[3]", [bad](SamplingParams* p) { p->logit_bias = {{3, bad}}; });
  }
}

TEST(SamplerTest, LetsAMixtureHeadHaveTemperatureAndSeedOnly) {
  const ModelConfig config = Mixture();
  ExpectBad(config, "top_k", [](SamplingParams* p) { p->top_k = 1; });
  ExpectBad(config, "top_p", [](SamplingParams* p) { p->top_p = 0.9f; });
  ExpectBad(config, "top_p", [](SamplingParams* p) { p->top_p = kNan; });
  ExpectBad(config, "min_p", [](SamplingParams* p) { p->min_p = 0.1f; });
  ExpectBad(config, "repetition_penalty", [](SamplingParams* p) { p->repetition_penalty = 1.1f; });
  ExpectBad(config, "frequency_penalty", [](SamplingParams* p) { p->frequency_penalty = 0.1f; });
  ExpectBad(config, "presence_penalty", [](SamplingParams* p) { p->presence_penalty = 0.1f; });
  ExpectBad(config, "logit_bias", [](SamplingParams* p) { p->logit_bias = {{3, 0.0f}}; });
  EXPECT_TRUE(Validate(config, [](SamplingParams* p) { p->seed = 9; }).ok());
}

}  // namespace
}  // namespace rivulet
