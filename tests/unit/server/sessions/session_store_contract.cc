// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/server/sessions/session_store_contract.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace rivulet {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = StoreAnswer::Kind;

namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// An id that no other chunk of the test has.
std::string ChunkId(int number) { return absl::StrFormat("c-%012x", number); }

// Runs work(thread) on several threads at once.
void OnThreads(int threads, const std::function<void(int)>& work) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&work, gone, i] {
      gone.wait();
      work(i);
    });
  }
  go.set_value();
  for (std::thread& thread : running) thread.join();
}

std::vector<std::string> Sessions(const std::vector<SessionStore::Member>& members) {
  std::vector<std::string> sessions;
  for (const auto& member : members) sessions.push_back(member.session);
  return sessions;
}

}  // namespace

std::string SessionName(int number) {
  return absl::StrFormat("0a1b2c3d-%04x-4000-8000-%012x", number & 0xffff, number);
}

std::string ClaimOf(int number) { return absl::StrFormat("claim-%010d", number); }

StoreWrite MakeWrite(int number, int expected, int claim, std::string bytes) {
  StoreWrite write;
  write.session = SessionName(number);
  if (expected != 0) write.expected = ClaimOf(expected);
  write.record.claim = ClaimOf(claim);
  write.record.bytes = std::move(bytes);
  write.expiry = absl::Hours(1);
  return write;
}

StoreAnswer SessionStoreContract::Write(StoreWrite write, Kind kind) {
  const auto answer = WriteNow(*store_, std::move(write));
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return {};
  EXPECT_EQ(answer->kind, kind);
  return *answer;
}

// By the other replica, so that each test is one of what replicas share.
StoreAnswer SessionStoreContract::Read(int session, Kind kind) {
  const auto answer = ReadNow(*other_, SessionName(session));
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return {};
  EXPECT_EQ(answer->kind, kind);
  return *answer;
}

std::vector<std::string> SessionStoreContract::Chunks(const std::vector<std::string>& ids) {
  auto chunks = ReadChunksNow(*other_, ids);
  EXPECT_TRUE(chunks.ok()) << chunks.status();
  if (!chunks.ok()) return {};
  EXPECT_EQ(chunks->size(), ids.size());
  return *std::move(chunks);
}

std::vector<std::string> SessionStoreContract::Members(const std::string& set) {
  const auto members = ListNow(*other_, set);
  EXPECT_TRUE(members.ok()) << members.status();
  return members.ok() ? Sessions(*members) : std::vector<std::string>();
}

void SessionStoreContract::Await(const std::function<bool()>& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return;
    backing_->Pass(absl::Milliseconds(10));
  }
  FAIL() << "what is awaited does not happen";
}

void SessionStoreContract::AwaitExpiryOf(absl::Duration expiry) {
  const int session = next_session_++;
  StoreWrite write = MakeWrite(session, 0, 1);
  write.expiry = expiry;
  Write(write);
  Await([&] {
    const auto answer = ReadNow(*store_, SessionName(session));
    return answer.ok() && answer->kind == Kind::kMissing;
  });
}

absl::Duration SessionStoreContract::BeforeExpiry(
    const std::function<bool(int, absl::Duration)>& steps, int* session) {
  absl::Duration expiry = absl::Milliseconds(150);
  for (*session = next_session_; expiry < absl::Minutes(5); *session = next_session_) {
    next_session_ += 10;
    if (steps(*session, expiry)) return expiry;
    expiry *= 2;
  }
  ADD_FAILURE() << "records expire at once";
  return expiry;
}

