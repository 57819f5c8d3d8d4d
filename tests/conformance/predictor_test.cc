// SPDX-License-Identifier: Apache-2.0
// The head that guesses (PredictorWeights), against a float64 computation (mtp/*/mtp_golden.json).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/cpu/cpu_backend.h"
#include "model/cpu/cpu_predictor.h"
#include "model/model.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

using kernels::CacheType;

class PredictorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string directory = SourcePath("tests/conformance/mtp/qwen35");
    auto model = Model::Load(directory);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto network =
        CpuNetwork::Load(*model_, WeightPrecision::kAuto, CacheType::kF32, /*predict=*/true);
    ASSERT_TRUE(network.ok()) << network.status();
    network_ = *std::move(network);
    ASSERT_TRUE(network_->predictor_parts().has_value());
    activations_ = network_->NewActivations(64, 1);
    std::ifstream file(directory + "/mtp_golden.json");
    golden_ = nlohmann::json::parse(file);
    tokens_ = golden_["tokens"].get<std::vector<int32_t>>();
    // The rows that the model's head reads after each token.
    AlignedBuffer state(network_->state_size().At(64));
    SpinBarrier alone(1);
    const CpuSegment segment = {state.floats(), 0, tokens_, int(tokens_.size())};
    network_->Pass({&segment, 1}, *activations_, 0, 1, alone);
    const auto n = size_t(model_->config().hidden_size);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const float* const row = activations_->scratch.head_rows.row(int(i));
      hidden_.insert(hidden_.end(), row, row + n);
    }
  }
  CpuArray HiddenRows() { return {hidden_.data(), model_->config().hidden_size}; }
  // Logits after the pairs of a token and its follower, from token `first` on.
  std::vector<std::vector<float>> Outputs(int first) {
    AlignedBuffer state(network_->predictor_parts()->size().At(64));
    SpinBarrier alone(1);
    const std::span<const int32_t> next = std::span(tokens_).subspan(size_t(first) + 1);
    const CpuSegment segment = {state.floats(), 0, next, int(next.size())};
    network_->Predict({&segment, 1}, HiddenRows().row(first), *activations_, 0, 1, alone);
    std::vector<std::vector<float>> outputs;
    for (int i = 0; i < int(next.size()); ++i) {
      const float* const row = activations_->output(i);
      outputs.emplace_back(row, row + model_->config().output_size());
    }
    return outputs;
  }
  // The guesses that follow token position + 1, with keys from `first` on.
  std::vector<int32_t> Guesses(const nlohmann::json& golden, int piece) {
    const int first = golden["first"], end = golden["position"].get<int>() + 1;
    CpuPredictor predictor(*network_, model_->config());
    ThreadTeam team(2);
    const auto activations = network_->NewActivations(64, 2);
    // A sequence that the slot had before. With its keys the guesses of "late_chain" would be those
    // of "chain".
    predictor.Take(1, 1, std::span(tokens_).subspan(1, 20), HiddenRows(), 0);
    predictor.Guess(&team, activations.get());
    predictor.Forget(1);
    std::vector<int32_t> guesses;
    for (int at = first; at < end; at += piece) {
      const int count = std::min(piece, end - at);
      predictor.Take(1, 4, std::span(tokens_).subspan(size_t(at) + 1, size_t(count)), HiddenRows(),
                     at);
      guesses = predictor.Guess(&team, activations.get());
      EXPECT_TRUE(predictor.Guess(&team, activations.get()).empty()) << "nothing was taken";
    }
    return guesses;
  }

  std::shared_ptr<const Model> model_;
  std::unique_ptr<const CpuNetwork> network_;
  std::unique_ptr<CpuActivations> activations_;
  nlohmann::json golden_;
  std::vector<int32_t> tokens_;
  std::vector<float> hidden_;
};

TEST_F(PredictorTest, LogitsAreTheReferences) {
  for (const char* part : {"full", "late"}) {
    const nlohmann::json& golden = golden_[part];
    const auto outputs = Outputs(golden["first"]);
    ASSERT_EQ(outputs.size(), golden["outputs"].size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (size_t k = 0; k < outputs[i].size(); ++k) {
        ASSERT_NEAR(outputs[i][k], golden["outputs"][i][k].get<double>(), 1e-4)
            << part << ", row " << i;
      }
    }
  }
}

// Each call writes the keys of the guesses before anew.
TEST_F(PredictorTest, GuessesAreTheReferencesHoweverTheTokensCome) {
  for (const char* part : {"chain", "late_chain"}) {
    for (const int piece : {40, 1, 3}) {
      EXPECT_EQ(Guesses(golden_[part], piece), golden_[part]["drafts"].get<std::vector<int32_t>>())
          << part << " in pieces of " << piece;
    }
  }
}

TEST_F(PredictorTest, ABackendGuessesAfterItsDraws) {
  CpuBackendOptions options;
  options.num_slots = 2;
  options.max_drafts = 3;
  auto made = CreateCpuBackend(model_, options);
  ASSERT_TRUE(made.ok()) << made.status();
  Backend& backend = **made;
  EXPECT_EQ(backend.limits().drafts.guesses, 3);
  SlotSampler sampler;
  sampler.params.temperature = 0;
  const Slot slots[] = {1};
  ASSERT_TRUE(backend.ZeroSlots(slots).ok());
  ASSERT_TRUE(backend.SetSampler(1, sampler).ok());
  CpuPredictor predictor(*network_, model_->config());
  ThreadTeam team(1);
  AlignedBuffer state(network_->state_size().At(64));
  int32_t token = tokens_[0];
  std::vector<int32_t> drafts;
  for (int64_t position = 0; position < 30;) {
    std::vector<int32_t> fed = {token};
    fed.insert(fed.end(), drafts.begin(), drafts.end());
    rivulet::Run run;
    RunRow& row = run.rows.emplace_back();
    row.slot = 1;
    row.position = position;
    row.tokens = fed;
    row.drafts = int(drafts.size());
    row.guesses = 3;
    row.sample = true;
    row.max_samples = 1 + row.drafts;
    ASSERT_TRUE(backend.Submit(run).ok());
    const std::vector<Record> records = PollAll(backend);
    // The same by hand: the drafts that were right, and the last draw.
    const auto kept = std::span(fed).first(records.size());
    std::vector<int32_t> drawn;
    for (const Record& record : records) drawn.push_back(record.token);
    SpinBarrier alone(1);
    const CpuSegment segment = {state.floats(), position, kept, int(kept.size())};
    network_->Pass({&segment, 1}, *activations_, 0, 1, alone);
    predictor.Take(1, 3, drawn, activations_->scratch.head_rows, 0);
    EXPECT_EQ(records.back().guesses, predictor.Guess(&team, activations_.get()))
        << "position " << position;
    EXPECT_EQ(records.back().guesses.size(), 3u);
    position += int64_t(records.size());
    token = drawn.back();
    drafts = records.back().guesses;
  }
}

}  // namespace
}  // namespace rivulet::testing
