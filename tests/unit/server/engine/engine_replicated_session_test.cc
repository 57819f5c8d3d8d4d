// SPDX-License-Identifier: Apache-2.0
// Two engines that share a store of sessions, step by step: what their clients are told. The
// simulation of replicas (tests/simulation/replicas.h) has the schedules and the tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "model/base/error.h"
#include "server/engine/engine_parts.h"
#include "server/engine/replicas/replicated_records.h"
#include "server/engine/replicas/replicated_sessions.h"
#include "server/engine/session_calls.h"
#include "server/sessions/replicated/session_record.h"
#include "server/sessions/sealed/encrypted_session_store.h"
#include "tests/support/fake_backend.h"
#include "tests/support/memory_session_store.h"
#include "tests/support/memory_state_archive.h"
#include "tests/support/reply_collector.h"

namespace rivulet {
namespace {

TEST(CopyLifeTest, AllowsTheseStepsAndNoOthers) {
  using State = CopyLife::State;
  constexpr int kStates = static_cast<int>(State::kClaimed) + 1;
  std::set<std::pair<State, State>> allowed = {
      {State::kUnread, State::kNew},  {State::kUnread, State::kTakenOver},
      {State::kNew, State::kOwn},     {State::kTakenOver, State::kOwn},
      {State::kOwn, State::kClaimed}, {State::kClaimed, State::kOwn},
  };
  for (int from = 0; from < kStates; ++from) {
    allowed.emplace(static_cast<State>(from), State::kUnread);
    for (int to = 0; to < kStates; ++to) {
      const auto step = std::make_pair(static_cast<State>(from), static_cast<State>(to));
      EXPECT_EQ(CopyLife::Allowed(step.first, step.second), allowed.contains(step))
          << from << " to " << to;
    }
  }
}

class ReplicatedSessionTest : public ::testing::Test {
 protected:
  explicit ReplicatedSessionTest(bool encrypts = false) : encrypts_(encrypts) {}

  struct Replica {
    std::shared_ptr<MemorySessionStore> store;
    std::unique_ptr<SteppedEngine> engine;
    std::shared_ptr<Sealer> sealer = std::make_shared<Sealer>(KeysOf({"old"}));
    bool reaches_store = true;
  };

  static SealKeys KeysOf(const std::vector<std::string>& ids) {
    SealKeys keys{{}, std::string(32, 's')};
    for (const std::string& id : ids) keys.keys.push_back({id, std::string(32, id[0])});
    return keys;
  }

  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      Replica& replica = replicas_.emplace_back();
      replica.store = std::make_shared<MemorySessionStore>(&server_);
      EngineOptions options = options_;
      options.session_store = encrypts_ ? MakeEncryptedSessionStore(replica.store, replica.sealer)
                                        : std::shared_ptr<SessionStore>(replica.store);
      FakeBackendOptions backend;
      backend.limits.numerics_id = numerics_[static_cast<size_t>(i)];
      backend.limits.state = state_;
      backend.limits.context = contexts_[static_cast<size_t>(i)];
      if (state_.per_block > 0) backend.limits.bytes_per_slot = state_.At(100);
      replica.engine = CreateSteppedEngine(
          config_, nullptr,
          std::make_unique<FakeBackend>(config_, backend, std::make_shared<FakeProbe>()), options,
          Clock([this] { return now_ + replicas_are_ahead_; },
                [this] { return now_ - absl::UnixEpoch(); }));
    }
  }

  // Lets both run until `done`; each round takes 10 ms.
  template <typename Done>
  void Until(const Done& done) {
    for (int round = 0; round < 10000 && !done(); ++round) {
      for (Replica& replica : replicas_) {
        while (replica.store->Deliver(replica.reaches_store ? StoreFate::kAnswered
                                                            : StoreFate::kRequestLost)) {
        }
        replica.engine->Turn();
        replica.engine->Emit();
      }
      now_ += absl::Milliseconds(10);
    }
    ASSERT_TRUE(done());
  }
  template <typename Result, typename Call>
  absl::StatusOr<Result> Await(const Call& call) {
    std::optional<absl::StatusOr<Result>> result;
    const auto id = call([&result](absl::StatusOr<Result> got) { result = std::move(got); });
    if (!id.ok()) return id.status();
    Until([&] { return result.has_value(); });
    return *std::move(result);
  }

