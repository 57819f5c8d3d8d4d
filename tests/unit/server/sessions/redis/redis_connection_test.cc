// SPDX-License-Identifier: Apache-2.0
// The store in Redis when Redis goes away, comes back, or says what it should not.
#include "server/sessions/redis/redis_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/sessions/sealed/encrypted_session_store.h"
#include "tests/unit/server/sessions/redis/fake_redis.h"
#include "tests/unit/server/sessions/redis/redis_fixture.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using Kind = StoreAnswer::Kind;

absl::StatusCode CodeOf(const absl::Status& status) { return status.code(); }
template <typename T>
absl::StatusCode CodeOf(const absl::StatusOr<T>& result) {
  return result.status().code();
}
constexpr absl::StatusCode kUnavailable = absl::StatusCode::kUnavailable;

class RedisConnectionTest : public RedisTest {
 protected:
  void SetUp() override {
    RedisTest::SetUp();
    if (IsSkipped()) return;
    redis_ = std::make_unique<RedisProcess>();
    patient_ = Opened(PatientOptions(redis_->port()));
    for (int i = 1; i <= 9; ++i) {
      ASSERT_TRUE(WriteNow(*patient_, MakeWrite(i, 0, i, absl::StrCat("record ", i))).ok());
    }
  }

  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<SessionStore> patient_;
};

TEST_F(RedisConnectionTest, AnAnswerThatIsLateReachesNoOtherCall) {
  const auto hasty = Opened(HastyOptions(redis_->port()));
  for (int round = 0; round < 5; ++round) {
    AwaitRead(*hasty, 1);  // it is connected
    redis_->Stop();
    std::vector<std::future<absl::StatusOr<StoreAnswer>>> reads;
    for (int i = 2; i <= 8; ++i) reads.push_back(StartRead(*hasty, SessionName(i)));
    for (auto& read : reads) EXPECT_EQ(CodeOf(read.get()), kUnavailable);
    redis_->Continue();  // it answers all of them now
    EXPECT_EQ(AwaitRead(*hasty, 9).found.bytes, "record 9");
  }
}

TEST_F(RedisConnectionTest, AWriteThatEndedWithoutAnAnswerMayHaveHappened) {
  const auto hasty = Opened(HastyOptions(redis_->port()));
  AwaitRead(*hasty, 1);
  redis_->Stop();
  EXPECT_EQ(CodeOf(WriteNow(*hasty, MakeWrite(1, 1, 20))), kUnavailable);
  redis_->Continue();
  Await([&] { return ReadNow(*patient_, SessionName(1))->found.claim == ClaimOf(20); });
}

TEST_F(RedisConnectionTest, CallsThatWaitForAConnectionEndInTime) {
  redis_->Stop();  // the kernel takes connections, and nobody answers
  RedisOptions options = HastyOptions(redis_->port());
  options.connect_timeout = absl::Seconds(60);
  const auto store = Opened(options);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(CodeOf(ReadNow(*store, SessionName(1))), kUnavailable);
  redis_->Continue();
  EXPECT_EQ(AwaitRead(*store, 2).found.bytes, "record 2");
}

TEST_F(RedisConnectionTest, ALostConnectionIsNoticedWithoutACall) {
  RedisOptions options = HastyOptions(redis_->port());
  options.call_timeout = absl::Seconds(60);
  options.must_be_reachable = true;
  const auto sealer =
      std::make_shared<const Sealer>(SealKeys{{{"k", std::string(32, 'k')}}, std::string(32, 's')});
  const auto store = MakeEncryptedSessionStore(Opened(options), sealer);
  EXPECT_EQ(store->connected(), true);
  redis_->Kill();
  Await([&] { return store->connected() == false; });
  redis_->Start();
  Await([&] { return store->connected() == true; });
}

