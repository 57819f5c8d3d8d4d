// SPDX-License-Identifier: Apache-2.0
// What the store in Redis holds. redis_start_test.cc: how it begins; redis_connection_test.cc: what
// happens when Redis goes away.
#include "server/sessions/redis/redis_session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/unit/server/sessions/redis/redis_fixture.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = StoreAnswer::Kind;

class RedisBacking final : public StoreBacking {
 public:
  std::unique_ptr<SessionStore> Open() override { return Opened(PatientOptions(redis_.port())); }
  void Empty() override { redis_.Command({"FLUSHALL"}); }

 private:
  RedisProcess redis_;
};

std::unique_ptr<StoreBacking> MakeRedisBacking() {
  if (!RedisProcess::Installed()) return nullptr;
  return std::make_unique<RedisBacking>();
}

INSTANTIATE_TEST_SUITE_P(Redis, SessionStoreContract,
                         ::testing::Values(StoreCase{"Redis", MakeRedisBacking}), NameOfCase);

class RedisSessionStoreTest : public RedisTest {
 protected:
  void SetUp() override {
    RedisTest::SetUp();
    if (IsSkipped()) return;
    redis_ = std::make_unique<RedisProcess>();
    store_ = Opened(PatientOptions(redis_->port()));
    ASSERT_NE(store_, nullptr);
  }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    for (RedisReply& key : redis_->Command({"KEYS", "*"}).elements) keys.push_back(key.text);
    std::sort(keys.begin(), keys.end());
    return keys;
  }
  static StoreWrite WriteWithAll() {
    StoreWrite write = MakeWrite(1, 0, 1);
    write.chunks = {{"c1", "tokens"}};
    write.sets = {{"all", 10}, {"tenant", 10}};
    return write;
  }
  absl::Status Written(StoreWrite write) { return WriteNow(*store_, std::move(write)).status(); }

  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<SessionStore> store_;
};

TEST_F(RedisSessionStoreTest, AllKeysHaveThePrefixAndAllButTheIdExpire) {
  EXPECT_TRUE(Written(WriteWithAll()).ok());
  const std::string record = "rivulet:s:" + SessionName(1);
  EXPECT_THAT(Keys(), ElementsAre("rivulet:c:c1", "rivulet:id", "rivulet:m:all", "rivulet:m:tenant",
                                  record));
  for (const std::string& key : Keys()) {
    const int64_t left = redis_->Command({"PTTL", key}).integer;
    if (key == "rivulet:id") {
      EXPECT_EQ(left, -1);
      continue;
    }
    EXPECT_GT(left, 3'000'000) << key;
    EXPECT_LE(left, 3'600'000) << key;
  }
  EXPECT_EQ(redis_->Command({"GET", record}).text.substr(20, 16), std::string(16, '0'))
      << "it has no lease, whatever the clock of Redis does";
  RedisOptions options = PatientOptions(redis_->port());
  options.key_prefix = "other{1}:";
  const auto other = Opened(options);
  EXPECT_EQ(ReadNow(*other, SessionName(1))->kind, Kind::kMissing) << "another prefix";
  EXPECT_TRUE(WriteNow(*other, WriteWithAll()).ok());
  EXPECT_EQ(redis_->Command({"KEYS", "rivulet:*"}).elements.size(), 5u);
  EXPECT_EQ(redis_->Command({"KEYS", "other{1}:*"}).elements.size(), 5u);
}

// Redis forgets the key of a set when nobody renews it, and not before its last member expires.
TEST_F(RedisSessionStoreTest, ASetLastsAsLongAsTheMemberThatLastsLongest) {
  StoreWrite write = MakeWrite(1, 0, 1);
  write.sets = {{"all", 10}};
  EXPECT_TRUE(Written(write).ok());
  write = MakeWrite(2, 0, 1);
  write.sets = {{"all", 10}};
  write.expiry = absl::Minutes(1);
  EXPECT_TRUE(Written(write).ok());
  EXPECT_GT(redis_->Command({"PTTL", "rivulet:m:all"}).integer, 3'000'000);
  write.expected = ClaimOf(1);
  write.expiry = absl::Hours(5);
  EXPECT_TRUE(Written(write).ok());
  EXPECT_GT(redis_->Command({"PTTL", "rivulet:m:all"}).integer, 15'000'000);
}