  Engine* engine(int replica) { return replicas_[static_cast<size_t>(replica)].engine.get(); }
  absl::StatusOr<SessionInfo> Open(int replica, const std::string& tenant = "t",
                                   absl::Duration idle_timeout = absl::Minutes(10)) {
    return Await<SessionInfo>([&](SessionDone done) {
      return OpenSession(engine(replica), {tenant, 7, idle_timeout}, std::move(done));
    });
  }
  absl::StatusOr<SessionInfo> Get(int replica, const SessionId& id,
                                  const std::string& tenant = "t") {
    return Await<SessionInfo>([&](SessionDone done) {
      return GetSession(engine(replica), {id, tenant, std::nullopt, ""}, absl::InfiniteFuture(),
                        std::move(done));
    });
  }
  absl::Status Close(int replica, const SessionId& id) {
    return Await<int>([&](auto done) {
             return CloseSession(engine(replica), {id, "t", std::nullopt, ""},
                                 [done](const absl::Status& status) {
                                   done(status.ok() ? absl::StatusOr<int>(0) : status);
                                 });
           })
        .status();
  }
  // The session after a reply of `tokens` tokens.
  absl::StatusOr<SessionProgress> Generate(int replica, const SessionId& id, int64_t tokens,
                                           std::vector<int32_t> prompt,
                                           std::optional<uint64_t> hash = std::nullopt,
                                           std::optional<int64_t> position = std::nullopt) {
    GenerateSpec spec;
    spec.tenant = "t";
    spec.session = SessionRef{id, "t", position, ""};
    spec.session->hash = hash;
    spec.session_seed = true;
    spec.prompt = std::move(prompt);
    spec.max_tokens = tokens;
    ReplyCollector& collector = collectors_.emplace_back();
    const absl::Status started = collector.Start(engine(replica), spec);
    if (!started.ok()) return started;
    Until([&] { return collector.reply().end().has_value(); });
    durability_ = collector.reply().end()->durability;
    const absl::Status status = collector.Wait();
    if (!status.ok()) return status;
    return *collector.sample().session;
  }
  // A reply that goes on, and has begun.
  ReplyCollector& Start(int replica, const SessionId& id, int64_t tokens = 100'000) {
    GenerateSpec spec;
    spec.tenant = "t";
    spec.session = SessionRef{id, "t", std::nullopt, ""};
    spec.max_tokens = tokens;
    ReplyCollector& collector = collectors_.emplace_back();
    EXPECT_TRUE(collector.Start(engine(replica), spec).ok());
    Until([&] { return collector.calls() > 0; });
    return collector;
  }
  static std::string Reason(const absl::Status& status) { return GetErrorDetail(status).reason; }

  const bool encrypts_;
  const ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  absl::Time now_ = absl::FromUnixSeconds(1000);
  EngineOptions options_;
  std::vector<std::string> numerics_ = {"fake", "fake"};  // of each replica
  StateSize state_;                                       // of every replica
  std::vector<int64_t> contexts_ = {0, 0};                // of each replica
  absl::Duration store_is_ahead_;                         // its clock
  absl::Duration replicas_are_ahead_;                     // their wall clock
  MemoryStoreServer server_{[this] { return now_ + store_is_ahead_; }};
  std::deque<ReplyCollector> collectors_;  // outlive the engines
  std::deque<Replica> replicas_;
  std::optional<Durability> durability_;
};

TEST_F(ReplicatedSessionTest, AnotherReplicaShowsListsAndClosesASession) {
  const SessionId id = Open(0)->id;
  const auto progress = Generate(0, id, 5, {1, 2});
  ASSERT_TRUE(progress.ok()) << progress.status();
  const auto info = Get(1, id);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->position, progress->position);
  EXPECT_EQ(info->hash, progress->hash);
  EXPECT_EQ(info->seed, 7u);
  EXPECT_FALSE(info->busy);
  EXPECT_EQ(Reason(Get(1, id, "other").status()), "SESSION_NOT_FOUND");
  now_ += absl::Seconds(1);
  const SessionId second = Open(0)->id;
  std::vector<SessionId> listed;
  for (uint64_t after = 0;;) {
    const auto page = Await<SessionPage>([&](auto done) {
      return ListSessions(engine(1), {"t", 1, after}, std::move(done));
    });
    ASSERT_TRUE(page.ok()) << page.status();
    for (const SessionInfo& each : page->sessions) listed.push_back(each.id);
    if ((after = page->next) == 0) break;
  }
  EXPECT_THAT(listed, ::testing::ElementsAre(id, second));
  const absl::Status closed = Close(1, id);
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_EQ(Reason(Generate(0, id, 5, {}).status()), "SESSION_NOT_FOUND");
  EXPECT_EQ(Reason(Get(0, id).status()), "SESSION_NOT_FOUND");
}

TEST_F(ReplicatedSessionTest, AClosedSessionLeavesNoTokensUnlessAForkMayUseThem) {
  const SessionId lone = Open(0)->id;
  for (int turn = 0; turn < 4; ++turn) ASSERT_TRUE(Generate(0, lone, 5, {1, 2}).ok());
  EXPECT_EQ(server_.chunks(), 1u) << "those that a larger one replaced are gone";
  EXPECT_TRUE(Close(1, lone).ok());
  EXPECT_EQ(server_.chunks(), 0u);

  const SessionId parent = Open(0)->id;
  const auto progress = Generate(0, parent, 5, {1, 2});
  ASSERT_TRUE(progress.ok());
  ForkSpec spec;
  spec.session = SessionRef{parent, "t", std::nullopt, ""};
  const auto forks = Await<std::vector<SessionInfo>>(
      [&](SessionsDone done) { return ForkSession(engine(0), spec, std::move(done)); });
  ASSERT_TRUE(forks.ok()) << forks.status();
  ASSERT_TRUE(Generate(1, parent, 1, {3}).ok()) << "another replica, which knows it by the record";
  EXPECT_TRUE(Close(1, parent).ok());
  EXPECT_TRUE(Generate(1, forks->at(0).id, 5, {}, progress->hash).ok());

  const SessionId old = Open(0)->id;
  ASSERT_TRUE(Generate(0, old, 5, {1, 2}).ok());
  const StoreRecord stored = server_.Read(old.ToString())->found;
  SessionRecord record = *DecodeRecord(stored.bytes);
  record.owns_chunks = false;  // a replica of the version before wrote it
  StoreWrite write;
  write.session = old.ToString();
  write.expected = stored.claim;
  write.record = {"another claim 16", EncodeRecord(record)};
  write.expiry = absl::Minutes(1);
  ASSERT_TRUE(server_.Write(write).ok());
  ASSERT_TRUE(Generate(1, old, 5, {}).ok());
  const size_t before = server_.chunks();
  EXPECT_TRUE(Close(1, old).ok());
  EXPECT_EQ(server_.chunks(), before);
}

