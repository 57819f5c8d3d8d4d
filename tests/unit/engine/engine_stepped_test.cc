// SPDX-License-Identifier: Apache-2.0
// The engine without threads: nothing happens but in the turns that the test takes.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/engine/engine_parts.h"
#include "tests/support/fake_backend.h"
#include "tests/support/reply_collector.h"

namespace rivulet {
namespace {

class SteppedEngineTest : public testing::Test {
 protected:
  const ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  ReplyCollector collector_;
  std::unique_ptr<SteppedEngine> engine_ = CreateSteppedEngine(
      config_, nullptr, std::make_unique<FakeBackend>(config_, FakeBackendOptions(), probe_),
      EngineOptions(), [this] { return now_; });

  void Generate(int64_t max_tokens, absl::Time deadline = absl::InfiniteFuture()) {
    GenerateSpec spec;
    spec.prompt = {1, 2, 3};
    spec.max_tokens = max_tokens;
    spec.deadline = deadline;
    ASSERT_TRUE(collector_.Start(engine_.get(), spec).ok());
  }
};

TEST_F(SteppedEngineTest, EachTurnIsOneRunAndListenersAreToldWhenTheCallerSaysSo) {
  EXPECT_FALSE(engine_->Turn()) << "nothing to do";
  Generate(3);
  EXPECT_EQ(probe_->num_runs(), 0);
  for (int turn = 1; turn <= 3; ++turn) {
    EXPECT_TRUE(engine_->Turn());
    EXPECT_EQ(probe_->num_runs(), turn);
  }
  EXPECT_EQ(collector_.calls(), 0);
  EXPECT_EQ(collector_.reply().pending_bytes(), 12);
  engine_->Emit();
  EXPECT_FALSE(collector_.reply().end()) << "a run's results are handed over by the next turn";
  EXPECT_FALSE(engine_->Turn());
  engine_->Emit();
  EXPECT_TRUE(collector_.Wait().ok());
  EXPECT_EQ(probe_->num_runs(), 3);
}

TEST_F(SteppedEngineTest, ADeadlineIsNoticedByTheFirstTurnAfterIt) {
  Generate(100, now_ + absl::Seconds(5));
  EXPECT_TRUE(engine_->Turn());
  now_ += absl::Seconds(5);
  EXPECT_FALSE(engine_->Turn());
  engine_->Emit();
  EXPECT_TRUE(absl::IsDeadlineExceeded(collector_.Wait()));
  EXPECT_EQ(probe_->num_runs(), 1);
}

TEST_F(SteppedEngineTest, DrainDoesNotWait) {
  Generate(100);
  EXPECT_TRUE(engine_->Turn());
  EXPECT_FALSE(engine_->Drain(absl::InfiniteFuture()));
  EXPECT_TRUE(engine_->GetLoad().draining);
  EXPECT_TRUE(engine_->Turn()) << "what was accepted goes on";
  EXPECT_FALSE(engine_->Drain(now_));
  EXPECT_FALSE(engine_->Turn());
  engine_->Emit();
  EXPECT_TRUE(absl::IsUnavailable(collector_.Wait()));
  EXPECT_TRUE(engine_->Drain(now_));
}

TEST_F(SteppedEngineTest, WhatRunsEndsWithTheEngine) {
  Generate(100);
  EXPECT_TRUE(engine_->Turn());
  engine_.reset();
  EXPECT_TRUE(absl::IsUnavailable(collector_.Wait()));
  EXPECT_EQ(probe_->dirty_slots(), 0);
}

}  // namespace
}  // namespace rivulet