// A writer that does not know whether its write arrived sends its chunks again, while another
// session may need them for longer.
TEST_F(RedisSessionStoreTest, AChunkThatIsThereIsNotShortenedByAnotherWriteOfIt) {
  StoreWrite write = WriteWithAll();
  write.expiry = absl::Hours(5);
  EXPECT_TRUE(Written(write).ok());
  write.expected = ClaimOf(1);
  write.expiry = absl::Minutes(1);
  EXPECT_TRUE(Written(write).ok());
  EXPECT_GT(redis_->Command({"PTTL", "rivulet:c:c1"}).integer, 15'000'000);
  write.expiry = absl::Hours(10);
  EXPECT_TRUE(Written(write).ok());
  EXPECT_GT(redis_->Command({"PTTL", "rivulet:c:c1"}).integer, 30'000'000);
}

// While others keep the set alive.
TEST_F(RedisSessionStoreTest, AMemberThatExpiredMakesRoomAndIsRemoved) {
  StoreWrite write = MakeWrite(1, 0, 1);
  write.sets = {{"all", 2}};
  EXPECT_TRUE(Written(write).ok());
  write.session = SessionName(2);
  write.expiry = absl::Milliseconds(100);
  EXPECT_TRUE(Written(write).ok());
  write.session = SessionName(3);
  write.expiry = absl::Hours(1);
  Await([&] { return WriteNow(*store_, write)->kind == Kind::kDone; });
  EXPECT_EQ(redis_->Command({"ZCARD", "rivulet:m:all"}).integer, 2);
  EXPECT_EQ(ListNow(*store_, "all")->size(), 2u);
  write.session = SessionName(4);
  EXPECT_EQ(WriteNow(*store_, write)->members, 2);
}

TEST_F(RedisSessionStoreTest, AnyDurationIsTaken) {
  StoreWrite write = WriteWithAll();
  write.expiry = write.record.lease = absl::InfiniteDuration();
  EXPECT_TRUE(Written(write).ok());
  auto answer = ReadNow(*store_, SessionName(1));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_GT(answer->found.lease, absl::Hours(24 * 365 * 90));
  EXPECT_GT(redis_->Command({"PTTL", "rivulet:m:all"}).integer, int64_t{90} * 365 * 86'400'000);
  write = MakeWrite(2, 0, 1);
  write.record.lease = -absl::InfiniteDuration();
  EXPECT_TRUE(Written(write).ok());
  write = MakeWrite(3, 0, 1);
  write.record.lease = absl::Nanoseconds(1);
  write.expiry = absl::Nanoseconds(1);
  EXPECT_TRUE(Written(write).ok());
}

TEST_F(RedisSessionStoreTest, AFullRedisWritesNothingAndCanBeRead) {
  EXPECT_TRUE(Written(MakeWrite(2, 0, 1)).ok());
  const std::vector<std::string> before = Keys();
  redis_->Command({"CONFIG", "SET", "maxmemory", "1"});
  const absl::Status full = Written(WriteWithAll());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("maxmemory"));
  StoreWrite without_chunks = WriteWithAll();
  without_chunks.chunks.clear();
  EXPECT_EQ(Written(without_chunks).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Keys(), before);
  EXPECT_EQ(ReadNow(*store_, SessionName(2))->found.claim, ClaimOf(1));
  EXPECT_TRUE(ListNow(*store_, "all").ok());
  StoreWrite closed = MakeWrite(2, 1, 2, "closed");
  closed.sets = {{"all", 10}};
  closed.leaves_sets = true;
  EXPECT_TRUE(Written(closed).ok()) << "else nobody could make room";
  redis_->Command({"FLUSHALL"});
  EXPECT_EQ(ReadNow(*store_, SessionName(2))->kind, Kind::kMissing) << "and it gets its id";
  redis_->Command({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(Written(WriteWithAll()).ok());
}

TEST_F(RedisSessionStoreTest, ADiskOnWhichRedisCannotWriteCountsAsFull) {
  redis_->Command({"CONFIG", "SET", "save", "3600 1"});
  std::filesystem::remove_all(redis_->directory().path());  // it runs in there
  redis_->Command({"BGSAVE"});
  Await([&] { return redis_->Info("rdb_last_bgsave_status") == "err"; });
  const absl::Status full = Written(WriteWithAll());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("cannot write to its disk"));
}