namespace {

TEST_P(SessionStoreContract, ARecordIsCreatedOnce) {
  EXPECT_EQ(Read(1, Kind::kMissing).found.claim, "");
  const std::string bytes("re\0cord\xff\n", 9);
  Write(MakeWrite(1, 0, 1, bytes));
  StoreAnswer answer = Read(1);
  EXPECT_EQ(answer.found.claim, ClaimOf(1));
  EXPECT_EQ(answer.found.bytes, bytes);
  EXPECT_EQ(answer.found.lease, absl::ZeroDuration());
  answer = Write(MakeWrite(1, 0, 2, "another"), Kind::kClaimMismatch);
  EXPECT_EQ(answer.found.claim, ClaimOf(1));
  EXPECT_EQ(answer.found.bytes, bytes);
  EXPECT_EQ(Read(1).found.bytes, bytes);
  Write(MakeWrite(2, 0, 3, ""));
  EXPECT_EQ(Read(2).found.bytes, "");
  EXPECT_EQ(Read(1).found.claim, ClaimOf(1)) << "sessions do not mix";
}

TEST_P(SessionStoreContract, AWriteNeedsTheClaimThatTheRecordHas) {
  Write(MakeWrite(1, 1, 2), Kind::kMissing);
  EXPECT_EQ(Read(1, Kind::kMissing).found.claim, "") << "kMissing writes nothing";
  Write(MakeWrite(1, 0, 1, "one"));
  Write(MakeWrite(1, 1, 2, "two"));
  for (const int wrong : {1, 3}) {  // the one before, and one that never was
    const StoreAnswer answer = Write(MakeWrite(1, wrong, 4, "wrong"), Kind::kClaimMismatch);
    EXPECT_EQ(answer.found.claim, ClaimOf(2));
    EXPECT_EQ(answer.found.bytes, "two");
  }
  EXPECT_EQ(Read(1).found.claim, ClaimOf(2));
  const std::string zeros(16, '\0');  // a claim is any 16 bytes
  StoreWrite write = MakeWrite(1, 2, 3, "three");
  write.record.claim = zeros;
  Write(write);
  write.expected = zeros;
  write.record.claim = std::string("\0\xff\n\r %{}\"'\\/\0ab", 16);
  Write(write);
  EXPECT_EQ(Read(1).found.claim, write.record.claim);
}

TEST_P(SessionStoreContract, ALargeRecordIsWhole) {
  std::string bytes;
  for (uint32_t i = 0; i < 300'000; ++i) bytes.push_back(static_cast<char>(i * 7919 >> 3));
  Write(MakeWrite(1, 0, 1, bytes));
  EXPECT_TRUE(Read(1).found.bytes == bytes);
}

TEST_P(SessionStoreContract, WhatCannotBeWrittenIsRefusedByName) {
  for (const size_t size : {0, 15, 17}) {
    StoreWrite write = MakeWrite(1, 0, 1);
    write.record.claim = std::string(size, 'c');
    const auto answer = WriteNow(*store_, write);
    EXPECT_EQ(answer.status().code(), kInvalid);
    EXPECT_THAT(std::string(answer.status().message()), ::testing::HasSubstr("claim"));
  }
  for (const std::string& id : {std::string(), std::string("../x"), std::string("A"),
                                std::string("a\0b", 3), std::string(101, 'a')}) {
    StoreWrite write = MakeWrite(1, 0, 1);
    write.chunks = {{id, "bytes"}};
    const auto answer = WriteNow(*store_, write);
    EXPECT_EQ(answer.status().code(), kInvalid) << id;
    EXPECT_THAT(std::string(answer.status().message()), ::testing::HasSubstr("chunk"));
  }
  Read(1, Kind::kMissing);
}

TEST_P(SessionStoreContract, CallsOfOneThreadAreCarriedOutInTheirOrder) {
  std::vector<std::future<absl::StatusOr<StoreAnswer>>> writes, reads;
  for (int i = 0; i < 60; ++i) {
    writes.push_back(StartWrite(*store_, MakeWrite(1, i, i + 1)));
    reads.push_back(StartRead(*store_, SessionName(1)));
  }
  for (int i = 0; i < 60; ++i) {
    const auto written = writes[static_cast<size_t>(i)].get();
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(written->kind, Kind::kDone) << i;
    const auto read = reads[static_cast<size_t>(i)].get();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->found.claim, ClaimOf(i + 1));
  }
}

TEST_P(SessionStoreContract, ALeaseIsReportedAndRunsOut) {
  StoreWrite write = MakeWrite(1, 0, 1);
  write.record.lease = absl::Hours(20);
  write.expiry = absl::Hours(30);
  Write(write);
  const absl::Duration left = Read(1).found.lease;
  EXPECT_GT(left, absl::Hours(10));
  EXPECT_LE(left, absl::Hours(20));
  Await([&] { return Read(1).found.lease < left; });
  const StoreAnswer other = Write(MakeWrite(1, 9, 2), Kind::kClaimMismatch);
  EXPECT_GT(other.found.lease, absl::Hours(10));
  EXPECT_LE(other.found.lease, left);

  write = MakeWrite(1, 1, 2);  // the lease protects nothing: who knows the claim may write
  write.record.lease = absl::Milliseconds(100);
  Write(write);
  Await([&] { return Read(1).found.lease == absl::ZeroDuration(); });
  EXPECT_EQ(Read(1).found.claim, ClaimOf(2)) << "the record outlives its lease";
  write = MakeWrite(1, 2, 3);
  write.record.lease = absl::Hours(1);
  Write(write);
  EXPECT_GT(Read(1).found.lease, absl::ZeroDuration());
  Write(MakeWrite(1, 3, 4));
  EXPECT_EQ(Read(1).found.lease, absl::ZeroDuration()) << "a lease of 0 ends it";
  backing_->Pass(-absl::Hours(1));
  EXPECT_EQ(Read(1).found.lease, absl::ZeroDuration()) << "also if the store's clock goes back";
}

TEST_P(SessionStoreContract, ARecordItsChunksAndItsPlacesExpire) {
  StoreWrite write = MakeWrite(1, 0, 1);
  write.expiry = absl::Milliseconds(100);
  write.chunks = {{ChunkId(1), "tokens"}};
  write.sets = {{"set", 10}};
  Write(write);
  Write(MakeWrite(2, 0, 1));
  Await([&] {
    const auto answer = ReadNow(*other_, SessionName(1));
    return answer.ok() && answer->kind == Kind::kMissing;
  });
  Await([&] { return Chunks({ChunkId(1)})[0].empty(); });
  Await([&] { return Members("set").empty(); });
  Write(MakeWrite(1, 1, 2), Kind::kMissing);
  Read(2);
  Write(MakeWrite(1, 0, 3, "again"));  // an id that expired is free
  EXPECT_EQ(Read(1).found.bytes, "again");
}

TEST_P(SessionStoreContract, ALaterWriteRenewsTheRecordAndWhatItKeeps) {
  int session = 0;
  const absl::Duration expiry = BeforeExpiry(
      [&](int first, absl::Duration early) {
        StoreWrite write = MakeWrite(first, 0, 1);
        write.expiry = early;
        write.chunks = {{ChunkId(first), "kept"}, {ChunkId(first + 1), "dropped"}};
        write.sets = {{"set", 1000}};
        Write(write);
        write = MakeWrite(first, 1, 2);
        write.kept_chunks = {ChunkId(first)};
        write.sets = {{"set", 1000}};
        const auto answer = WriteNow(*other_, write);
        return answer.ok() && answer->kind == Kind::kDone;
      },
      &session);
  AwaitExpiryOf(expiry);
  EXPECT_EQ(Read(session).found.claim, ClaimOf(2));
  EXPECT_THAT(Members("set"), ElementsAre(SessionName(session)));
  Await([&] { return Chunks({ChunkId(session + 1)})[0].empty(); });
  EXPECT_THAT(Chunks({ChunkId(session)}), ElementsAre("kept"));
}

TEST_P(SessionStoreContract, AChunkOfTwoSessionsLastsAsLongAsOneNeedsIt) {
  const absl::Duration brief = absl::Milliseconds(100);
  StoreWrite write = MakeWrite(1, 0, 1);  // lasts an hour; the one that keeps it, briefly
  write.chunks = {{ChunkId(1), "of the long one"}};
  Write(write);
  write = MakeWrite(2, 0, 1);
  write.expiry = brief;
  write.kept_chunks = {ChunkId(1)};
  Write(write);

  int session = 0;  // and the other way round
  const absl::Duration expiry = BeforeExpiry(
      [&](int first, absl::Duration early) {
        StoreWrite brief_one = MakeWrite(first, 0, 1);
        brief_one.expiry = early;
        brief_one.chunks = {{ChunkId(first), "of the brief one"}};
        Write(brief_one);
        StoreWrite long_one = MakeWrite(first + 1, 0, 1);
        long_one.kept_chunks = {ChunkId(first)};
        const auto answer = WriteNow(*other_, long_one);
        return answer.ok() && answer->kind == Kind::kDone;
      },
      &session);
  AwaitExpiryOf(std::max(expiry, brief));
  Read(2, Kind::kMissing);
  Read(session, Kind::kMissing);
  EXPECT_THAT(Chunks({ChunkId(1), ChunkId(session)}),
              ElementsAre("of the long one", "of the brief one"));
}

// Otherwise the record would name tokens that nobody has, and nobody would notice before the
// session is needed.
TEST_P(SessionStoreContract, AWriteThatKeepsAChunkWhichIsNotThereIsRefused) {
  StoreWrite write = MakeWrite(1, 0, 1);
  write.chunks = {{ChunkId(1), "here"}};
  Write(write);
  write = MakeWrite(1, 1, 2);
  write.chunks = {{ChunkId(3), "new"}};
  write.kept_chunks = {ChunkId(1), ChunkId(2)};
  EXPECT_EQ(WriteNow(*store_, write).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(1).found.claim, ClaimOf(1));
  EXPECT_THAT(Chunks({ChunkId(3)}), ElementsAre(""));
  write.kept_chunks = {ChunkId(1)};
  Write(write);
}

TEST_P(SessionStoreContract, ChunksHoldAnyBytes) {
  std::string large;
  for (uint32_t i = 0; i < 1 << 20; ++i) large.push_back(static_cast<char>(i * 31 + (i >> 9)));
  const std::string binary("\0\xff\r\n\"\\{}%s\0", 12);
  StoreWrite write = MakeWrite(1, 0, 1);
  write.chunks = {{ChunkId(1), large},
                  {ChunkId(2), binary},
                  {ChunkId(3), ""},
                  {"a", "short id"},
                  {std::string(100, 'f'), "long id"}};
  Write(write);
  const auto chunks = Chunks(
      {ChunkId(2), ChunkId(4), ChunkId(1), ChunkId(3), ChunkId(2), "a", std::string(100, 'f')});
  ASSERT_EQ(chunks.size(), 7u);
  EXPECT_EQ(chunks[0], binary);
  EXPECT_EQ(chunks[1], "") << "there is no such chunk";
  EXPECT_TRUE(chunks[2] == large);
  EXPECT_EQ(chunks[3], "");
  EXPECT_EQ(chunks[4], binary);
  EXPECT_EQ(chunks[5], "short id");
  EXPECT_EQ(chunks[6], "long id");
  EXPECT_THAT(Chunks({}), IsEmpty());

  // A writer that does not know whether its write arrived sends the same chunks again.
  write.expected = ClaimOf(1);
  write.record.claim = ClaimOf(2);
  Write(write);
  EXPECT_THAT(Chunks({ChunkId(2)}), ElementsAre(binary));
}

TEST_P(SessionStoreContract, AChunkThatIsDroppedIsGoneAtOnceAndNoOther) {
  StoreWrite write = MakeWrite(1, 0, 1);
  write.chunks = {{ChunkId(1), "one"}, {ChunkId(2), "two"}, {ChunkId(3), "three"}};
  Write(write);
  write = MakeWrite(1, 7, 2);
  write.dropped_chunks = {ChunkId(1)};
  Write(write, Kind::kClaimMismatch);
  EXPECT_THAT(Chunks({ChunkId(1)}), ElementsAre("one")) << "a write that loses drops nothing";
  write.expected = ClaimOf(1);
  write.chunks = {{ChunkId(4), "four"}};
  write.kept_chunks = {ChunkId(2)};
  write.dropped_chunks = {ChunkId(1), ChunkId(5)};  // one that is not there
  Write(write);
  EXPECT_THAT(Chunks({ChunkId(1), ChunkId(2), ChunkId(3), ChunkId(4)}),
              ElementsAre("", "two", "three", "four"));
  write = MakeWrite(1, 2, 3, "closed");
  write.dropped_chunks = {ChunkId(2), ChunkId(4)};
  write.leaves_sets = true;
  Write(write);
  EXPECT_THAT(Chunks({ChunkId(2), ChunkId(3), ChunkId(4)}), ElementsAre("", "three", ""));
  EXPECT_EQ(Read(1).found.bytes, "closed");
}

TEST_P(SessionStoreContract, AWriteThatLosesLeavesNoChunks) {
  Write(MakeWrite(1, 0, 1));
  StoreWrite write = MakeWrite(1, 7, 2);
  write.chunks = {{ChunkId(1), "tokens"}};
  Write(write, Kind::kClaimMismatch);
  write.session = SessionName(2);
  Write(write, Kind::kMissing);
  EXPECT_THAT(Chunks({ChunkId(1)}), ElementsAre(""));
}

TEST_P(SessionStoreContract, AFullSetRefusesNewSessionsAndNothingIsWritten) {
  for (int i = 1; i <= 3; ++i) {
    StoreWrite write = MakeWrite(i, 0, 1);
    write.sets = {{"all", 100}, {"tenant", 3}};
    Write(write);
  }
  StoreWrite write = MakeWrite(4, 0, 1);
  write.sets = {{"all", 100}, {"tenant", 3}};
  write.chunks = {{ChunkId(4), "tokens"}};
  StoreAnswer answer = Write(write, Kind::kFull);
  EXPECT_EQ(answer.full_set, 1u);
  EXPECT_EQ(answer.members, 3);
  Read(4, Kind::kMissing);
  EXPECT_THAT(Chunks({ChunkId(4)}), ElementsAre(""));
  EXPECT_EQ(Members("all").size(), 3u);
  write.sets = {{"all", 2}, {"tenant", 3}};
  answer = Write(write, Kind::kFull);
  EXPECT_EQ(answer.full_set, 0u) << "the first that is full";
  EXPECT_EQ(answer.members, 3);
  write.sets = {{"none", 0}};
  EXPECT_EQ(Write(write, Kind::kFull).members, 0);

  StoreWrite known = MakeWrite(1, 1, 2);  // a session that there is, is not limited
  known.sets = {{"all", 1}, {"tenant", 1}, {"later", 0}};
  Write(known);
  EXPECT_THAT(Members("later"), ElementsAre(SessionName(1)));
  EXPECT_EQ(Members("tenant").size(), 3u);

  known = MakeWrite(2, 1, 2, "closed");
  known.sets = {{"all", 100}, {"tenant", 3}};
  known.leaves_sets = true;
  Write(known);
  EXPECT_EQ(Members("tenant").size(), 2u);
  EXPECT_EQ(Read(2).found.bytes, "closed") << "the record of a session that left is there";
  write.sets = {{"all", 100}, {"tenant", 3}};
  Write(write);
  EXPECT_THAT(Members("tenant"),
              ::testing::UnorderedElementsAre(SessionName(1), SessionName(3), SessionName(4)));
}

TEST_P(SessionStoreContract, AMemberThatExpiredMakesRoom) {
  StoreWrite write = MakeWrite(1, 0, 1);
  write.sets = {{"set", 1}};
  write.expiry = absl::Milliseconds(100);
  Write(write);
  write = MakeWrite(2, 0, 1);
  write.sets = {{"set", 1}};
  Await([&] {
    const auto answer = WriteNow(*other_, write);
    return answer.ok() && answer->kind == Kind::kDone;
  });
  EXPECT_THAT(Members("set"), ElementsAre(SessionName(2)));
}

// Encryption adds some bytes to each record and chunk, so the test asks how many there are.
TEST_P(SessionStoreContract, AnAccountHasNoMoreBytesThanItMay) {
  const auto sized = [](int session, int expected, size_t record, int64_t most) {
    StoreWrite write = MakeWrite(session, expected, expected + 1, std::string(record, 'r'));
    write.account = {"tenant", most};
    return write;
  };
  const auto bytes = [&] { return Write(sized(9, 0, 0, 1), Kind::kNoBytes).members; };
  StoreWrite write = sized(1, 0, 1000, 10'000);
  write.chunks = {{ChunkId(1), std::string(5000, 'c')}};
  Write(write);
  const int64_t one = bytes();
  EXPECT_GE(one, 6000 + 2 * kStoreEntryBytes);
  EXPECT_LT(one, 6300 + 2 * kStoreEntryBytes);
  write = sized(2, 0, 1000, one + 3000);
  write.chunks = {{ChunkId(2), std::string(2000, 'c')}};
  EXPECT_EQ(Write(write, Kind::kNoBytes).members, one);
  Read(2, Kind::kMissing);
  EXPECT_THAT(Chunks({ChunkId(2)}), ElementsAre(""));
  write.account.most = one + 4000;
  Write(write);
  const int64_t two = bytes();
  write = sized(1, 1, 1001, two);
  EXPECT_EQ(Write(write, Kind::kNoBytes).members, two) << "one that there is, and that grows";
  write = sized(1, 1, 1000, two);
  write.kept_chunks = {ChunkId(1)};
  Write(write);
  write = sized(3, 0, 1000, 2000);
  write.account.name = "another";
  Write(write);
  EXPECT_EQ(bytes(), two);
  Write(sized(4, 0, 0, 0));
  EXPECT_GE(bytes(), two + kStoreEntryBytes) << "what has no limit counts";

  write = sized(1, 2, 1000, 0);
  write.dropped_chunks = {ChunkId(1)};
  write.leaves_sets = true;
  const int64_t three = bytes();
  Write(write);
  EXPECT_LE(bytes(), three - 5000 - kStoreEntryBytes);
  EXPECT_GE(bytes(), three - 5300 - kStoreEntryBytes) << "the record of one that ended counts";
}

TEST_P(SessionStoreContract, WhatExpiredCountsForNoAccount) {
  StoreWrite write = MakeWrite(3, 0, 1);  // others of the account stay
  write.account = {"tenant", 0};
  Write(write);
  write.session = SessionName(1);
  write.chunks = {{ChunkId(1), std::string(1000, 'c')}};
  write.expiry = absl::Milliseconds(100);
  Write(write);
  write = MakeWrite(2, 0, 1);
  write.account = {"tenant", 2 * (200 + kStoreEntryBytes)};
  Await([&] {
    const auto answer = WriteNow(*other_, write);
    return answer.ok() && answer->kind == Kind::kDone;
  });
}

TEST_P(SessionStoreContract, ManyThreadsFillASetExactly) {
  constexpr int kThreads = 8, kEach = 6, kMost = 11;
  const auto third = backing_->Open();
  SessionStore* const stores[] = {store_.get(), other_.get(), third.get()};
  std::atomic<int> done = 0, full = 0;
  OnThreads(kThreads, [&](int thread) {
    for (int i = 0; i < kEach; ++i) {
      StoreWrite write = MakeWrite(1 + thread * kEach + i, 0, 1);
      write.sets = {{"all", 1000}, {"tenant", kMost}};
      const auto answer = WriteNow(*stores[thread % 3], write);
      ASSERT_TRUE(answer.ok()) << answer.status();
      if (answer->kind == Kind::kDone) ++done;
      if (answer->kind == Kind::kFull) {
        ++full;
        EXPECT_EQ(answer->members, kMost);
      }
    }
  });
  EXPECT_EQ(done, kMost);
  EXPECT_EQ(full, kThreads * kEach - kMost);
  EXPECT_EQ(Members("tenant").size(), static_cast<size_t>(kMost));
  EXPECT_EQ(Members("all").size(), static_cast<size_t>(kMost));
}

// Sessions come and go, so that places become free while others look for one.
TEST_P(SessionStoreContract, ASetNeverHasMoreMembersThanItMay) {
  constexpr int kThreads = 6, kRounds = 15, kMost = 3;
  SessionStore* const stores[] = {store_.get(), other_.get()};
  std::atomic<int> inside = 0, most = 0, entered = 0;
  OnThreads(kThreads, [&](int thread) {
    SessionStore& store = *stores[thread % 2];
    for (int i = 0; i < kRounds; ++i) {
      const int session = 1 + thread * kRounds + i;
      StoreWrite write = MakeWrite(session, 0, 1);
      write.sets = {{"set", kMost}};
      const auto answer = WriteNow(store, write);
      ASSERT_TRUE(answer.ok()) << answer.status();
      if (answer->kind != Kind::kDone) continue;
      ++entered;
      const int now = ++inside;  // at most as many as there are members
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      const auto listed = ListNow(store, "set");
      ASSERT_TRUE(listed.ok()) << listed.status();
      EXPECT_LE(listed->size(), static_cast<size_t>(kMost));
      --inside;
      write = MakeWrite(session, 1, 2);
      write.sets = {{"set", kMost}};
      write.leaves_sets = true;
      const auto left = WriteNow(store, write);
      ASSERT_TRUE(left.ok()) << left.status();
      EXPECT_EQ(left->kind, Kind::kDone);
    }
  });
  EXPECT_LE(most, kMost);
  EXPECT_GE(entered, kMost);
  EXPECT_THAT(Members("set"), IsEmpty());
}

TEST_P(SessionStoreContract, ASetIsListedInTheOrderOfExpiry) {
  const int hours[] = {0, 3, 1, 2};
  for (int i = 1; i <= 3; ++i) {
    StoreWrite write = MakeWrite(i, 0, 1);
    write.expiry = absl::Hours(hours[i]);
    write.sets = {{"set", 10}};
    Write(write);
  }
  EXPECT_THAT(Members("set"), ElementsAre(SessionName(2), SessionName(3), SessionName(1)));
  const auto all = ListNow(*store_, "set");
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_GT((*all)[0].expires_ms, 1'600'000'000'000) << "milliseconds since 1970";
  EXPECT_GE((*all)[2].expires_ms, (*all)[1].expires_ms + 1);
  EXPECT_EQ(Sessions(*ListNow(*store_, "set", 0, 1)), (std::vector{SessionName(2)}));
  EXPECT_EQ(Sessions(*ListNow(*store_, "set", (*all)[0].expires_ms, 1)),
            (std::vector{SessionName(3)}));
  EXPECT_EQ(Sessions(*ListNow(*store_, "set", (*all)[0].expires_ms - 1)).size(), 3u);
  EXPECT_THAT(*ListNow(*store_, "set", (*all)[2].expires_ms), IsEmpty());
  EXPECT_THAT(*ListNow(*store_, "another set"), IsEmpty());

  StoreWrite write = MakeWrite(2, 1, 2);  // renewed: it goes to the end
  write.expiry = absl::Hours(4);
  write.sets = {{"set", 10}};
  Write(write);
  EXPECT_THAT(Members("set"), ElementsAre(SessionName(3), SessionName(1), SessionName(2)));
}

TEST_P(SessionStoreContract, AListIsContinuedWithoutAGapWhereMembersExpireTogether) {
  constexpr int kSessions = 40;
  OnThreads(4, [&](int thread) {
    for (int i = thread; i < kSessions; i += 4) {
      StoreWrite write = MakeWrite(1 + i, 0, 1);
      write.sets = {{"set", 1000}};
      const auto answer = WriteNow(*store_, write);
      EXPECT_TRUE(answer.ok() && answer->kind == Kind::kDone);
    }
  });
  const auto all = ListNow(*other_, "set");
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), static_cast<size_t>(kSessions));
  EXPECT_TRUE(std::is_sorted(all->begin(), all->end(), [](const auto& a, const auto& b) {
    return a.expires_ms < b.expires_ms;
  }));
  for (const int64_t count : {1, 3, 7, 39, 40, 41}) {
    std::multiset<std::string> seen;
    int64_t after = 0;
    for (int pages = 0; pages <= kSessions; ++pages) {
      const auto page = ListNow(*store_, "set", after, count);
      ASSERT_TRUE(page.ok()) << page.status();
      if (page->empty()) break;
      const auto first = std::find_if(all->begin(), all->end(),
                                      [&](const auto& m) { return m.expires_ms > after; });
      auto last = first + std::min<int64_t>(count, all->end() - first);
      while (last != all->end() && last->expires_ms == (last - 1)->expires_ms) ++last;
      EXPECT_EQ(page->size(), static_cast<size_t>(last - first)) << count << " after " << after;
      for (const auto& member : *page) seen.insert(member.session);
      after = page->back().expires_ms;
    }
    const std::vector<std::string> names = Sessions(*all);
    EXPECT_EQ(seen, std::multiset<std::string>(names.begin(), names.end())) << count;
  }
}