TEST_F(ReplicatedSessionTest, AListReadsAFewRecordsAtATime) {
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(Open(0).ok());
  std::optional<absl::StatusOr<SessionPage>> page;
  size_t most = 0;
  ASSERT_TRUE(ListSessions(engine(1), {"t"}, [&](absl::StatusOr<SessionPage> got) {
                page = std::move(got);
              }).ok());
  Until([&] {
    most = std::max(most, replicas_[1].store->pending());
    return page.has_value();
  });
  ASSERT_TRUE(page->ok()) << page->status();
  EXPECT_EQ((*page)->sessions.size(), 300u);
  EXPECT_EQ(most, 256u);
}

TEST_F(ReplicatedSessionTest, AListLeavesOutARecordThatTheStoreCannotRead) {
  const SessionId id = Open(0)->id, damaged = Open(0)->id;
  server_.Damage(damaged.ToString());
  const auto page = Await<SessionPage>(
      [&](auto done) { return ListSessions(engine(1), {"t"}, std::move(done)); });
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->sessions.size(), 1u);
  EXPECT_EQ(page->sessions[0].id, id);
  EXPECT_EQ(Reason(Get(1, damaged).status()), "SESSION_RECORD_DAMAGED");
}

TEST_F(ReplicatedSessionTest, ACloseElsewhereEndsTheRequestThatRuns) {
  const SessionId id = Open(0)->id;
  std::optional<absl::Status> closed;
  const ReplyCollector& collector = Start(0, id);
  ASSERT_TRUE(CloseSession(engine(1), {id, "t", std::nullopt, ""}, [&](const absl::Status& status) {
                closed = status;
              }).ok());
  Until([&] { return closed && collector.reply().end(); });
  EXPECT_TRUE(closed->ok()) << *closed;
  EXPECT_EQ(Reason(collector.reply().end()->status), "SESSION_NOT_FOUND");
}

TEST_F(ReplicatedSessionTest, ABranchThatAFailoverMadeIsNotOverwritten) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  const MemoryStoreImage image = server_.Image();
  ASSERT_TRUE(Generate(0, id, 5, {3}).ok());
  const auto lost = Generate(0, id, 5, {4});
  ASSERT_TRUE(lost.ok() && durability_->complete);
  server_.Restore(image);  // both writes are gone, and nobody knows
  const auto branch = Generate(1, id, 5, {9});
  ASSERT_TRUE(branch.ok()) << branch.status();
  EXPECT_EQ(Reason(Generate(0, id, 5, {}, lost->hash).status()), "SESSION_HASH_MISMATCH");
  EXPECT_TRUE(Generate(0, id, 5, {}, branch->hash).ok());
}

TEST_F(ReplicatedSessionTest, ALeaseEndsThoughTheClockOfTheStoreGoesBack) {
  store_is_ahead_ = absl::Hours(1);
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  Start(0, id);
  replicas_[0].reaches_store = false;  // it has the session, and is as good as dead
  store_is_ahead_ = absl::ZeroDuration();
  const absl::Time before = now_;
  const auto taken = Generate(1, id, 5, {3});
  EXPECT_TRUE(taken.ok()) << taken.status();
  EXPECT_GT(now_ - before, absl::Milliseconds(1400));
  EXPECT_LT(now_ - before, absl::Seconds(2));
}

TEST_F(ReplicatedSessionTest, ALeaseIsRenewedThoughTheClockOfAReplicaGoesBack) {
  const SessionId id = Open(0)->id;
  Start(0, id);
  replicas_are_ahead_ = -absl::Hours(1);
  const absl::Time end = now_ + absl::Seconds(3);
  Until([&] { return now_ >= end; });
  EXPECT_GT(server_.Read(id.ToString())->found.lease, absl::ZeroDuration());
}

TEST_F(ReplicatedSessionTest, ALeaseThatHasEndedVouchesForNothingThoughTheClockOfAReplicaGoesBack) {
  const SessionId id = Open(0)->id;
  const ReplyCollector& stale = Start(0, id, 100);
  replicas_[0].reaches_store = false;
  Until([&] { return stale.reply().end().has_value(); });
  ASSERT_TRUE(Generate(1, id, 5, {3}).ok());
  server_.Empty();
  replicas_are_ahead_ = -absl::Seconds(1);
  replicas_[0].reaches_store = true;
  EXPECT_EQ(Reason(Generate(0, id, 5, {}).status()), "SESSION_NOT_FOUND");
}

TEST_F(ReplicatedSessionTest, WhatAFailoverLostIsWrittenAgain) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  const MemoryStoreImage image = server_.Image();
  const auto lost = Generate(0, id, 5, {3});
  ASSERT_TRUE(lost.ok());
  server_.Restore(image);
  const auto next = Generate(0, id, 5, {4}, lost->hash);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(Generate(1, id, 5, {}, next->hash).ok());
}