TEST_F(RedisSessionStoreTest, KeysOfOthersAreDataLossAndNothingIsWritten) {
  const std::string record = "rivulet:s:" + SessionName(1);
  const std::pair<std::string, std::vector<std::string>> theirs[] = {
      {"an id", {"LPUSH", "rivulet:id", "x"}},
      {"a record of another type", {"LPUSH", record, "x"}},
      {"a record of another form", {"SET", record, "x"}},
      {"an empty record", {"SET", record, ""}},
      {"a record of another version", {"SET", record, "rvs2" + std::string(100, '0')}},
      {"a record without its lease", {"SET", record, "rvs1" + std::string(100, 'x')}},
      {"a set", {"SET", "rivulet:m:tenant", "x"}}};
  for (const auto& [what, command] : theirs) {
    redis_->Command({"FLUSHALL"});
    redis_->Command(command);
    const absl::Status status = Written(WriteWithAll());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << what << ": " << status;
    EXPECT_EQ(redis_->Command({"EXISTS", "rivulet:c:c1", "rivulet:m:all"}).integer, 0) << what;
    if (command[1] != "rivulet:m:tenant") {
      EXPECT_EQ(ReadNow(*store_, SessionName(1)).status().code(), absl::StatusCode::kDataLoss)
          << what;
    }
  }
  EXPECT_EQ(ListNow(*store_, "tenant").status().code(), absl::StatusCode::kDataLoss);
  redis_->Command({"DEL", "rivulet:m:tenant"});
  redis_->Command({"ZADD", "rivulet:m:tenant", "inf", "x"});
  EXPECT_EQ(ListNow(*store_, "tenant").status().code(), absl::StatusCode::kDataLoss);
  redis_->Command({"LPUSH", "rivulet:c:c2", "x"});
  EXPECT_THAT(*ReadChunksNow(*store_, {"c2"}), ElementsAre(""));
}

TEST_F(RedisSessionStoreTest, ScriptsThatRedisForgotAreSentAgain) {
  EXPECT_TRUE(Written(WriteWithAll()).ok());
  redis_->Command({"SCRIPT", "FLUSH"});
  EXPECT_EQ(ReadNow(*store_, SessionName(1))->found.claim, ClaimOf(1));
}

TEST_F(RedisSessionStoreTest, LongListsComeWhole) {
  constexpr int kMembers = 25'000;
  const int64_t base = absl::ToUnixMillis(absl::Now() + absl::Hours(1));
  std::vector<std::string> command = {"ZADD", "rivulet:m:all"};
  for (int i = 0; i < kMembers; ++i) {
    command.push_back(std::to_string(base + i / 10));  // ten expire together
    command.push_back(absl::StrCat("session-", i));
  }
  EXPECT_EQ(redis_->Command(command).integer, kMembers);
  const std::pair<int64_t, size_t> lists[] = {
      {1, 10},          {9'995, 10'000},     {10'001, 10'010},    {20'000, 20'000},
      {24'999, 25'000}, {1'000'000, 25'000}, {INT64_MAX, 25'000}, {0, 0},
      {-1, 0}};
  for (const auto& [count, size] : lists) {
    const auto members = ListNow(*store_, "all", 0, count);
    ASSERT_TRUE(members.ok()) << members.status();
    EXPECT_EQ(members->size(), size) << count;
    std::set<std::string> names;
    for (const auto& member : *members) names.insert(member.session);
    EXPECT_EQ(names.size(), size) << count;
  }
  EXPECT_EQ(ListNow(*store_, "all", base + 1999, 1'000'000)->size(), 5'000u);
  EXPECT_EQ(ListNow(*store_, "all", INT64_MAX, 10)->size(), 0u);
}

TEST_F(RedisSessionStoreTest, ManyChunksComeInTheirOrder) {
  StoreWrite write = MakeWrite(1, 0, 1);
  std::vector<std::string> ids, bytes;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(absl::StrCat("c", i));
    bytes.push_back(i % 7 == 3 ? "" : absl::StrCat("bytes of ", i));
    if (i % 7 != 3) write.chunks.push_back({ids.back(), bytes.back()});
  }
  EXPECT_TRUE(Written(write).ok());
  EXPECT_EQ(*ReadChunksNow(*store_, ids), bytes);
}

}  // namespace
}  // namespace rivulet
