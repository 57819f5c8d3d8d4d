// SPDX-License-Identifier: Apache-2.0
// The engine without threads: nothing happens but in the turns that the test takes.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "server/engine/engine_parts.h"
#include "server/engine/session_calls.h"
#include "tests/support/stepped_engine_test_case.h"

namespace rivulet {
namespace {

class SteppedEngineTest : public SteppedEngineTestCase {
 protected:
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

TEST_F(SteppedEngineTest, WhereRowsAreScarceEverybodyGetsOneInTurn) {
  FakeBackendOptions fake;
  fake.limits.num_slots = 4;
  fake.limits.max_rows = 2;
  fake.limits.max_steps = fake.limits.preferred_steps = 1;
  engine_ =
      CreateSteppedEngine(config_, nullptr, std::make_unique<FakeBackend>(config_, fake, probe_),
                          EngineOptions(), [this] { return now_; });
  std::deque<ReplyCollector> replies(4);
  for (ReplyCollector& reply : replies) {
    GenerateSpec spec;
    spec.max_tokens = 20;
    ASSERT_TRUE(reply.Start(engine_.get(), spec).ok());
  }
  for (size_t runs = 0; runs < 12; ++runs) {  // whose tokens are told
    EXPECT_TRUE(engine_->Turn());
    engine_->Emit();
    if (runs % 2 != 0) continue;
    for (ReplyCollector& reply : replies) EXPECT_EQ(reply.sample().tokens.size(), runs / 2);
  }
  engine_.reset();
}

TEST_F(SteppedEngineTest, ASessionThatIsClosedIsNoMoreWhileItsReplyStillHasASlot) {
  SessionRef session{SessionId(), "t", std::nullopt, ""};
  ASSERT_TRUE(OpenSession(engine_.get(), {"t", 7, std::nullopt},
                          [&](const absl::StatusOr<SessionInfo>& info) { session.id = info->id; })
                  .ok());
  engine_->Turn();
  engine_->Emit();
  GenerateSpec spec;
  spec.session = session;
  spec.max_tokens = 100;
  ASSERT_TRUE(collector_.Start(engine_.get(), spec).ok());
  EXPECT_TRUE(engine_->Turn());
  ASSERT_TRUE(CloseSession(engine_.get(), session, [](const absl::Status& status) {
                EXPECT_TRUE(status.ok());
              }).ok());
  size_t listed = 99;
  ASSERT_TRUE(ListSessions(engine_.get(), {"t"}, [&](const absl::StatusOr<SessionPage>& page) {
                listed = page->sessions.size();
              }).ok());
  absl::Status found;
  ASSERT_TRUE(GetSession(engine_.get(), session, absl::InfiniteFuture(),
                         [&](const absl::StatusOr<SessionInfo>& info) { found = info.status(); })
                  .ok());
  engine_->Turn();
  engine_->Emit();
  EXPECT_EQ(listed, 0u);
  EXPECT_TRUE(absl::IsNotFound(found)) << found;
  EXPECT_TRUE(absl::IsCancelled(collector_.Wait()));
}

}  // namespace
}  // namespace rivulet