TEST_F(ReplicatedSessionTest, IntoAnEmptiedStoreGoesOnlyWhatTheClientOrTheLeaseVouchesFor) {
  const SessionId closed = Open(0)->id;
  ASSERT_TRUE(Generate(0, closed, 5, {1, 2}).ok());
  ASSERT_TRUE(Close(1, closed).ok());
  const SessionId id = Open(0)->id;
  const auto stale = Generate(0, id, 5, {1, 2});
  const auto newest = Generate(1, id, 5, {3});
  ASSERT_TRUE(stale.ok() && newest.ok());
  server_.Empty();
  EXPECT_EQ(Reason(Generate(0, closed, 5, {}).status()), "SESSION_NOT_FOUND");
  EXPECT_EQ(Reason(Generate(0, id, 5, {}).status()), "SESSION_NOT_FOUND") << "a stale copy";
  EXPECT_EQ(Reason(Generate(0, id, 5, {}, newest->hash).status()), "SESSION_NOT_FOUND");
  EXPECT_EQ(Reason(Generate(1, id, 5, {}, stale->hash, stale->position).status()),
            "SESSION_NOT_FOUND")
      << "a client that knows less";
  EXPECT_EQ(Reason(Generate(1, id, 5, {}).status()), "SESSION_NOT_FOUND") << "it cannot know";
  GenerateSpec resumed;  // of a reply that began later than the stale copy ends
  resumed.tenant = "t";
  resumed.session = SessionRef{id, "t", std::nullopt, ""};
  resumed.session_seed = true;
  resumed.resume.emplace();
  resumed.resume->fingerprint = 1;
  resumed.resume->tokens = {{3}};
  ReplyCollector& refused = collectors_.emplace_back();
  ASSERT_TRUE(refused.Start(engine(0), resumed).ok());
  Until([&] { return refused.reply().end().has_value(); });
  EXPECT_EQ(Reason(refused.reply().end()->status), "SESSION_NOT_FOUND");
  const auto next = Generate(1, id, 5, {}, newest->hash);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->position, newest->position + 5);

  // Says nothing, and runs while the store is emptied.
  const ReplyCollector& collector = Start(1, id, 3000);
  server_.Empty();
  Until([&] { return collector.reply().end().has_value(); });
  EXPECT_TRUE(collector.reply().end()->status.ok()) << collector.reply().end()->status;
  EXPECT_TRUE(collector.reply().end()->durability->complete);
}

TEST_F(ReplicatedSessionTest, IntoAnEmptiedStoreGoesASessionWhoseAppendIsRepeated) {
  const SessionId id = Open(0)->id;
  const auto before = Generate(0, id, 5, {1, 2});
  ASSERT_TRUE(before.ok()) << before.status();
  AppendSpec spec;
  spec.session = SessionRef{id, "t", before->position, ""};
  spec.session.hash = before->hash;
  const auto append = [&](std::vector<int32_t> tokens) {
    spec.tokens = std::move(tokens);
    return Reason(Await<ScoreResult>([&](auto done) {
                    return engine(0)->Append(spec, std::move(done));
                  }).status());
  };
  EXPECT_EQ(append({1, 2, 3}), "");
  server_.Empty();
  EXPECT_EQ(append({1, 2, 3}), "") << "its answer was lost";
  server_.Empty();
  EXPECT_EQ(append({1, 2, 3, 4}), "SESSION_NOT_FOUND");
}

TEST_F(ReplicatedSessionTest, WithoutTheStoreACopyRunsThatIsWhatItsClientSays) {
  const SessionId id = Open(0)->id;
  const auto before = Generate(0, id, 5, {1, 2});
  ASSERT_TRUE(before.ok());
  replicas_[0].reaches_store = false;
  EXPECT_EQ(Reason(Generate(0, id, 5, {}).status()), "SESSION_STORE") << "it says nothing";
  EXPECT_EQ(Reason(Generate(0, id, 5, {}, before->hash + 1).status()), "SESSION_STORE");
  const auto alone = Generate(0, id, 5, {}, before->hash);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_FALSE(durability_->complete);
  EXPECT_EQ(durability_->position, before->position);
  EXPECT_EQ(Reason(Open(0).status()), "SESSION_STORE");
  EXPECT_EQ(Reason(Get(0, id).status()), "SESSION_STORE");
  const auto rewound = Await<SessionInfo>([&](SessionDone done) {
    return RewindSession(engine(0), {id, "t", 1, ""}, absl::InfiniteFuture(), std::move(done));
  });
  EXPECT_EQ(Reason(rewound.status()), "SESSION_STORE");
  // What another replica may have made of the session: this one cannot know.
  ForkSpec fork;
  fork.session = SessionRef{id, "t", 0, ""};
  fork.session.hash = kEmptySequenceHash;
  const auto forked = Await<std::vector<SessionInfo>>(
      [&](SessionsDone done) { return ForkSession(engine(0), fork, std::move(done)); });
  EXPECT_EQ(Reason(forked.status()), "SESSION_STORE");
  replicas_[0].reaches_store = true;
  // Nobody asks for it: what was not durable is written as soon as the store is back.
  Until([&] { return Get(1, id)->position == alone->position; });
  EXPECT_TRUE(Generate(1, id, 5, {}, alone->hash).ok());
}

TEST_F(ReplicatedSessionTest, ATakeoverThatAFullStoreRefusedDoesNotHappenLater) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  server_.SetMostRecords(0);
  const auto held = Generate(0, id, 5, {3}, Get(0, id)->hash);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(durability_->complete);
  EXPECT_EQ(Reason(Generate(1, id, 5, {}, held->hash).status()), "SESSION_STORE");
  // Refused as well, so that this replica writes again later than the other one would.
  EXPECT_EQ(Reason(Generate(0, id, 5, {}).status()), "SESSION_STORE");
  server_.SetMostRecords(SIZE_MAX);
  Until([&] { return Get(1, id)->position == held->position; });
  EXPECT_TRUE(Generate(0, id, 5, {}, held->hash).ok());
}

