// SPDX-License-Identifier: Apache-2.0
// What an engine counts and times of sessions in a shared store: two replicas, on one thread and a
// clock that the test moves.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/engine/engine_parts.h"
#include "server/engine/session_calls.h"
#include "server/sessions/sequence_hash.h"
#include "tests/support/fake_backend.h"
#include "tests/support/memory_session_store.h"
#include "tests/support/reply_collector.h"

namespace rivulet {
namespace {

class ReplicaTotalsTest : public ::testing::Test {
 protected:
  struct Replica {
    std::shared_ptr<MemorySessionStore> store;
    std::unique_ptr<SteppedEngine> engine;
  };

  Replica Start() {
    Replica replica;
    replica.store = std::make_shared<MemorySessionStore>(&server_);
    EngineOptions options;
    options.session_store = replica.store;
    replica.engine = CreateSteppedEngine(
        config_, nullptr,
        std::make_unique<FakeBackend>(config_, FakeBackendOptions(), std::make_shared<FakeProbe>()),
        options, [this] { return now_; });
    return replica;
  }

  // Until nothing happens before the clock moves. Calls of the store end as `fate` says.
  static void Settle(const Replica& replica, StoreFate fate = StoreFate::kAnswered) {
    while (replica.engine->Turn() || replica.store->Deliver(fate)) continue;
    replica.engine->Emit();
  }
  // Turns, without an answer of the store.
  static void Turn(const Replica& replica) {
    while (replica.engine->Turn()) continue;
    replica.engine->Emit();
  }

  void BeginAppend(const Replica& replica) {
    ended_.reset();
    AppendSpec spec;
    spec.session = session_;
    spec.tokens = {1, 2, 3};
    ASSERT_TRUE(replica.engine
                    ->Append(spec,
                             [this](const absl::StatusOr<ScoreResult>& result) {
                               ended_ = Reason(result.status());
                             })
                    .ok());
  }
  std::string Append(const Replica& replica, StoreFate fate = StoreFate::kAnswered) {
    BeginAppend(replica);
    Settle(replica, fate);
    return ended_.value_or("not ended");
  }
  std::string Open(const Replica& replica, StoreFate fate = StoreFate::kAnswered) {
    std::string opened = "not ended";
    const auto id = OpenSession(replica.engine.get(), {"t", 7, std::nullopt},
                                [&](const absl::StatusOr<SessionInfo>& info) {
                                  opened = Reason(info.status());
                                  if (info.ok()) session_ = {info->id, "t", std::nullopt, ""};
                                });
    EXPECT_TRUE(id.ok()) << id.status();
    Settle(replica, fate);
    return opened;
  }
  static std::string Reason(const absl::Status& status) {
    return status.ok() ? "OK" : GetErrorDetail(status).reason;
  }

  // What is not 0.
  static std::string Totals(const Replica& replica) {
    const ReplicaTotals totals = replica.engine->GetLoad().replication;
    std::string text;
    const auto show = [&text](const char* name, int64_t count) {
      if (count != 0) absl::StrAppend(&text, text.empty() ? "" : ", ", count, " ", name);
    };
    show("writes", totals.writes);
    show("takeovers", totals.takeovers);
    show("lost", totals.lost);
    show("rewritten", totals.rewritten);
    show("not durable", totals.not_durable);
    show("unavailable", totals.unavailable);
    show("full", totals.full);
    show("damaged", totals.damaged);
    return text;
  }
  static Histogram::Reading Claims(const Replica& replica) {
    return replica.engine->meters().session_claim().Read();
  }
  static Histogram::Reading Saves(const Replica& replica) {
    return replica.engine->meters().session_save().Read();
  }