TEST_P(SessionStoreContract, AnyBytesAreTheNameOfASet) {
  const std::vector<std::string> names = {"",
                                          "a",
                                          "A",
                                          "a/b",
                                          "a:b",
                                          ".",
                                          "..",
                                          "/",
                                          "{a}",
                                          "*",
                                          "a ",
                                          "a\n",
                                          "a%2f",
                                          "\xff\xfe",
                                          std::string("a\0b", 3),
                                          std::string("a\0", 2),
                                          std::string(1000, 'n'),
                                          std::string(1000, 'n') + "o"};
  for (size_t i = 0; i < names.size(); ++i) {
    StoreWrite write = MakeWrite(static_cast<int>(i) + 1, 0, 1);
    write.sets = {{names[i], 1}};
    Write(write);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_THAT(Members(names[i]), ElementsAre(SessionName(static_cast<int>(i) + 1)))
        << "set " << i;
  }
}

TEST_P(SessionStoreContract, TheStoreHasAnIdUntilItIsEmptied) {
  const std::string id = Read(1, Kind::kMissing).store_id;
  EXPECT_THAT(id, Not(IsEmpty()));
  StoreWrite write = MakeWrite(1, 0, 1);
  write.sets = {{"set", 1}};
  write.chunks = {{ChunkId(1), "tokens"}};
  EXPECT_EQ(Write(write).store_id, id);
  EXPECT_EQ(Write(write, Kind::kClaimMismatch).store_id, id);
  write = MakeWrite(2, 0, 1);
  write.sets = {{"set", 1}};
  EXPECT_EQ(Write(write, Kind::kFull).store_id, id);
  EXPECT_EQ(Write(MakeWrite(3, 1, 2), Kind::kMissing).store_id, id);
  store_ = nullptr;
  store_ = backing_->Open();
  EXPECT_EQ(Read(1).store_id, id);

  backing_->Empty();
  const StoreAnswer answer = Read(1, Kind::kMissing);
  EXPECT_THAT(answer.store_id, Not(IsEmpty()));
  EXPECT_NE(answer.store_id, id);
  EXPECT_THAT(Members("set"), IsEmpty());
  EXPECT_THAT(Chunks({ChunkId(1)}), ElementsAre(""));
  EXPECT_EQ(Write(MakeWrite(1, 1, 2), Kind::kMissing).store_id, answer.store_id);
  EXPECT_EQ(Write(write).store_id, answer.store_id) << "there is room again";
}