// What somebody else left in the store is checked before it is used.
TEST_F(ReplicatedSessionTest, AReplyThatGoesBackIsDurableUpToWhereItBeganAtMost) {
  const SessionId id = Open(0)->id;
  const auto before = Generate(0, id, 5, {1, 2});
  ASSERT_TRUE(before.ok());
  replicas_[0].reaches_store = false;
  GenerateSpec spec;
  spec.tenant = "t";
  spec.session = SessionRef{id, "t", 2, ""};
  spec.session->hash = before->hash;
  spec.session_seed = true;
  spec.max_tokens = 3;
  ReplyCollector& collector = collectors_.emplace_back();
  ASSERT_TRUE(collector.Start(engine(0), spec).ok());
  Until([&] { return collector.reply().end().has_value(); });
  ASSERT_TRUE(collector.reply().end()->durability.has_value());
  EXPECT_FALSE(collector.reply().end()->durability->complete);
  EXPECT_EQ(collector.reply().end()->durability->position, 2);
}

TEST_F(ReplicatedSessionTest, ARecordThatCannotBeRightIsRefused) {
  const auto reason_after = [&](const auto& change) {
    const SessionId id = Open(0)->id;
    EXPECT_TRUE(Generate(0, id, 5, {1, 2}).ok());
    const StoreRecord stored = server_.Read(id.ToString())->found;
    SessionRecord record = *DecodeRecord(stored.bytes);
    StoreWrite write;
    write.session = id.ToString();
    write.expected = stored.claim;
    write.record.claim = "another claim 16";
    change(&record, &write);
    write.record.bytes = EncodeRecord(record);
    write.expiry = absl::Minutes(1);
    EXPECT_TRUE(server_.Write(write).ok());
    return Reason(Generate(1, id, 5, {}).status());
  };
  EXPECT_EQ(reason_after([](SessionRecord*, StoreWrite*) {}), "");
  EXPECT_EQ(reason_after([](SessionRecord* record, StoreWrite*) { ++record->sequence_hash; }),
            "SESSION_RECORD_DAMAGED");
  EXPECT_EQ(reason_after([](SessionRecord* record, StoreWrite*) { record->weights_sha256 = "ff"; }),
            "SESSION_MODEL");
  EXPECT_EQ(reason_after([](SessionRecord* record, StoreWrite*) { record->model_name = "other"; }),
            "SESSION_NOT_FOUND");
  EXPECT_EQ(reason_after([](SessionRecord* record, StoreWrite*) { record->tenant = "u"; }),
            "SESSION_NOT_FOUND");
  EXPECT_EQ(reason_after([](SessionRecord* record, StoreWrite* write) {
              TokenHistory history;
              history.Append(50, false);  // the model has 0 to 49
              record->position = 1;
              record->sequence_hash = history.hash();
              record->chunks = {{"c", 1}};
              write->chunks = {{"c", EncodeTokens(history, 0, 1, record->tenant)}};
            }),
            "SESSION_RECORD_DAMAGED");
}

class ReplicatedLimitTest : public ReplicatedSessionTest {
 protected:
  ReplicatedLimitTest() {
    options_.sessions.max_open_sessions = 5;
    options_.sessions.max_tenant_sessions = 3;
  }
};

TEST_F(ReplicatedLimitTest, LimitsCountTheSessionsOfAllReplicas) {
  const SessionId id = Open(0, "t")->id;
  ASSERT_TRUE(Open(1, "t").ok());
  const auto fork = [&](int count) {
    ForkSpec spec;
    spec.session = SessionRef{id, "t", std::nullopt, ""};
    spec.count = count;
    return Await<std::vector<SessionInfo>>(
        [&](SessionsDone done) { return ForkSession(engine(1), spec, std::move(done)); });
  };
  EXPECT_EQ(Reason(fork(2).status()), "TENANT_SESSION_LIMIT");
  EXPECT_TRUE(fork(1).ok()) << "the forks that there was room for were closed again";
  EXPECT_EQ(Reason(Open(0, "t").status()), "TENANT_SESSION_LIMIT");
  ASSERT_TRUE(Open(0, "u").ok());
  ASSERT_TRUE(Open(1, "u").ok());
  EXPECT_EQ(Reason(Open(1, "u").status()), "SESSION_LIMIT");
  now_ += absl::Minutes(11);
  EXPECT_TRUE(Open(1, "u").ok()) << "all have expired";
}

TEST_F(ReplicatedLimitTest, ANewSessionThatExpiresFirstIsNotTheOneThatMakesRoom) {
  const SessionId id = Open(0, "t")->id;
  for (const char* tenant : {"t", "t", "u", "u"}) ASSERT_TRUE(Open(0, tenant).ok());
  ASSERT_TRUE(Close(1, id).ok()) << "replica 0 holds five sessions all the same";
  const auto brief = Open(0, "u", absl::Seconds(2));
  ASSERT_TRUE(brief.ok()) << brief.status();
  EXPECT_TRUE(Get(0, brief->id, "u").ok());
}

class TenantBytesTest : public ReplicatedSessionTest {
 protected:
  TenantBytesTest() { options_.sessions.max_tenant_bytes = 4000; }
};

TEST_F(TenantBytesTest, ATenantThatHasTooMuchOpensAndExtendsNothingAndMayClose) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 1000, {1, 2}).ok()) << "what has begun may be written";
  EXPECT_TRUE(durability_->complete);
  const absl::Status refused = Open(1).status();
  EXPECT_EQ(Reason(refused), "TENANT_STORE_LIMIT");
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("session-store-tenant-mib allows 4000"));
  EXPECT_EQ(Reason(Generate(1, id, 5, {}).status()), "TENANT_STORE_LIMIT");
  EXPECT_TRUE(Open(1, "u").ok()) << "another tenant";
  const auto rewound = Await<SessionInfo>([&](SessionDone done) {
    return RewindSession(engine(1), {id, "t", 10, ""}, absl::InfiniteFuture(), std::move(done));
  });
  EXPECT_TRUE(rewound.ok()) << rewound.status();
  EXPECT_TRUE(Close(1, id).ok());
  EXPECT_TRUE(Open(1).ok());
}

