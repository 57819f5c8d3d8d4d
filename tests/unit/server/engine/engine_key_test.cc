// SPDX-License-Identifier: Apache-2.0
// The limits of an API key: its token quota, slots and sessions.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "model/base/error.h"
#include "server/base/key_account.h"
#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

class EngineKeyTest : public EngineSessionTest {
 protected:
  absl::Time Now() const { return absl::FromUnixMillis(clock_ms_.load()); }
  std::shared_ptr<KeyAccount> Quota(int64_t tokens_per_minute) {
    return Account({.tokens_per_minute = tokens_per_minute});
  }
  std::shared_ptr<KeyAccount> Account(const KeyLimits& limits, const std::string& name = "k") {
    return std::make_shared<KeyAccount>(name, limits, Now());
  }
  // What is left of its quota, which is then taken; at_most + 1 for more than that.
  int64_t Left(KeyAccount* key, int64_t at_most) {
    for (int64_t left = 0; left <= at_most; ++left) {
      if (!key->CheckTokens(Now()).ok()) return left;
      key->TakeTokens(1, Now());
    }
    return at_most + 1;
  }
  static GenerateSpec With(std::shared_ptr<KeyAccount> key, std::vector<int32_t> prompt,
                           int64_t max_tokens) {
    GenerateSpec spec = Prompt(std::move(prompt), max_tokens);
    spec.key = std::move(key);
    return spec;
  }
  absl::StatusOr<ScoreResult> Score(std::shared_ptr<KeyAccount> key, std::vector<int32_t> tokens) {
    ScoreSpec spec;
    spec.key = std::move(key);
    spec.tokens = std::move(tokens);
    return Await<ScoreResult>(
        [&](Engine::ScoreDone done) { return engine_->Score(spec, std::move(done)); });
  }
  absl::StatusOr<ScoreResult> Append(std::shared_ptr<KeyAccount> key, const SessionRef& session,
                                     std::vector<int32_t> tokens) {
    AppendSpec spec;
    spec.session = session;
    spec.key = std::move(key);
    spec.tokens = std::move(tokens);
    return Await<ScoreResult>(
        [&](Engine::ScoreDone done) { return engine_->Append(spec, std::move(done)); });
  }
};

TEST_F(EngineKeyTest, TokensAreTakenAsTheyAreGivenAndGenerated) {
  Start();
  const auto key = Quota(100);
  Generate(With(key, {1, 2, 3}, 5));
  EXPECT_EQ(Left(key.get(), 200), 100 - 3 - 5);
}

TEST_F(EngineKeyTest, TheTokensOfEverySampleCountAndThePromptOnce) {
  Start();
  const auto key = Quota(100);
  GenerateSpec spec = With(key, {1, 2, 3, 4}, 5);
  spec.num_samples = 3;
  Generate(spec);
  EXPECT_EQ(Left(key.get(), 200), 100 - 4 - 3 * 5);
}

TEST_F(EngineKeyTest, GivenTokensOfScoresAndAppendsCount) {
  Start();
  const auto key = Quota(100);
  ASSERT_TRUE(Score(key, {1, 2, 3, 4, 5, 6}).ok());
  const SessionRef session = Open();
  ASSERT_TRUE(Append(key, session, {7, 8}).ok());
  EXPECT_EQ(Left(key.get(), 200), 100 - 6 - 2);
}

