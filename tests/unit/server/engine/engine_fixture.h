// SPDX-License-Identifier: Apache-2.0
// An engine over a FakeBackend, and its expected replies.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "model/text/char_tokenizer.h"
#include "server/engine/engine.h"
#include "server/engine/engine_parts.h"
#include "tests/support/fake_backend.h"
#include "tests/support/fake_state_files.h"
#include "tests/support/reply_collector.h"

namespace rivulet {

class EngineTest : public ::testing::Test {
 protected:
  // Change these, then Start().
  ModelConfig config_ = FakeConfig(/*vocab_size=*/50, /*with_bos=*/true);
  FakeBackendOptions fake_;
  EngineOptions options_;
  std::unique_ptr<TextTokenizer> tokenizer_;
  std::shared_ptr<FakeDisk> disk_;  // null: no disk tier

  std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  std::atomic<int64_t> clock_ms_{1'000'000};
  std::unique_ptr<Engine> engine_;

  void Start() {
    DiskTier tier;
    if (disk_ != nullptr) tier.files = std::make_unique<FakeStateFiles>(disk_);
    engine_ = CreateEngineForConfig(
        config_, tokenizer_.get(), std::make_unique<FakeBackend>(config_, fake_, probe_), options_,
        [this] { return absl::FromUnixMillis(clock_ms_.load()); }, std::move(tier));
  }
  // Moves the engine's clock and makes its loop look at it.
  void Advance(int64_t ms) {
    clock_ms_ += ms;
    engine_->Cancel(0);
  }

  static GenerateSpec Prompt(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed = 1) {
    GenerateSpec spec;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.sampling.seed = seed;
    return spec;
  }

  SlotSampler SamplerOf(const GenerateSpec& spec, uint32_t sample_index = 0) const {
    SlotSampler sampler;
    sampler.params = spec.sampling;
    sampler.sample_index = sample_index;
    sampler.stop_ids = spec.stop_ids;
    if (config_.eos_token_id && !spec.ignore_eos) sampler.stop_ids.push_back(*config_.eos_token_id);
    return sampler;
  }
  std::vector<int32_t> FeedOf(const GenerateSpec& spec) const {
    std::vector<int32_t> feed(config_.has_bos() ? 1 : 0, config_.bos_token_id.value_or(0));
    for (int32_t token : spec.prompt) feed.push_back(token);
    return feed;
  }
  // The tokens that the model draws for `spec` without other requests.
  std::vector<int32_t> Solo(const GenerateSpec& spec, uint32_t sample_index = 0) const {
    return FakeSolo(config_, fake_.script, FeedOf(spec), SamplerOf(spec, sample_index),
                    spec.max_tokens);
  }

  // Tokens fed by all runs so far; at most 10,000 runs.
  int64_t TokensFed() const {
    int64_t fed = 0;
    for (const FakeRun& run : probe_->runs()) {
      for (const FakeRun::Row& row : run.rows) fed += row.tokens;
    }
    return fed;
  }
  // Waits for a condition that another thread makes true.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 20000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    return false;
  }
  // Checks that no request is left, every slot is free and zeroed, and the engine kept the
  // backend's rules.
  void ExpectAtRest() {
    EXPECT_TRUE(Eventually([&] {
      const EngineLoad load = engine_->GetLoad();
      return load.slots_used == 0 && load.running == 0 && load.queued == 0;
    }));
    if (engine_->GetLoad().health.ok()) {
      EXPECT_EQ(probe_->dirty_slots(), 0);
    }
    EXPECT_EQ(probe_->violations(), std::vector<std::string>());
  }
};

}  // namespace rivulet
