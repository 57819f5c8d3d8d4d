// SPDX-License-Identifier: Apache-2.0
// How the store in Redis begins: which Redis will do, log-in, rights, TLS, Sentinel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "server/sessions/redis/redis_dialer.h"
#include "tests/support/authority.h"
#include "tests/unit/server/sessions/redis/fake_redis.h"
#include "tests/unit/server/sessions/redis/redis_fixture.h"

namespace rivulet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = StoreAnswer::Kind;

class RedisStartTest : public RedisTest {
 protected:
  std::string File(const std::string& name, const std::string& text) {
    const std::string path = directory_.File(name);
    EXPECT_TRUE(testing::WriteFile(path, text).ok());
    return path;
  }
  // The message of the FAILED_PRECONDITION at the start.
  static std::string Refused(const RedisOptions& options) {
    const auto store = OpenRedisSessionStore(options);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition) << store.status();
    EXPECT_EQ(GetErrorDetail(store.status()).reason, "SESSION_STORE_REFUSED");
    EXPECT_EQ(GetErrorDetail(store.status()).field, "session-store");
    return std::string(store.status().message());
  }
  static void ExpectUsable(const RedisOptions& options) {
    const auto store = Opened(options);
    ASSERT_NE(store, nullptr);
    StoreWrite write = MakeWrite(1, 0, 1);
    write.chunks = {{"c1", "tokens"}};
    write.sets = {{"all", 10}};
    auto answer = WriteNow(*store, write);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->kind, Kind::kDone);
    write.expected = ClaimOf(1);
    write.chunks.clear();
    write.kept_chunks = {"c1"};
    write.leaves_sets = true;
    answer = WriteNow(*store, write);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->kind, Kind::kDone);
    EXPECT_EQ(ReadNow(*store, SessionName(1))->found.claim, ClaimOf(1));
    EXPECT_EQ(ReadChunksNow(*store, {"c1"})->at(0), "tokens");
    EXPECT_TRUE(ListNow(*store, "all").ok());
  }

  testing::TempDir directory_;
};

TEST_F(RedisStartTest, WhatWillNotDoIsRefused) {
  const auto refused = [](const std::string& version, const std::string& mode) {
    const FakeRedis redis([&](int, const std::vector<RedisReply>& command) {
      return FakeRedis::Greeting(command, version, mode);
    });
    return Refused(PatientOptions(redis.port()));
  };
  EXPECT_THAT(refused("6.2.14", "standalone"), HasSubstr("version \"6.2.14\""));
  EXPECT_THAT(refused("", "standalone"), HasSubstr("version \"\""));
  EXPECT_THAT(refused("x\n", "standalone"), HasSubstr("version \"x"));
  EXPECT_THAT(refused("7.2.4", "cluster"), HasSubstr("cluster mode"));
  EXPECT_THAT(refused("7.2.4", "sentinel"), HasSubstr("redis+sentinel://"));
  const FakeRedis good([&](int, const std::vector<RedisReply>& command) {
    return FakeRedis::Greeting(command, "10.0.1");
  });
  EXPECT_NE(Opened(PatientOptions(good.port())), nullptr);
}

// Valkey names some things otherwise.
TEST_F(RedisStartTest, ValkeyWillDo) {
  const std::string valkey =
      "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\nrole:master\r\n";
  RedisFacts facts;
  EXPECT_TRUE(ReadRedisInfo(valkey + "server_mode:standalone\r\n", &facts).ok());
  const auto refused = [&](const std::string& line) {
    return std::string(ReadRedisInfo(valkey + line, &facts).message());
  };
  EXPECT_THAT(refused("server_mode:cluster\r\n"), HasSubstr("cluster mode"));
  EXPECT_THAT(refused("cluster_enabled:1\r\n"), HasSubstr("cluster mode"));
  EXPECT_THAT(refused("server_mode:sentinel\r\n"), HasSubstr("is a Sentinel"));
}

TEST_F(RedisStartTest, WhatIsNoRedisIsRefused) {
  for (const std::string bytes :
       {"HTTP/1.1 400 Bad Request\r\n\r\n", "\x15\x03\x03", "*1000000000\r\n"}) {
    const FakeRedis server(
        [&](int, const std::vector<RedisReply>&) { return std::optional<std::string>(bytes); });
    EXPECT_THAT(Refused(PatientOptions(server.port())), HasSubstr("does not answer as Redis does"));
  }
}

