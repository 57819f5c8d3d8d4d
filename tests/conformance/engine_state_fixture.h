// SPDX-License-Identifier: Apache-2.0
// An engine on a HostileBackend over a tested backend, and the tested backend alone as the
// reference.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/hostile_backend.h"
#include "tests/support/lone_session.h"
#include "tests/support/random_model.h"
#include "tests/support/session_client.h"

namespace rivulet::testing {

// Tokens and their log-probabilities.
using Sample = std::pair<std::vector<int32_t>, std::vector<float>>;

class EngineStateTest : public ::testing::TestWithParam<TestedBackend> {
 protected:
  // Change these, then Start().
  ModelConfig config_ = GetParam().Config();
  int slots_ = 4;
  EngineOptions options_;
  HostileOptions hostile_;

  void Start() {
    if (BundledModelsAreTooLarge()) config_.num_layers = 1;  // an emulated step is slow
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config_, 3).ok());
    const auto model = Model::Load(directory_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    alone_.emplace(NewBackend(1), config_);
    engine_ = Engine::Create(
        model_, std::make_unique<HostileBackend>(NewBackend(slots_), hostile_, probe_), options_);
    client_.emplace(engine_.get(), "t");
  }
  std::unique_ptr<Backend> NewBackend(int num_slots) {
    auto backend = GetParam().same_bits.back()(model_, num_slots);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  }

  // The first sample of `spec` without other requests; its prompt follows `tokens`.
  Sample Alone(const GenerateSpec& spec, std::vector<int32_t> tokens = {},
               std::vector<bool> generated = {}, uint32_t sample_index = 0) {
    tokens.insert(tokens.end(), spec.prompt.begin(), spec.prompt.end());
    const DrawnTokens drawn =
        alone_->Draw(tokens, generated, SamplerFor(spec, config_, sample_index), spec.max_tokens);
    return {drawn.tokens, drawn.logprobs};
  }

  // The engine's reply to it, which must end well.
  Sample Drawn(const GenerateSpec& spec) {
    ReplyCollector reply;
    EXPECT_EQ(reply.Start(engine_.get(), spec), absl::OkStatus());
    EXPECT_EQ(reply.Wait(), absl::OkStatus());
    return Of(reply);
  }
  static Sample Of(const ReplyCollector& reply, size_t sample = 0) {
    return {reply.sample(sample).tokens, reply.sample(sample).logprobs};
  }

  // Checks that every slot is free and zeroed, and that the engine kept the backend's rules.
  void ExpectAtRest() {
    EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()));
    EXPECT_EQ(engine_->GetLoad().slots_used, 0);
    EXPECT_EQ(probe_->used_slots(), 0);
    EXPECT_EQ(probe_->violations(), std::vector<std::string>());
  }

  TempDir directory_;
  std::shared_ptr<const Model> model_;
  std::shared_ptr<HostileProbe> probe_ = std::make_shared<HostileProbe>();
  std::optional<LoneSession> alone_;
  std::deque<ReplyCollector> replies_;  // outlive the engine, even if a test returns early
  std::unique_ptr<Engine> engine_;
  std::optional<SessionClient> client_;
};

}  // namespace rivulet::testing