TEST_F(TenantBytesTest, ATakeoverThatTheLimitRefusedTakesNothingFromTheHolder) {
  const SessionId id = Open(0)->id;
  const auto durable = Generate(0, id, 1000, {1, 2});
  ASSERT_TRUE(durable.ok()) << durable.status();
  replicas_[0].reaches_store = false;
  const auto held = Generate(0, id, 5, {3}, durable->hash);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(Reason(Generate(1, id, 5, {}).status()), "TENANT_STORE_LIMIT");
  const absl::Time later = now_ + absl::Seconds(1);
  Until([&] { return now_ >= later; });
  replicas_[0].reaches_store = true;
  Until([&] { return Get(1, id)->position == held->position; });
}

class PublishedStateTest : public ReplicatedSessionTest {
 protected:
  PublishedStateTest() {
    options_.state_archive = archive_;
    options_.publish.after_tokens = 4;
  }
  ReplicaTotals Totals(int replica) { return engine(replica)->GetLoad().replication; }
  // Tokens that a replica fed for a request on the session.
  int64_t FedFor(int replica, const SessionId& id, std::vector<int32_t> prompt) {
    const int64_t before = engine(replica)->GetLoad().fed_total;
    const auto progress = Generate(replica, id, 3, std::move(prompt));
    EXPECT_TRUE(progress.ok()) << progress.status();
    hash_ = progress.ok() ? progress->hash : 0;
    return engine(replica)->GetLoad().fed_total - before;
  }
  // The hash of a session that stayed on one replica.
  uint64_t LoneHash() {
    const SessionId id = Open(0)->id;
    EXPECT_TRUE(Generate(0, id, 5, {1, 2}).ok());
    return Generate(0, id, 3, {3})->hash;
  }
  std::shared_ptr<MemoryStateArchive> archive_ = std::make_shared<MemoryStateArchive>();
  uint64_t hash_ = 0;
};

TEST_F(PublishedStateTest, AReplicaThatTakesASessionOverContinuesFromItsState) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  ASSERT_EQ(archive_->states.size(), 1u);
  Until([&] { return Totals(0).writes >= 4; });  // open, claim, end, and that names the state
  EXPECT_EQ(FedFor(1, id, {3}), 2) << "the last generated token and the prompt";
  EXPECT_EQ(Totals(1).states_read, 1);
  EXPECT_EQ(hash_, LoneHash());
}

// A state that grows by one float a token, with blocks of two tokens and segments of four.
class PublishedSegmentTest : public PublishedStateTest {
 protected:
  PublishedSegmentTest() {
    state_ = {.fixed = kFakeStateBytes, .per_block = 8, .block_tokens = 2, .segment_tokens = 4};
  }
};

TEST_F(PublishedSegmentTest, EachSegmentIsPublishedOnceAndReadByAnotherReplica) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());  // bos, two and four: seven were fed
  EXPECT_EQ(archive_->states.size(), 2u) << "a segment, and what else the state holds";
  Until([&] { return Totals(0).writes >= 4; });
  EXPECT_EQ(FedFor(1, id, {3}), 2) << "the last generated token and the prompt";
  EXPECT_EQ(Totals(1).states_read, 1);
  EXPECT_EQ(hash_, LoneHash());
  ASSERT_TRUE(Generate(0, id, 9, {4}).ok());
  int64_t held = 0;
  for (const auto& [name, bytes] : archive_->states) held += std::ssize(bytes);
  EXPECT_GE(archive_->states.size(), 5u) << "of two published states or more";
  EXPECT_EQ(Totals(0).states_published_bytes + Totals(1).states_published_bytes, held);
}

TEST_F(PublishedSegmentTest, ASegmentIsSharedBySessionsThatAreTheSameUpToItsEnd) {
  const auto publish = [&](const std::vector<int32_t>& prompt) {
    EXPECT_TRUE(Generate(0, Open(0)->id, 1, prompt).ok());
    return archive_->states.size();
  };
  EXPECT_EQ(publish({1, 2, 3, 4, 5, 6, 7, 8}), 3u) << "two segments, and what else the state holds";
  EXPECT_EQ(publish({9, 2, 3, 4, 5, 6, 7, 8}), 6u);
  EXPECT_EQ(publish({1, 2, 3, 4, 5, 6, 7, 9}), 7u);
}

TEST_F(PublishedSegmentTest, TheLastPartsOfAStateExpireFirst) {
  const auto publish = [&](const std::vector<int32_t>& prompt) {
    archive_->puts.clear();
    EXPECT_TRUE(Generate(0, Open(0)->id, 1, prompt).ok());
    return archive_->puts;
  };
  const auto puts = publish({1, 2, 3, 4, 5, 6, 7, 8}), others = publish({1, 2, 3, 9, 5, 6, 7, 8});
  ASSERT_EQ(puts.size(), 3u);
  ASSERT_EQ(others.size(), 3u);
  EXPECT_EQ(puts[2].first, others[2].first) << "the first segment, which is the same";
  EXPECT_LT(puts[0].second, puts[1].second);
  EXPECT_LT(puts[1].second, puts[2].second);
}