TEST_F(RedisStartTest, ARealClusterIsRefused) {
  const RedisProcess redis({"--cluster-enabled", "yes"});
  EXPECT_THAT(Refused(PatientOptions(redis.port())), HasSubstr("cluster mode"));
}

TEST_F(RedisStartTest, PasswordsAreUsedAndNamedByTheirSetting) {
  RedisProcess redis;
  RedisOptions options = PatientOptions(redis.port());
  options.password_file = File("password", "hunter2\nwhat follows is no password\n");
  EXPECT_THAT(Refused(options),
              AllOf(HasSubstr("session-store-password-file"), Not(HasSubstr("hunter2"))))
      << "of a Redis that has none";
  redis.Command({"CONFIG", "SET", "requirepass", "hunter2"});
  ExpectUsable(options);
  options.password_file = File("other", "hunter3");
  EXPECT_THAT(Refused(options),
              AllOf(HasSubstr("refuses the user \"default\""),
                    HasSubstr("session-store-password-file"), Not(HasSubstr("hunter3"))));
  options.password_file.clear();
  EXPECT_THAT(Refused(options), HasSubstr("needs a password"));

  options.password_file = directory_.File("absent");
  absl::Status status = OpenRedisSessionStore(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(GetErrorDetail(status).field, "session-store-password-file");
  options.password_file = File("empty", "\nhunter2");
  status = OpenRedisSessionStore(options).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("empty first line"));
}

TEST_F(RedisStartTest, AnErrorDoesNotRepeatThePassword) {
  const FakeRedis redis([](int, const std::vector<RedisReply>& command) {
    return absl::StrCat("-ERR unknown command '", command[0].text, "', with args beginning with: '",
                        command[1].text, "'\r\n");
  });
  RedisOptions options = PatientOptions(redis.port());
  options.password_file = File("password", "hunter2");
  EXPECT_THAT(Refused(options), Not(HasSubstr("hunter2")));
}

// The commands of redis_session_store.h.
std::vector<std::string> Rights() {
  return absl::StrSplit(
      "+info +eval +time +get +set +mget +exists +pexpire +zadd +zcount +zrange +zrem "
      "+zremrangebyscore +zscore +select",
      ' ');
}

TEST_F(RedisStartTest, AUserNeedsTheRightsThatTheHeaderListsAndNoOthers) {
  RedisProcess redis;
  RedisOptions options = PatientOptions(redis.port());
  options.url.user = "rivulet";
  options.url.database = 1;
  options.password_file = File("password", "hunter2");
  const auto set_user = [&](const std::string& without, const std::string& keys) {
    std::vector<std::string> command = {"ACL", "SETUSER",  "rivulet", "reset",
                                        "on",  ">hunter2", keys};
    for (const std::string& right : Rights()) {
      if (right != without) command.push_back(right);
    }
    EXPECT_TRUE(redis.Command(command).IsText("OK"));
  };
  set_user("", "~rivulet:*");
  ExpectUsable(options);
  for (const std::string& right : Rights()) {
    set_user(right, "~rivulet:*");
    EXPECT_THAT(Refused(options), ::testing::ContainsRegex("[ ']" + right.substr(1) + "\\b"))
        << right;
  }
  set_user("", "~others:*");
  EXPECT_THAT(Refused(options), HasSubstr("NOPERM"));
  set_user("", "~rivulet:s:*");
  EXPECT_THAT(Refused(options), HasSubstr("NOPERM"));
  set_user("+select", "~rivulet:*");
  options.url.database = 0;
  EXPECT_NE(Opened(options), nullptr) << "database 0 needs no select";
}

TEST_F(RedisStartTest, TheDatabaseIsSelected) {
  const RedisProcess redis;
  RedisOptions options = PatientOptions(redis.port());
  options.url.database = 3;
  ExpectUsable(options);
  EXPECT_THAT(redis.Info("db3"), HasSubstr("keys=3"));
  EXPECT_EQ(redis.Info("db0"), "");
  options.url.database = 16;
  EXPECT_THAT(Refused(options), AllOf(HasSubstr("SELECT"), HasSubstr("out of range")));
}