  const ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  absl::Time now_ = absl::FromUnixSeconds(1000);
  MemoryStoreServer server_{[this] { return now_; }};
  SessionRef session_;
  std::optional<std::string> ended_;  // the last append: OK or its reason
  Replica a_ = Start(), b_ = Start();
};

TEST_F(ReplicaTotalsTest, ARequestIsTwoWritesAndAnOpenedSessionIsOne) {
  EXPECT_EQ(Totals(a_), "");
  EXPECT_EQ(Open(a_), "OK");
  EXPECT_EQ(Totals(a_), "1 writes");
  EXPECT_EQ(Append(a_), "OK");
  EXPECT_EQ(Totals(a_), "3 writes") << "the claim and the end";
  EXPECT_EQ(Totals(b_), "");
}

TEST_F(ReplicaTotalsTest, ClaimsAndSavesAreTimedWhateverElseHappens) {
  EXPECT_EQ(Open(a_), "OK");
  EXPECT_EQ(Claims(a_).total(), 0) << "a new session is not claimed";
  EXPECT_EQ(Saves(a_).total(), 1);
  EXPECT_EQ(Saves(a_).sum, 0);
  BeginAppend(a_);
  Turn(a_);
  now_ += absl::Milliseconds(30);
  Turn(a_);
  EXPECT_EQ(Claims(a_).total(), 0);
  EXPECT_TRUE(a_.store->Deliver());
  Turn(a_);
  EXPECT_EQ(Claims(a_).total(), 1);
  EXPECT_DOUBLE_EQ(Claims(a_).sum, 0.03);
  now_ += absl::Milliseconds(40);
  EXPECT_EQ(Saves(a_).total(), 1);
  Settle(a_);
  EXPECT_EQ(ended_, "OK");
  EXPECT_EQ(Claims(a_).total(), 1);
  EXPECT_EQ(Saves(a_).total(), 2);
  EXPECT_DOUBLE_EQ(Saves(a_).sum, 0.04);
}

TEST_F(ReplicaTotalsTest, AClaimThatIsRefusedIsTimedTooAndHasNothingToSave) {
  EXPECT_EQ(Open(a_), "OK");
  EXPECT_EQ(Append(b_, StoreFate::kRequestLost), "SESSION_STORE");
  EXPECT_EQ(Totals(b_), "1 unavailable");
  EXPECT_EQ(Claims(b_).total(), 1);
  EXPECT_EQ(Saves(b_).total(), 0);
}

TEST_F(ReplicaTotalsTest, ATakeoverIsASessionThatAnotherReplicaHasWritten) {
  EXPECT_EQ(Open(a_), "OK");
  EXPECT_EQ(Append(a_), "OK");
  EXPECT_EQ(Append(b_), "OK");
  EXPECT_EQ(Totals(b_), "2 writes, 1 takeovers");
  EXPECT_EQ(Append(b_), "OK");
  EXPECT_EQ(Totals(b_), "4 writes, 1 takeovers") << "it has the session already";
  EXPECT_EQ(Totals(a_), "3 writes") << "idle, it learns of nothing";
  EXPECT_EQ(Append(a_), "OK");
  EXPECT_EQ(Totals(a_), "5 writes, 1 takeovers");
}

TEST_F(ReplicaTotalsTest, ASessionIsLostIfAnotherReplicaTakesItWhileARequestRuns) {
  EXPECT_EQ(Open(a_), "OK");
  ReplyCollector reply;
  GenerateSpec spec;
  spec.session = session_;
  spec.session_seed = true;
  spec.prompt = {1, 2, 3};
  spec.max_tokens = 1000;
  ASSERT_TRUE(reply.Start(a_.engine.get(), spec).ok());
  a_.engine->Turn();
  EXPECT_TRUE(a_.store->Deliver()) << "the claim";
  a_.engine->Turn();
  now_ += absl::Seconds(2);  // the lease ends
  EXPECT_EQ(Append(b_), "OK");
  EXPECT_EQ(Totals(a_), "2 writes");
  a_.engine->Turn();
  EXPECT_TRUE(a_.store->Deliver()) << "it renews the lease";
  Settle(a_);
  EXPECT_EQ(Reason(reply.Wait()), "SESSION_MOVED");
  EXPECT_EQ(Totals(a_), "2 writes, 1 lost");
  EXPECT_EQ(Saves(a_).total(), 1) << "it has nothing to save but the new session";
  EXPECT_EQ(Totals(b_), "2 writes, 1 takeovers");
}

TEST_F(ReplicaTotalsTest, AClosedSessionIsNotLost) {
  EXPECT_EQ(Open(a_), "OK");
  BeginAppend(a_);
  Turn(a_);
  EXPECT_TRUE(a_.store->Deliver()) << "the claim";
  Turn(a_);
  ASSERT_TRUE(CloseSession(b_.engine.get(), session_, [](const absl::Status&) {}).ok());
  Settle(b_);
  Settle(a_);
  EXPECT_EQ(ended_, "SESSION_NOT_FOUND");
  EXPECT_EQ(Totals(a_), "2 writes");
  EXPECT_EQ(Totals(b_), "") << "a tombstone is not a session";
}

TEST_F(ReplicaTotalsTest, EachErrorOfTheStoreIsCountedByItsCode) {
  EXPECT_EQ(Open(a_), "OK");
  std::string looked;
  ASSERT_TRUE(
      GetSession(a_.engine.get(), session_, absl::InfiniteFuture(),
                 [&](const absl::StatusOr<SessionInfo>& info) { looked = Reason(info.status()); })
          .ok());
  Settle(a_, StoreFate::kAnswerLost);
  EXPECT_EQ(looked, "SESSION_STORE");
  EXPECT_EQ(Totals(a_), "1 writes, 1 unavailable");
  server_.SetMostRecords(1);
  EXPECT_EQ(Open(a_), "SESSION_STORE");
  EXPECT_EQ(Totals(a_), "1 writes, 1 unavailable, 1 full");
}

TEST_F(ReplicaTotalsTest, LostTokensAreWrittenAgain) {
  EXPECT_EQ(Open(a_), "OK");
  EXPECT_EQ(Append(a_), "OK");
  MemoryStoreImage image = server_.Image();
  EXPECT_EQ(Append(a_), "OK");
  EXPECT_EQ(Totals(a_), "5 writes");
  server_.Restore(image);  // a failover
  EXPECT_EQ(Append(a_), "OK");
  EXPECT_EQ(Totals(a_), "7 writes, 1 rewritten");
  server_.Empty();
  session_.hash = HashTokens(kEmptySequenceHash, std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1, 2, 3});
  EXPECT_EQ(Append(a_), "OK") << "this replica has what the client says";
  session_.hash.reset();
  EXPECT_EQ(Totals(a_), "9 writes, 2 rewritten");
  image = server_.Image();
  image.chunks.clear();
  server_.Restore(image);
  EXPECT_EQ(Append(a_), "OK");
  EXPECT_EQ(Totals(a_), "11 writes, 3 rewritten, 1 damaged");
}

TEST_F(ReplicaTotalsTest, AnEndThatTheStoreDoesNotConfirmInTimeIsNotDurable) {
  EXPECT_EQ(Open(a_), "OK");
  BeginAppend(a_);
  Turn(a_);
  EXPECT_TRUE(a_.store->Deliver()) << "the claim";
  Turn(a_);
  now_ += absl::Milliseconds(199);
  Turn(a_);
  EXPECT_EQ(ended_, std::nullopt);
  EXPECT_EQ(Totals(a_), "2 writes");
  now_ += absl::Milliseconds(1);
  Turn(a_);
  EXPECT_EQ(ended_, "OK");
  EXPECT_EQ(Totals(a_), "2 writes, 1 not durable");
  Settle(a_);
  EXPECT_EQ(Totals(a_), "3 writes, 1 not durable") << "it arrives after all";
  EXPECT_EQ(Saves(a_).total(), 2);
  EXPECT_DOUBLE_EQ(Saves(a_).sum, 0.2);
}

TEST_F(ReplicaTotalsTest, WhatIsRefusedIsNotCalledNotDurable) {
  EXPECT_EQ(Open(a_, StoreFate::kRequestLost), "SESSION_STORE");
  EXPECT_EQ(Totals(a_), "1 unavailable");
}

TEST_F(ReplicaTotalsTest, AWriteWhoseAnswerWasLostIsNeitherConfirmedNorLost) {
  EXPECT_EQ(Open(a_), "OK");
  BeginAppend(a_);
  Turn(a_);
  EXPECT_TRUE(a_.store->Deliver()) << "the claim";
  Turn(a_);
  Settle(a_, StoreFate::kAnswerLost);
  EXPECT_EQ(ended_, "OK");
  EXPECT_EQ(Totals(a_), "2 writes, 1 not durable, 1 unavailable");
  now_ += absl::Milliseconds(500);
  Settle(a_);
  EXPECT_EQ(Totals(a_), "3 writes, 1 not durable, 1 unavailable");
}

// A replica without requests takes no turn until something happens.
TEST_F(ReplicaTotalsTest, TheLoadHasACountAfterTheTurnThatCounts) {
  EXPECT_EQ(Open(a_), "OK");
  BeginAppend(a_);
  Turn(a_);
  EXPECT_TRUE(a_.store->Deliver()) << "the claim";
  Turn(a_);
  Settle(a_, StoreFate::kRequestLost);
  EXPECT_EQ(Totals(a_), "2 writes, 1 not durable, 1 unavailable");
  now_ += absl::Milliseconds(500);
  Turn(a_);
  EXPECT_TRUE(a_.store->Deliver(StoreFate::kRequestLost)) << "the write is tried again";
  EXPECT_FALSE(a_.engine->Turn());
  EXPECT_EQ(Totals(a_), "2 writes, 1 not durable, 2 unavailable");
}

}  // namespace
}  // namespace rivulet