TEST_F(PublishedSegmentTest, AStateWhoseSegmentIsGoneIsComputedAgain) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  Until([&] { return Totals(0).writes >= 4; });
  const auto segment = std::min_element(
      archive_->states.begin(), archive_->states.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  archive_->states.erase(segment);
  EXPECT_EQ(FedFor(1, id, {3}), 9);
  EXPECT_EQ(Totals(1).states_missing, 1);
  EXPECT_EQ(hash_, LoneHash());
}

TEST_F(PublishedStateTest, AStateThatIsGoneOrDamagedIsComputedAgain) {
  const auto damage = [&](const std::function<void(std::string*)>& how) {
    const SessionId id = Open(0)->id;
    const int64_t writes = Totals(0).writes, missing = Totals(1).states_missing;
    ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
    Until([&] { return Totals(0).writes >= writes + 3; });
    ASSERT_EQ(archive_->states.size(), 1u);
    how(&archive_->states.begin()->second);
    EXPECT_EQ(FedFor(1, id, {3}), 9) << "bos, all seven tokens and the prompt";
    EXPECT_EQ(Totals(1).states_missing, missing + 1);
    archive_->states.clear();
    EXPECT_EQ(hash_, LoneHash());
    archive_->states.clear();
  };
  damage([](std::string* bytes) { bytes->clear(); });
  damage([](std::string* bytes) { bytes->back() ^= 1; });
  damage([](std::string* bytes) { (*bytes)[30] ^= 1; });
  damage([](std::string* bytes) { bytes->pop_back(); });
  damage([&](std::string* bytes) {  // a checksum says nothing about who wrote it
    const StateStamp stamp =
        ArchivedStateStamp({"", "", "fake", ""}, "t", "", std::vector<int32_t>{1, 2, 3, 4, 5, 6});
    const float infinite = std::numeric_limits<float>::infinity();
    *bytes = EncodeStateFile(stamp, 7, std::vector<float>(kFakeStateBytes / 4, infinite));
  });
}

TEST_F(PublishedStateTest, AStateThatIsPublishedAfterATakeoverChangesNothing) {
  archive_->holds = true;
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  EXPECT_EQ(FedFor(1, id, {3}), 9);
  archive_->holds = false;
  archive_->Deliver();
  Until([&] { return engine(0)->GetLoad().client_sessions == 0; });
  EXPECT_EQ(Totals(0).states_published, 1);
  EXPECT_EQ(Totals(0).lost, 0) << "the store had all of it";
  const uint64_t hash = hash_;
  EXPECT_EQ(Get(0, id)->hash, hash);
  EXPECT_EQ(hash, LoneHash());
}

TEST_F(PublishedStateTest, AnArchiveThatFailsCostsRecomputationAlone) {
  archive_->fails = true;
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  EXPECT_EQ(FedFor(1, id, {3}), 9);
  EXPECT_EQ(Totals(0).states_failed, 1);
  EXPECT_EQ(hash_, LoneHash());
}

TEST_F(PublishedStateTest, APublicationThatFailedIsTriedAgainAtTheNextEnd) {
  archive_->fails = true;
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  Until([&] { return Totals(0).states_failed == 1; });
  archive_->fails = false;
  ASSERT_TRUE(Generate(0, id, 1, {}).ok());
  EXPECT_EQ(archive_->states.size(), 1u) << "although one token alone would not be worth it";
}

TEST_F(PublishedStateTest, AForkAndARewoundSessionContinueFromTheStateToo) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  Until([&] { return Totals(0).writes >= 4; });
  ForkSpec spec;
  spec.session = SessionRef{id, "t", std::nullopt, ""};
  const auto forks = Await<std::vector<SessionInfo>>(
      [&](SessionsDone done) { return ForkSession(engine(0), spec, std::move(done)); });
  ASSERT_TRUE(forks.ok()) << forks.status();
  EXPECT_EQ(FedFor(1, forks->front().id, {3}), 2);
  const auto rewound = Await<SessionInfo>([&](SessionDone done) {
    return RewindSession(engine(0), {id, "t", 3, ""}, absl::InfiniteFuture(), std::move(done));
  });
  ASSERT_TRUE(rewound.ok()) << rewound.status();
  EXPECT_EQ(FedFor(1, id, {3}), 5) << "the state is behind the three tokens that are left";
}

TEST_F(PublishedStateTest, ADrainPublishesWhatThereWasNoRoomFor) {
  options_.publish.max_pending_bytes = 1;
  archive_->holds = true;
  for (Replica& replica : replicas_) replica.engine = nullptr;
  replicas_.clear();
  SetUp();
  const SessionId first = Open(0)->id, second = Open(0)->id;
  ASSERT_TRUE(Generate(0, first, 5, {1, 2}).ok());
  ASSERT_TRUE(Generate(0, second, 5, {3, 4}).ok());
  EXPECT_EQ(Totals(0).states_skipped, 1);
  archive_->Deliver();
  engine(0)->Drain(absl::InfiniteFuture());
  Until([&] {
    archive_->Deliver();
    return engine(0)->GetLoad().unsaved == 0;
  });
  EXPECT_EQ(archive_->states.size(), 2u);
  archive_->holds = false;
  EXPECT_EQ(FedFor(1, first, {5}), 2);
  EXPECT_EQ(FedFor(1, second, {5}), 2);
}