TEST_F(RedisStartTest, FactsSayWhatAnOperatorShouldKnow) {
  const RedisProcess redis(
      {"--appendonly", "yes", "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"});
  RedisOptions options = PatientOptions(redis.port());
  RedisFacts facts;
  options.on_connected = [&](const RedisFacts& told) { facts = told; };
  ASSERT_NE(Opened(options), nullptr);
  EXPECT_EQ(facts.address, absl::StrCat("127.0.0.1:", redis.port()));
  EXPECT_EQ(facts.version, redis.Info("redis_version"));
  EXPECT_EQ(facts.max_memory, uint64_t{1} << 30);
  EXPECT_EQ(facts.max_memory_policy, "allkeys-lru");
  EXPECT_TRUE(facts.append_only_file);
  const RedisProcess plain;
  options.url.addresses = {{"localhost", plain.port()}};
  ASSERT_NE(Opened(options), nullptr) << "a name with two addresses, one of which is refused";
  EXPECT_EQ(facts.max_memory, 0u);
  EXPECT_EQ(facts.max_memory_policy, "noeviction");
  EXPECT_FALSE(facts.append_only_file);
}

TEST_F(RedisStartTest, ARedisThatIsNotThereIsAnErrorOnlyIfItMustBe) {
  RedisProcess redis;
  redis.Kill();
  RedisOptions options = PatientOptions(redis.port());
  EXPECT_EQ(OpenRedisSessionStore(options).status().code(), absl::StatusCode::kUnavailable);
  options.must_be_reachable = false;
  const auto store = Opened(options);
  ASSERT_NE(store, nullptr);
  const absl::Status status = ReadNow(*store, SessionName(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Connection refused"));
  redis.Start();
  EXPECT_EQ(AwaitRead(*store, 1).kind, Kind::kMissing);
}

TEST_F(RedisStartTest, ALossIsToldOnceHoweverManyAttemptsFollow) {
  std::atomic<int> connections = 0, connected = 0, lost = 0;
  const FakeRedis redis([&](int connection, const std::vector<RedisReply>& command) {
    connections = connection + 1;
    return connection < 4 ? std::nullopt : FakeRedis::Greeting(command);
  });
  RedisOptions options = PatientOptions(redis.port());
  options.must_be_reachable = false;
  options.on_connected = [&](const RedisFacts&) { ++connected; };
  options.on_disconnected = [&](const absl::Status&) { ++lost; };
  const auto store = Opened(options);
  Await([&] { return connected == 1; });
  EXPECT_EQ(connections, 5);
  EXPECT_EQ(lost, 1);
}

TEST_F(RedisStartTest, ANameWithoutAnAddressIsNotReachable) {
  RedisOptions options = PatientOptions(1);
  options.url.addresses = {{"nowhere.invalid", 6379}};
  options.connect_timeout = absl::Milliseconds(200);  // resolvers may wait for longer
  const absl::Status status = OpenRedisSessionStore(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nowhere.invalid"));
}

class RedisTlsTest : public RedisStartTest {
 protected:
  RedisProcess::TlsFiles Files(const std::string& names) {
    const Authority::Identity identity = authority_.Issue(names);
    return {File("cert.pem", identity.cert), File("key.pem", identity.key),
            File("ca.pem", authority_.pem())};
  }
  RedisOptions TlsOptions(const RedisProcess& redis, const std::string& host = "127.0.0.1") {
    RedisOptions options = PatientOptions(0);
    options.url.tls = true;
    options.url.addresses = {{host, redis.tls_port()}};
    options.ca_file = directory_.File("ca.pem");
    return options;
  }
  void ExpectBadFile(const RedisOptions& options, const std::string& field,
                     const std::string& path) {
    const absl::Status status = OpenRedisSessionStore(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(GetErrorDetail(status).field, field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }

  const Authority authority_;
};

TEST_F(RedisTlsTest, TheCertificateMustBeOfTheAuthorityAndForTheName) {
  const RedisProcess redis = RedisProcess::WithTls(Files("IP:127.0.0.1,DNS:localhost"));
  RedisOptions options = TlsOptions(redis);
  ExpectUsable(options);
  EXPECT_NE(Opened(TlsOptions(redis, "localhost")), nullptr);
  options.server_name = "redis.example";
  EXPECT_THAT(Refused(options), AllOf(HasSubstr("certificate"), HasSubstr("hostname mismatch")));
  options.server_name = "127.0.0.2";
  EXPECT_THAT(Refused(options), HasSubstr("IP address mismatch"));
  options.server_name = "localhost";
  EXPECT_NE(Opened(options), nullptr);
  options = TlsOptions(redis);
  options.ca_file = File("other.pem", Authority().pem());
  EXPECT_THAT(Refused(options), HasSubstr("certificate that is not accepted"));
  options.ca_file.clear();
  EXPECT_THAT(Refused(options), HasSubstr("certificate that is not accepted"))
      << "the system's authorities";
}

TEST_F(RedisTlsTest, AClientShowsItsCertificate) {
  RedisProcess::TlsFiles files = Files("IP:127.0.0.1");
  files.wants_clients = true;
  const RedisProcess redis = RedisProcess::WithTls(files);
  RedisOptions options = TlsOptions(redis);
  EXPECT_THAT(Refused(options), HasSubstr("does not agree on TLS"));
  const Authority::Identity client = authority_.Issue("DNS:client");
  options.cert_file = File("client.pem", client.cert);
  options.key_file = File("client-key.pem", client.key);
  ExpectUsable(options);
  const Authority::Identity stranger = Authority().Issue("DNS:client");
  options.cert_file = File("stranger.pem", stranger.cert);
  options.key_file = File("stranger-key.pem", stranger.key);
  EXPECT_THAT(Refused(options), HasSubstr("does not agree on TLS"));
}

TEST_F(RedisTlsTest, FilesThatCannotBeUsedAreNamed) {
  const RedisProcess redis = RedisProcess::WithTls(Files("IP:127.0.0.1"));
  const RedisOptions good = TlsOptions(redis);
  const std::string absent = directory_.File("absent"), cert = directory_.File("cert.pem");
  RedisOptions options = good;
  options.ca_file = absent;
  ExpectBadFile(options, "session-store-ca", absent);
  options.ca_file = directory_.File("key.pem");
  ExpectBadFile(options, "session-store-ca", options.ca_file);
  options = good;
  options.cert_file = absent;
  options.key_file = directory_.File("key.pem");
  ExpectBadFile(options, "session-store-cert", absent);
  options.cert_file = cert;
  options.key_file = absent;
  ExpectBadFile(options, "session-store-key", absent);
  options.key_file = File("other-key.pem", authority_.Issue("DNS:x").key);
  ExpectBadFile(options, "session-store-key", options.key_file);
}

TEST_F(RedisTlsTest, TlsIsNotAskedOfAServerWithoutIt) {
  const FakeRedis plain([](int, const std::vector<RedisReply>&) {
    return std::optional<std::string>("-ERR Protocol error: too big inline request\r\n");
  });
  RedisOptions options = PatientOptions(plain.port());
  options.url.tls = true;
  options.call_timeout = options.connect_timeout = absl::Milliseconds(300);
  // Redis waits for the end of what it takes for a command.
  EXPECT_EQ(OpenRedisSessionStore(options).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RedisTlsTest, CallsDoNotWaitForAHandshakeThatDoesNotEnd) {
  RedisProcess redis = RedisProcess::WithTls(Files("IP:127.0.0.1"));
  RedisOptions options = TlsOptions(redis);
  options.must_be_reachable = false;
  options.call_timeout = absl::Milliseconds(100);
  const auto store = Opened(options);
  AwaitRead(*store, 1);
  redis.Stop();
  Await([&] {
    const absl::Status status = ReadNow(*store, SessionName(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    return absl::StrContains(status.message(), "no connection to Redis within 100ms");
  });
  redis.Continue();
  EXPECT_EQ(AwaitRead(*store, 1).kind, Kind::kMissing);
}

TEST_F(RedisTlsTest, AServerThatWantsTlsIsNotTakenForRedis) {
  const RedisProcess redis = RedisProcess::WithTls(Files("IP:127.0.0.1"));
  const absl::Status status = OpenRedisSessionStore(PatientOptions(redis.tls_port())).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("rediss://"));
}

}  // namespace
}  // namespace rivulet