TEST_F(EngineKeyTest, AReplyThatRunsIsNotCutAndTheNextRequestsWaitUntilItIsPaidBack) {
  Start();
  const auto key = Quota(60);
  EXPECT_EQ(Generate(With(key, {1, 2}, 100)).size(), 100u);
  const SessionRef session = Open();
  GenerateSpec in_session = SpecOf(session, 1, {1});
  in_session.key = key;
  for (const absl::Status& refused :
       {GenerateError(With(key, {}, 1)), GenerateError(in_session), Score(key, {1, 2}).status(),
        Append(key, session, {1}).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_EQ(GetErrorDetail(refused).reason, "API_KEY_TOKEN_QUOTA");
    EXPECT_EQ(GetErrorDetail(refused).retry_after, absl::Seconds(2 + 100 - 60 + 1));
  }
  EXPECT_EQ(engine_->GetLoad().refused, 0) << "those counted there found a queue full";
  EXPECT_EQ(GenerateError(With(nullptr, {1}, 1)), absl::OkStatus()) << "others go on";
  Advance(43'000);
  EXPECT_EQ(Generate(With(key, {}, 4)).size(), 4u);
}

TEST_F(EngineKeyTest, WhatTheQueueRefusesTakesNothing) {
  fake_.limits.num_slots = 1;
  options_.max_queue = 1;
  Start();
  probe_->AllowRuns(0);
  const auto key = Quota(100);
  ReplyCollector running, waiting, refused;
  ASSERT_EQ(running.Start(engine_.get(), Prompt({}, 1)), absl::OkStatus());
  ASSERT_EQ(waiting.Start(engine_.get(), With(key, {1, 2, 3}, 4)), absl::OkStatus());
  EXPECT_EQ(GetErrorDetail(refused.Start(engine_.get(), With(key, {1, 2, 3, 4, 5}, 4))).reason,
            "QUEUE_FULL");
  probe_->AllowAll();
  EXPECT_EQ(running.Wait(), absl::OkStatus());
  EXPECT_EQ(waiting.Wait(), absl::OkStatus());
  EXPECT_EQ(Left(key.get(), 200), 100 - 3 - 4);
}

TEST_F(EngineKeyTest, TokensOfAReplyThatEndsEarlyCountUpToThere) {
  Start();
  const auto key = Quota(1'000'000);
  probe_->AllowRuns(20);
  ReplyCollector cancelled;
  ASSERT_EQ(cancelled.Start(engine_.get(), With(key, {1}, 1000)), absl::OkStatus());
  cancelled.WaitForTokens(5);
  engine_->Cancel(cancelled.id());
  probe_->AllowAll();
  EXPECT_EQ(cancelled.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Left(key.get(), 1'000'000),
            1'000'000 - 1 - static_cast<int64_t>(cancelled.sample().tokens.size()));
}

TEST_F(EngineKeyTest, RequestsOfAKeyHoldNoMoreSlotsThanItMay) {
  fake_.limits.num_slots = fake_.limits.max_rows = 8;
  Start();
  probe_->AllowRuns(0);
  const auto key = Account({.slots = 3});
  std::vector<std::unique_ptr<ReplyCollector>> replies;
  const auto start = [&](const std::shared_ptr<KeyAccount>& of, int samples) {
    GenerateSpec spec = With(of, {1}, 200);
    spec.num_samples = samples;
    replies.push_back(std::make_unique<ReplyCollector>());
    return replies.back()->Start(engine_.get(), spec);
  };
  for (int i = 0; i < 4; ++i) ASSERT_EQ(start(key, 1), absl::OkStatus());
  ASSERT_EQ(start(key, 2), absl::OkStatus());
  ASSERT_EQ(start(nullptr, 2), absl::OkStatus());
  probe_->AllowAll();
  for (const auto& reply : replies) EXPECT_EQ(reply->Wait(), absl::OkStatus());
  size_t most = 0;
  for (const FakeRun& run : probe_->runs()) most = std::max(most, run.rows.size());
  EXPECT_EQ(most, 5u) << "three of the key, and two others, which do not wait for it";
  GenerateSpec large = With(key, {1}, 4);
  large.num_samples = 4;
  const absl::Status refused = GenerateError(large);
  EXPECT_EQ(GetErrorDetail(refused).reason, "NUM_SAMPLES_OUT_OF_RANGE");
  EXPECT_EQ(refused.message(), "num_samples is 4; allowed: 1 to 3.");
  ExpectAtRest();
}

TEST_F(EngineKeyTest, AReplyThatNobodyReadsGivesItsSlotToTheNextOfItsKey) {
  fake_.limits.num_slots = 4;
  options_.max_pending_bytes = 64;
  Start();
  const auto key = Account({.slots = 1});
  ReplyCollector unread(ReplyCollector::Reading::kOnlyWhenAsked);
  ASSERT_EQ(unread.Start(engine_.get(), With(key, {1}, 200)), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return unread.reply().pending_bytes() > 64; }));
  EXPECT_EQ(Generate(With(key, {2}, 5)).size(), 5u);
  while (!unread.reply().end()) {
    unread.TakeNow();
    std::this_thread::yield();
  }
  EXPECT_EQ(unread.Wait(), absl::OkStatus());
  EXPECT_EQ(unread.sample().tokens.size(), 200u);
}

TEST_F(EngineKeyTest, SessionsThatAreOpenedForkedAndRestoredCountForTheKeyThatDoesIt) {
  Start();
  const auto key = Account({.sessions = 3});
  const auto open = [&](const std::shared_ptr<KeyAccount>& with) {
    return Await<SessionInfo>([&](SessionDone done) {
      OpenSpec spec{"t", 7, std::nullopt};
      spec.key = with;
      return OpenSession(engine_.get(), std::move(spec), std::move(done));
    });
  };
  const auto fork = [&](const SessionId& id, int count) {
    return Await<std::vector<SessionInfo>>([&](SessionsDone done) {
      ForkSpec spec;
      spec.session = {id, "t", std::nullopt, ""};
      spec.count = count;
      spec.key = key;
      return ForkSession(engine_.get(), std::move(spec), std::move(done));
    });
  };
  const auto restore = [&] {
    return Await<SessionInfo>([&](SessionDone done) {
      RestoreSpec spec;
      spec.tenant = "t";
      spec.key = key;
      return RestoreSession(engine_.get(), std::move(spec), std::move(done));
    });
  };
  const auto reason = [](const absl::Status& status) { return GetErrorDetail(status).reason; };
  const auto first = open(key);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(reason(fork(first->id, 3).status()), "API_KEY_SESSION_LIMIT");
  ASSERT_TRUE(fork(first->id, 1).ok());
  ASSERT_TRUE(restore().ok());
  EXPECT_EQ(reason(open(key).status()), "API_KEY_SESSION_LIMIT");
  EXPECT_EQ(reason(fork(first->id, 1).status()), "API_KEY_SESSION_LIMIT");
  EXPECT_EQ(reason(restore().status()), "API_KEY_SESSION_LIMIT");
  EXPECT_TRUE(open(nullptr).ok());
  EXPECT_TRUE(open(Account({.sessions = 1}, "other")).ok());
  std::promise<absl::Status> closed;
  ASSERT_TRUE(CloseSession(engine_.get(), {first->id, "t", std::nullopt, ""},
                           [&](const absl::Status& status) { closed.set_value(status); })
                  .ok());
  ASSERT_TRUE(closed.get_future().get().ok());
  EXPECT_TRUE(open(key).ok());
}

}  // namespace
}  // namespace rivulet