TEST_P(SessionStoreContract, OneOfManyEqualWritesWinsEachRound) {
  constexpr int kThreads = 6, kRounds = 40;
  const auto third = backing_->Open();
  SessionStore* const stores[] = {store_.get(), other_.get(), third.get()};
  int current = 0;  // 0: it is created in the first round
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> won = 0, winner = 0;
    std::vector<std::string> found(kThreads);
    OnThreads(kThreads, [&](int thread) {
      const int claim = 1 + round * kThreads + thread;
      const auto answer = WriteNow(*stores[thread % 3], MakeWrite(1, current, claim));
      ASSERT_TRUE(answer.ok()) << answer.status();
      if (answer->kind == Kind::kDone) {
        ++won;
        winner = claim;
      } else {
        EXPECT_EQ(answer->kind, Kind::kClaimMismatch);
        found[static_cast<size_t>(thread)] = answer->found.claim;
      }
    });
    ASSERT_EQ(won, 1) << "round " << round;
    for (const std::string& claim : found) {
      EXPECT_TRUE(claim.empty() || claim == ClaimOf(winner));
    }
    current = winner;
    EXPECT_EQ(Read(1).found.claim, ClaimOf(current));
  }
}

TEST_P(SessionStoreContract, NoUpdateIsLostInAThousandRounds) {
  constexpr int kThreads = 4, kEach = 250;
  const auto third = backing_->Open();
  SessionStore* const stores[] = {store_.get(), other_.get(), third.get()};
  Write(MakeWrite(1, 0, 1, "0"));
  OnThreads(kThreads, [&](int thread) {
    SessionStore& store = *stores[thread % 3];
    auto seen = ReadNow(store, SessionName(1));
    for (int done = 0, tries = 0; done < kEach; ++tries) {
      ASSERT_TRUE(seen.ok()) << seen.status();
      int value = 0;
      ASSERT_TRUE(absl::SimpleAtoi(seen->found.bytes, &value));
      StoreWrite write = MakeWrite(1, 0, 100 + thread + kThreads * tries, absl::StrCat(value + 1));
      write.expected = seen->found.claim;
      StoreAnswer mine;
      mine.found = write.record;
      seen = WriteNow(store, write);
      if (seen.ok() && seen->kind == Kind::kDone) {
        ++done;
        seen = mine;
      }
    }
  });
  EXPECT_EQ(Read(1).found.bytes, absl::StrCat(kThreads * kEach));
}

