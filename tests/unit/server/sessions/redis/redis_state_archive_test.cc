// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_state_archive.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/unit/server/sessions/redis/redis_fixture.h"
#include "tests/unit/server/sessions/state_archive_contract.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

ArchiveCase::Open MakeRedis() {
  if (!RedisProcess::Installed()) return nullptr;
  auto redis = std::make_shared<RedisProcess>();
  return [redis](const StateArchiveLimits& limits) {
    auto archive = OpenRedisStateArchive(PatientOptions(redis->port()), limits);
    EXPECT_TRUE(archive.ok()) << archive.status();
    return archive.ok() ? *std::move(archive) : nullptr;
  };
}

INSTANTIATE_TEST_SUITE_P(Redis, StateArchiveContract,
                         ::testing::Values(ArchiveCase{"Redis", MakeRedis}), NameOfArchive);

class RedisStateArchiveTest : public RedisTest {
 protected:
  void SetUp() override {
    RedisTest::SetUp();
    if (IsSkipped()) return;
    redis_ = std::make_unique<RedisProcess>();
    archive_ = *OpenRedisStateArchive(PatientOptions(redis_->port()), {});
  }
  absl::Status Put(int number, const std::string& bytes) {
    std::promise<absl::Status> promise;
    archive_->Put(Archived(StateName(number), bytes), absl::Hours(1),
                  [&](const absl::StatusOr<int64_t>& written) {
                    promise.set_value(Unshared(written.status()));
                  });
    return promise.get_future().get();
  }
  std::string Get(int number) {
    std::promise<std::string> promise;
    archive_->Get(StateName(number), [&](const absl::StatusOr<std::string>& bytes) {
      promise.set_value(bytes.ok() ? *bytes : std::string(bytes.status().message()));
    });
    return promise.get_future().get();
  }
  std::string KeyOf(int number) { return "rivulet:t:" + StateName(number); }

  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<StateArchive> archive_;
};

TEST_F(RedisStateArchiveTest, AllKeysExpireAndPiecesAreSmall) {
  ASSERT_TRUE(Put(1, std::string(2 * kMib + 1, 'x')).ok());
  std::set<std::string> keys;
  for (const RedisReply& key : redis_->Command({"KEYS", "*"}).elements) {
    keys.insert(key.text);
    EXPECT_GT(redis_->Command({"PTTL", key.text}).integer, 0) << key.text;
  }
  EXPECT_THAT(keys, UnorderedElementsAre("rivulet:states", KeyOf(1)));
  EXPECT_EQ(redis_->Command({"HLEN", KeyOf(1)}).integer, 5);
  EXPECT_EQ(redis_->Command({"HSTRLEN", KeyOf(1), "2"}).integer, 1);
}

// Its writer ended in the middle of it.
TEST_F(RedisStateArchiveTest, OneThatLacksAPieceIsNotThereAndCanBePutAgain) {
  const std::string bytes(2 * kMib + 1, 'x');
  ASSERT_TRUE(Put(1, bytes).ok());
  redis_->Command({"HDEL", KeyOf(1), "1"});
  EXPECT_THAT(Get(1), IsEmpty());
  ASSERT_TRUE(Put(1, bytes).ok());
  EXPECT_TRUE(Get(1) == bytes);
}

// Encrypted, each writer's bytes are others.
TEST_F(RedisStateArchiveTest, PiecesOfTwoWritersAreNotMixed) {
  const std::string mine(2 * kMib + 1, 'm'), others(2 * kMib + 1, 'o');
  const auto second = *OpenRedisStateArchive(PatientOptions(redis_->port()), {});
  for (int i = 0; i < 20; ++i) {
    std::promise<void> ended;
    second->Put(Archived(StateName(i), others), absl::Hours(1),
                [&](const absl::StatusOr<int64_t>&) { ended.set_value(); });
    (void)Put(i, mine);
    ended.get_future().wait();
    const std::string kept = Get(i);
    EXPECT_TRUE(kept == mine || kept == others || kept.empty()) << i;
  }
}

TEST_F(RedisStateArchiveTest, StatesLeaveHalfOfRedisToSessions) {
  redis_->Command({"CONFIG", "SET", "maxmemory", std::to_string(40 * kMib)});
  archive_ = *OpenRedisStateArchive(PatientOptions(redis_->port()), {});
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(Put(i, std::string(kMib, 'x')).ok()) << i;
  EXPECT_LE(redis_->Command({"ZCARD", "rivulet:states"}).integer, 20);
  EXPECT_EQ(redis_->Command({"SET", "other", std::string(4 * kMib, 'x')}).text, "OK");
}

TEST_F(RedisStateArchiveTest, WhereRedisIsFullStatesMakeRoom) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Put(i, std::string(kMib, 'x')).ok());
  redis_->Command({"CONFIG", "SET", "maxmemory", redis_->Info("used_memory")});
  const absl::Status full = Put(9, std::string(kMib, 'x'));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  Await([&] { return redis_->Command({"ZCARD", "rivulet:states"}).integer <= 4; });
  EXPECT_TRUE(Put(9, std::string(kMib, 'x')).ok());
}

TEST_F(RedisStateArchiveTest, WhatOthersHavePutThereIsAnError) {
  redis_->Command({"SET", KeyOf(1), "text"});
  EXPECT_THAT(Get(1), HasSubstr("a key that others use"));
  EXPECT_FALSE(Put(1, "bytes").ok());
  redis_->Command({"HSET", KeyOf(2), "pieces", "9223372036854775807", "0", "x"});
  EXPECT_THAT(Get(2), IsEmpty());
}

TEST_F(RedisStateArchiveTest, AUserWithoutTheRightsIsRefusedAtTheStart) {
  redis_->Command({"ACL",
                   "SETUSER",
                   "states",
                   "on",
                   ">secret",
                   "~rivulet:*",
                   "+info",
                   "+eval",
                   "+time",
                   "+get",
                   "+set",
                   "+mget",
                   "+exists",
                   "+pexpire",
                   "+zadd",
                   "+zcount",
                   "+zrange",
                   "+zrem",
                   "+zremrangebyscore",
                   "+zscore",
                   "+hset"});
  RedisOptions options = PatientOptions(redis_->port());
  options.url.user = "states";
  options.password_file = redis_->directory().File("password");
  ASSERT_TRUE(testing::WriteFile(options.password_file, "secret").ok());
  const auto refused = OpenRedisStateArchive(options, {});
  EXPECT_THAT(refused.status().message(), HasSubstr("hget"));
  EXPECT_THAT(refused.status().message(), HasSubstr("unlink"));
  redis_->Command({"ACL", "SETUSER", "states", "+hget", "+hmget", "+hlen", "+unlink"});
  const auto archive = OpenRedisStateArchive(options, {});
  EXPECT_TRUE(archive.ok()) << archive.status();
}

}  // namespace
}  // namespace rivulet