TEST_F(PublishedStateTest, ADrainWaitsForTheWriteOfTheLastRequest) {
  const SessionId id = Open(0)->id;
  replicas_[0].reaches_store = false;
  GenerateSpec spec;
  spec.tenant = "t";
  spec.session = SessionRef{id, "t", std::nullopt, ""};
  spec.session->hash = kEmptySequenceHash;
  spec.prompt = {1};
  spec.max_tokens = 3;
  ReplyCollector& collector = collectors_.emplace_back();
  ASSERT_TRUE(collector.Start(engine(0), spec).ok());
  engine(0)->Drain(absl::InfiniteFuture());
  Until([&] { return collector.reply().end().has_value(); });
  EXPECT_FALSE(collector.reply().end()->durability->complete);
  EXPECT_EQ(engine(0)->GetLoad().unsaved, 1);
  replicas_[0].reaches_store = true;
  Until([&] { return engine(0)->GetLoad().unsaved == 0; });
  EXPECT_EQ(Get(1, id)->position, 4);
}

class SmallerContextTest : public PublishedSegmentTest {
 protected:
  SmallerContextTest() { contexts_ = {100, 9}; }
};

TEST_F(SmallerContextTest, ALongerSessionIsRefusedAndStaysAsItIs) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  ASSERT_TRUE(Generate(1, id, 2, {}).ok()) << "nine tokens have room: the last is not fed";
  const auto longer = Generate(0, id, 5, {3});
  ASSERT_TRUE(longer.ok()) << longer.status();
  for (const std::vector<int32_t>& prompt : {std::vector<int32_t>{4}, {}}) {
    const absl::Status refused = Generate(1, id, 1, prompt).status();
    EXPECT_EQ(Reason(refused), "TOO_MANY_TOKENS") << refused;
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr("at position 15 the session would hold 1"));
    EXPECT_THAT(std::string(refused.message()),
                ::testing::EndsWith("this server allows 9 in a sequence. Send fewer or go back to "
                                    "an earlier position, or raise --max-context."));
  }
  EXPECT_EQ(Get(0, id)->hash, longer->hash);
  EXPECT_TRUE(Generate(0, id, 1, {5}, longer->hash).ok()) << "with what its client knows of it";
}

class OtherNumericsTest : public PublishedStateTest {
 protected:
  OtherNumericsTest() { numerics_ = {"fake", "fake2"}; }
};

TEST_F(OtherNumericsTest, TokensAreFedAgainAndTheReplySaysSoOnce) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  EXPECT_EQ(durability_->other_numerics_id, "");
  Until([&] { return Totals(0).writes >= 4; });
  EXPECT_EQ(FedFor(1, id, {3}), 9);
  EXPECT_EQ(durability_->other_numerics_id, "fake");
  EXPECT_EQ(Totals(1).states_missing, 0) << "states of another numerics id are not asked for";
  ASSERT_TRUE(Generate(1, id, 1, {}).ok());
  EXPECT_EQ(durability_->other_numerics_id, "");
}

struct EncryptedSessionTest : public ReplicatedSessionTest {
  EncryptedSessionTest() : ReplicatedSessionTest(/*encrypts=*/true) {}
  void Use(int replica, const std::vector<std::string>& ids) {
    ASSERT_TRUE(replicas_[static_cast<size_t>(replica)].sealer->Use(KeysOf(ids)).ok());
  }
};

TEST_F(EncryptedSessionTest, ASessionOutlivesTheKeyThatItWasOpenedWith) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  const auto moved = Generate(1, id, 5, {3});
  ASSERT_TRUE(moved.ok()) << moved.status();
  for (const std::vector<std::string>& ids :
       {std::vector<std::string>{"old", "new"}, std::vector<std::string>{"new", "old"}}) {
    for (const int replica : {0, 1}) Use(replica, ids);
  }
  // It keeps the tokens as they were stored before.
  const auto later = Generate(1, id, 1, {4});
  ASSERT_TRUE(later.ok()) << later.status();
  for (const int replica : {0, 1}) Use(replica, {"new"});
  const auto back = Generate(0, id, 1, {}, later->hash);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->position, later->position + 1);
}

TEST_F(EncryptedSessionTest, AReplicaThatLacksTheKeyRefusesTheSession) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  Use(1, {"new"});
  EXPECT_EQ(Reason(Get(1, id).status()), "SESSION_RECORD_KEY");
  EXPECT_EQ(Reason(Generate(1, id, 5, {3}).status()), "SESSION_RECORD_KEY");
  EXPECT_GT(engine(1)->GetLoad().replication.unreadable, 0);
  ASSERT_TRUE(Generate(0, id, 5, {3}).ok()) << "the session is not harmed";
  // It finds a record with another claim, and has a copy of its own.
  Use(1, {"old"});
  ASSERT_TRUE(Generate(1, id, 5, {4}).ok());
  ASSERT_TRUE(Generate(0, id, 5, {5}).ok());
  Use(1, {"new"});
  EXPECT_EQ(Reason(Generate(1, id, 5, {6}).status()), "SESSION_RECORD_KEY");
}

// A store that has lost chunks gets them again; they would not help here.
TEST_F(EncryptedSessionTest, AForgedClaimEndsTheRequestAndWritesNothing) {
  const SessionId id = Open(0)->id;
  ASSERT_TRUE(Generate(0, id, 5, {1, 2}).ok());
  MemoryStoreImage image = server_.Image();
  image.records[id.ToString()].claim = NewStoreClaim();
  server_.Restore(image);
  EXPECT_EQ(Reason(Generate(0, id, 5, {3}).status()), "SESSION_RECORD_DAMAGED");
  EXPECT_EQ(engine(0)->GetLoad().replication.rewritten, 0);
  EXPECT_EQ(server_.Image().records[id.ToString()].claim, image.records[id.ToString()].claim);
}

}  // namespace
}  // namespace rivulet