TEST_F(RedisConnectionTest, ARedisThatHangsIsNoticedWithoutACall) {
  RedisOptions options = HastyOptions(redis_->port());
  options.idle_time = absl::Milliseconds(20);
  const auto store = Opened(options);
  AwaitRead(*store, 1);  // it is connected
  redis_->Stop();
  Await([&] { return store->connected() == false; });
  redis_->Continue();
  Await([&] { return store->connected() == true; });
}

TEST_F(RedisConnectionTest, ARedisThatComesBackEmptyHasAnotherId) {
  const std::string id = AwaitRead(*patient_, 1).store_id;
  redis_->Kill();
  // The loss is noticed at once, whatever the time-out.
  Await([&] { return CodeOf(ReadNow(*patient_, SessionName(1))) == kUnavailable; });
  redis_->Start();
  const StoreAnswer answer = AwaitRead(*patient_, 1);
  EXPECT_EQ(answer.kind, Kind::kMissing);
  EXPECT_NE(answer.store_id, id);
}

TEST_F(RedisConnectionTest, ARedisThatKeepsItsDataHasItsId) {
  RedisProcess redis({"--appendonly", "yes", "--appendfsync", "always"});
  const auto store = Opened(PatientOptions(redis.port()));
  const absl::StatusOr<StoreAnswer> written = WriteNow(*store, MakeWrite(1, 0, 1, "kept"));
  ASSERT_TRUE(written.ok()) << written.status();
  redis.Kill();
  redis.Start();
  const StoreAnswer answer = AwaitRead(*store, 1);
  EXPECT_EQ(answer.found.bytes, "kept");
  EXPECT_EQ(answer.store_id, written->store_id);
}

TEST_F(RedisConnectionTest, ConnectionsThatAreCutAgainAndAgainAreMadeAgain) {
  for (int i = 0; i < 20; ++i) {
    redis_->Command({"CLIENT", "KILL", "TYPE", "normal"});
    EXPECT_EQ(AwaitRead(*patient_, 1 + i % 9).found.bytes, absl::StrCat("record ", 1 + i % 9));
  }
}