TEST_P(SessionStoreContract, DestructionAnswersEveryCallOnce) {
  constexpr int kCalls = 100;
  struct Counts {
    std::atomic<int> calls = 0, wrong = 0;
    std::atomic<int> each[4 * kCalls] = {};
  };
  const auto counts = std::make_shared<Counts>();
  const auto count = [counts](int call) {
    return [counts, call](const auto& answer) {
      ++counts->calls;
      if (++counts->each[call] != 1) ++counts->wrong;
      if (!answer.ok() && answer.status().code() != absl::StatusCode::kUnavailable) {
        ++counts->wrong;
      }
    };
  };
  for (int i = 0; i < kCalls; ++i) {
    StoreWrite write = MakeWrite(i + 1, 0, 1);
    write.sets = {{"set", 1000}};
    store_->Write(write, count(4 * i));
    store_->Read(SessionName(i + 1), count(4 * i + 1));
    store_->ReadChunks({ChunkId(1)}, count(4 * i + 2));
    store_->List("set", 0, 10, count(4 * i + 3));
  }
  store_ = nullptr;
  EXPECT_EQ(counts->calls, 4 * kCalls);
  EXPECT_EQ(counts->wrong, 0);
  // What was written is whole: a session is a member where it has a record. It is awaited, because
  // writes that were sent may be carried out while this reads.
  Await([&] {
    const std::vector<std::string> members = Members("set");
    const std::set<std::string> inside(members.begin(), members.end());
    std::set<std::string> written;
    for (int i = 1; i <= kCalls; ++i) {
      const auto answer = ReadNow(*other_, SessionName(i));
      if (answer.ok() && answer->kind == Kind::kDone) written.insert(SessionName(i));
    }
    return written == inside;
  });
}

}  // namespace
}  // namespace rivulet