TEST_F(RedisConnectionTest, AMasterThatBecomesAReplicaIsLeft) {
  const RedisProcess master;
  redis_->Command({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
  Await([&] {
    const auto written = WriteNow(*patient_, MakeWrite(20, 0, 1));
    return CodeOf(written) == kUnavailable &&
           absl::StrContains(written.status().message(), "is a replica");
  });
  redis_->Command({"REPLICAOF", "NO", "ONE"});
  AwaitRead(*patient_, 1);
}

TEST_F(RedisConnectionTest, RightsThatAreTakenAwayAreNamed) {
  redis_->Command({"ACL", "SETUSER", "default", "-zadd"});
  StoreWrite write = MakeWrite(20, 0, 1);
  write.chunks = {{"c1", "tokens"}};
  write.sets = {{"all", 10}};
  const auto written = WriteNow(*patient_, write);
  EXPECT_EQ(CodeOf(written), kUnavailable);
  EXPECT_THAT(std::string(written.status().message()), HasSubstr("ACL SETUSER"));
  EXPECT_EQ(ReadNow(*patient_, SessionName(20))->kind, Kind::kMissing) << "no record without sets";
  redis_->Command({"ACL", "SETUSER", "default", "+zadd"});
  EXPECT_EQ(WriteNow(*patient_, write)->kind, Kind::kDone);
}

TEST_F(RedisConnectionTest, ARedisThatCannotSaveTakesNoWrites) {
  redis_->Command({"CONFIG", "SET", "min-replicas-to-write", "1"});
  const auto written = WriteNow(*patient_, MakeWrite(20, 0, 1));
  EXPECT_EQ(CodeOf(written), kUnavailable);
  EXPECT_THAT(std::string(written.status().message()), HasSubstr("NOREPLICAS"));
}

TEST_F(RedisConnectionTest, NoMoreIsUnderWayThanAllowed) {
  RedisOptions options = PatientOptions(redis_->port());
  options.most_calls = 3;
  options.most_bytes = 20'000;
  const auto store = Opened(options);
  AwaitRead(*store, 1);
  redis_->Stop();
  std::vector<std::future<absl::StatusOr<StoreAnswer>>> reads;
  for (int i = 1; i <= 3; ++i) reads.push_back(StartRead(*store, SessionName(i)));
  const auto fourth = ReadNow(*store, SessionName(4));
  EXPECT_EQ(CodeOf(fourth), kUnavailable);
  EXPECT_THAT(std::string(fourth.status().message()), HasSubstr("3 calls"));
  redis_->Continue();
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(reads[static_cast<size_t>(i) - 1].get()->found.bytes, absl::StrCat("record ", i));
  }
  redis_->Stop();
  auto write = StartWrite(*store, MakeWrite(20, 0, 1, std::string(14'000, 'x')));
  EXPECT_EQ(CodeOf(WriteNow(*store, MakeWrite(21, 0, 1, std::string(14'000, 'x')))), kUnavailable);
  const auto large = WriteNow(*store, MakeWrite(22, 0, 1, std::string(20'000, 'x')));
  EXPECT_EQ(CodeOf(large), absl::StatusCode::kResourceExhausted);
  redis_->Continue();
  EXPECT_EQ(write.get()->kind, Kind::kDone);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(ReadNow(*store, SessionName(1)).ok()) << "room again";
}

TEST_F(RedisConnectionTest, ManyBytesGoBothWays) {
  const std::string bytes(size_t{3} << 20, 'b');
  std::vector<std::future<absl::StatusOr<StoreAnswer>>> calls;
  for (int i = 20; i < 30; ++i) calls.push_back(StartWrite(*patient_, MakeWrite(i, 0, i, bytes)));
  for (int i = 20; i < 30; ++i) calls.push_back(StartRead(*patient_, SessionName(i)));
  for (size_t i = 0; i < 20; ++i) {
    const auto answer = calls[i].get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(i < 10 || answer->found.bytes == bytes) << i;
  }
}

TEST_F(RedisConnectionTest, TheEndOfTheStoreEndsItsCalls) {
  redis_->Stop();
  RedisOptions dialing = PatientOptions(redis_->port());
  dialing.must_be_reachable = false;
  dialing.call_timeout = absl::Milliseconds(1);  // its first attempt ends soon
  auto store = Opened(dialing);
  auto waits = StartRead(*store, SessionName(1));
  store = nullptr;
  EXPECT_EQ(CodeOf(waits.get()), kUnavailable);
  auto sent = StartRead(*patient_, SessionName(1));
  std::atomic<int> chained = 0;
  SessionStore* const store_of_done = patient_.get();
  // One that calls again when it fails does not hold up the end.
  patient_->Read(SessionName(2), [&](const absl::StatusOr<StoreAnswer>& first) {
    EXPECT_EQ(CodeOf(first), kUnavailable);
    store_of_done->Read(SessionName(3), [&](const absl::StatusOr<StoreAnswer>& second) {
      EXPECT_EQ(CodeOf(second), kUnavailable);
      ++chained;
    });
  });
  patient_.reset();
  EXPECT_EQ(CodeOf(sent.get()), kUnavailable);
  EXPECT_EQ(chained, 1);
}

TEST(UnsentBytesTest, BytesThatWereSentAreFreedWhileOthersWait) {
  UnsentBytes unsent;
  const std::string piece(size_t{1} << 18, 'p');
  std::string all;
  unsent.Append("begin");
  for (int i = 0; i < 100; ++i) {
    unsent.Append(piece);
    absl::StrAppend(&all, unsent.left().substr(0, piece.size()));
    unsent.Drop(piece.size());
    ASSERT_LE(unsent.held_bytes(), (size_t{1} << 20) + 2 * unsent.left().size());
  }
  EXPECT_EQ(unsent.left(), "ppppp");
  EXPECT_EQ(all, absl::StrCat("begin", std::string(all.size() - 5, 'p')));
  unsent.Clear();
  EXPECT_EQ(unsent.held_bytes(), 0);
}

// Without a Redis: answers as no Redis gives them.
TEST(RedisAnswersTest, AnAnswerThatIsCutOffEndsItsCall) {
  std::atomic<int> connections = 0;
  const FakeRedis redis([&](int connection, const std::vector<RedisReply>& command) {
    connections = connection + 1;
    const auto greeting = FakeRedis::Greeting(command);
    if (greeting.has_value()) return greeting;
    const std::string whole = FakeRedis::Record("record");
    // The first connection sends half of it, and closes at the next command.
    if (connection == 0 && command[4].text.find(SessionName(1)) == std::string::npos) {
      return std::optional<std::string>();
    }
    return std::optional<std::string>(connection == 0 ? whole.substr(0, whole.size() / 2) : whole);
  });
  const auto store = Opened(PatientOptions(redis.port()));
  auto cut = StartRead(*store, SessionName(1));
  auto next = StartRead(*store, SessionName(2));
  EXPECT_EQ(CodeOf(cut.get()), kUnavailable);
  EXPECT_EQ(CodeOf(next.get()), kUnavailable);
  EXPECT_EQ(AwaitRead(*store, 3).found.bytes, "record");
  EXPECT_EQ(connections, 2);
}

TEST(RedisAnswersTest, WhatIsNoAnswerEndsAllCalls) {
  for (const std::string garbage :
       {"HTTP/1.1 200 OK\r\n", "*2147483647\r\n", "$99999999999999999999\r\n"}) {
    const FakeRedis redis([&](int connection, const std::vector<RedisReply>& command) {
      const auto greeting = FakeRedis::Greeting(command);
      if (greeting.has_value()) return greeting;
      return std::optional<std::string>(connection == 0 ? garbage : FakeRedis::Record("record"));
    });
    const auto store = Opened(PatientOptions(redis.port()));
    auto first = StartRead(*store, SessionName(1)), second = StartRead(*store, SessionName(2));
    EXPECT_EQ(CodeOf(first.get()), kUnavailable) << garbage;
    second.wait();  // it may have been sent on the next connection
    EXPECT_EQ(AwaitRead(*store, 3).found.bytes, "record");
  }
}

TEST(RedisAnswersTest, AnAnswerThatKeepsComingDoesNotHoldUpTheDeadline) {
  const std::string text = FakeRedis::Text(std::string(size_t{1} << 20, 'x'));
  std::string long_answer = "*32\r\n";  // of another form, once all of it was read
  for (int i = 0; i < 32; ++i) long_answer += text;
  const FakeRedis redis([&](int, const std::vector<RedisReply>& command) {
    const auto greeting = FakeRedis::Greeting(command);
    if (greeting.has_value()) return greeting;
    const bool first = command[4].text.find(SessionName(1)) != std::string::npos;
    return std::optional<std::string>(first ? "" : FakeRedis::Record("record") + long_answer);
  });
  const RedisOptions options = HastyOptions(redis.port());
  const auto store = Opened(options);
  absl::Status status;
  Await([&] {
    // Both were sent before the first answer. At its end the time for the second has passed.
    store->Read(SessionName(1),
                [&](const absl::StatusOr<StoreAnswer>&) { absl::SleepFor(options.call_timeout); });
    status = ReadNow(*store, SessionName(2)).status();
    return !absl::IsUnavailable(status) || absl::StrContains(status.message(), "answer within");
  });
  EXPECT_EQ(CodeOf(status), kUnavailable);
}

TEST(RedisAnswersTest, AnAnswerTooManyReachesNobody) {
  const FakeRedis redis([&](int connection, const std::vector<RedisReply>& command) {
    const auto greeting = FakeRedis::Greeting(command);
    if (greeting.has_value()) return greeting;
    const std::string own = FakeRedis::Record(command[4].text);
    return std::optional<std::string>(connection == 0 ? own + FakeRedis::Record("another's") : own);
  });
  const auto store = Opened(PatientOptions(redis.port()));
  EXPECT_THAT(AwaitRead(*store, 1).found.bytes, HasSubstr(SessionName(1)));
  for (int i = 2; i < 10; ++i) {
    EXPECT_THAT(AwaitRead(*store, i).found.bytes, HasSubstr(SessionName(i)));
  }
}

TEST(RedisAnswersTest, AnswersOfAnotherFormAreDataLoss) {
  for (const std::string form : {"+OK\r\n", ":1\r\n", "$-1\r\n", "*0\r\n", "*1\r\n:0\r\n",
                                 "*6\r\n:6\r\n+id\r\n$-1\r\n:1\r\n:0\r\n:0\r\n",
                                 "*6\r\n:0\r\n$-1\r\n$-1\r\n:1\r\n:0\r\n:0\r\n",
                                 "*6\r\n:0\r\n+id\r\n$-1\r\n:1\r\n:0\r\n:0\r\n",
                                 "*6\r\n:1\r\n+id\r\n$-1\r\n:1\r\n:0\r\n:0\r\n",
                                 "*6\r\n:2\r\n+id\r\n+record\r\n:1\r\n:0\r\n:0\r\n",
                                 "*6\r\n:0\r\n+id\r\n+rvs1\r\n:1\r\n:0\r\n:0\r\n"}) {
    const FakeRedis redis([&](int, const std::vector<RedisReply>& command) {
      const auto greeting = FakeRedis::Greeting(command);
      return greeting.has_value() ? greeting : std::optional<std::string>(form);
    });
    const auto store = Opened(PatientOptions(redis.port()));
    EXPECT_EQ(CodeOf(ReadNow(*store, SessionName(1))), absl::StatusCode::kDataLoss) << form;
    EXPECT_EQ(CodeOf(ReadChunksNow(*store, {"a", "b"})), absl::StatusCode::kDataLoss) << form;
    if (form != "*0\r\n" && form[1] != '6') {
      EXPECT_EQ(CodeOf(ListNow(*store, "all")), absl::StatusCode::kDataLoss) << form;
    }
  }
}

// Redis says these while it starts, or when it has become a replica; the store looks again.
TEST(RedisAnswersTest, ARedisThatIsNotReadyIsAskedAgain) {
  for (const std::string error : {"-LOADING Redis is loading the dataset in memory\r\n",
                                  "-READONLY You can't write against a read only replica.\r\n",
                                  "-MASTERDOWN Link with MASTER is down\r\n"}) {
    std::atomic<int> connections = 0;
    const FakeRedis redis([&](int connection, const std::vector<RedisReply>& command) {
      connections = connection + 1;
      if (connection < 2 && command[0].text == "INFO") return std::optional<std::string>(error);
      const auto greeting = FakeRedis::Greeting(command);
      if (greeting.has_value()) return greeting;
      return std::optional<std::string>(connection == 2 ? error : FakeRedis::Record("record"));
    });
    RedisOptions options = PatientOptions(redis.port());
    options.must_be_reachable = false;
    const auto store = Opened(options);
    Await([&] { return connections == 3; });
    EXPECT_EQ(AwaitRead(*store, 1).found.bytes, "record");
    EXPECT_EQ(connections, 4);
  }
}

class RedisSentinelTest : public RedisTest {
 protected:
  static RedisOptions SentinelOptions(const RedisProcess& sentinel) {
    RedisOptions options = PatientOptions(sentinel.port());
    options.url.master = "main";
    return options;
  }
};

TEST_F(RedisSentinelTest, TheMasterIsFoundAndItsSuccessor) {
  RedisProcess master({"--repl-diskless-sync-delay", "0"});
  const RedisProcess replica({"--replicaof", absl::StrCat("127.0.0.1 ", master.port())});
  const RedisProcess sentinel(RedisProcess::SentinelOf("main", master.port()));
  RedisProcess deaf;  // the first that is asked does not answer
  deaf.Kill();
  RedisOptions options = SentinelOptions(sentinel);
  options.url.addresses.insert(options.url.addresses.begin(), {"127.0.0.1", deaf.port()});
  std::atomic<int> connected_to = 0;
  options.on_connected = [&](const RedisFacts& facts) {
    connected_to = std::atoi(facts.address.substr(facts.address.rfind(':') + 1).c_str());
  };
  const auto store = Opened(options);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(connected_to, master.port());
  const auto written = WriteNow(*store, MakeWrite(1, 0, 1, "kept"));
  ASSERT_TRUE(written.ok()) << written.status();
  // Sentinel must know the replica, and the replica the record.
  Await([&] { return sentinel.Info("master0").find("slaves=1") != std::string::npos; });
  Await([&] { return replica.Command({"DBSIZE"}).integer == 2; });
  master.Kill();
  const StoreAnswer answer = AwaitRead(*store, 1);
  EXPECT_EQ(answer.found.bytes, "kept");
  EXPECT_EQ(answer.store_id, written->store_id);
  EXPECT_EQ(connected_to, replica.port());
}

TEST_F(RedisSentinelTest, WhatSentinelDoesNotKnowIsRefused) {
  const RedisProcess master;
  RedisProcess sentinel(RedisProcess::SentinelOf("other", master.port()));
  const auto refused = [](const RedisOptions& options) {
    const absl::Status status = OpenRedisSessionStore(options).status();
    EXPECT_EQ(CodeOf(status), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(SentinelOptions(sentinel)), HasSubstr("no master with the name \"main\""));
  EXPECT_THAT(refused(SentinelOptions(master)), HasSubstr("refuses SENTINEL"));
  EXPECT_THAT(refused(PatientOptions(sentinel.port())), HasSubstr("is a Sentinel"));
}

TEST_F(RedisSentinelTest, AMasterThatSentinelNamesMustSayThatItIs) {
  const RedisProcess master;
  const RedisProcess replica({"--replicaof", absl::StrCat("127.0.0.1 ", master.port())});
  const FakeRedis sentinel([&](int, const std::vector<RedisReply>&) {
    return absl::StrCat("*2\r\n", FakeRedis::Text("127.0.0.1"),
                        FakeRedis::Text(std::to_string(replica.port())));
  });
  RedisOptions options = PatientOptions(sentinel.port());
  options.url.master = "main";
  const absl::Status status = OpenRedisSessionStore(options).status();
  EXPECT_EQ(CodeOf(status), kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is a replica"));
}

TEST_F(RedisSentinelTest, SentinelsHaveAPasswordOfTheirOwn) {
  const testing::TempDir directory;
  const RedisProcess master({"--requirepass", "of-redis"});
  std::vector<std::string> settings = RedisProcess::SentinelOf("main", master.port());
  settings.push_back("sentinel auth-pass main of-redis");
  const RedisProcess sentinel(settings);
  RedisOptions options = SentinelOptions(sentinel);
  options.password_file = directory.File("redis");
  options.sentinel_password_file = directory.File("sentinel");
  ASSERT_TRUE(testing::WriteFile(options.password_file, "of-redis").ok());
  ASSERT_TRUE(testing::WriteFile(options.sentinel_password_file, "of-sentinel").ok());
  sentinel.Command({"ACL", "SETUSER", "default", "resetpass", ">of-sentinel"});
  EXPECT_NE(Opened(options), nullptr);
  options.sentinel_password_file = options.password_file;
  const absl::Status status = OpenRedisSessionStore(options).status();
  EXPECT_EQ(CodeOf(status), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("session-store-sentinel-password-file"));
}

}  // namespace
}  // namespace rivulet
