// SPDX-License-Identifier: Apache-2.0
// The bytes of shared sessions, and the chunks in which their tokens lie.
#include "server/sessions/replicated/session_record.h"

#include <gtest/gtest.h>

#include <map>

#include "model/base/error.h"

namespace rivulet {
namespace {

TokenHistory HistoryOf(int64_t size) {
  TokenHistory history;
  for (int64_t i = 0; i < size; ++i) history.Append(static_cast<int32_t>(i * 7 % 50), i % 3 == 0);
  return history;
}

SessionRecord Full() {
  SessionRecord record;
  record.model_name = "m";
  record.weights_sha256 = "aa";
  record.config_sha256 = "bb";
  record.numerics_id = "cpu";
  record.tenant = "t";
  record.key = "k";
  record.epoch = 9;
  record.position = 5;
  record.sequence_hash = 11;
  record.seed = 12;
  record.marks = {{"a", 0}, {"b", 5}};
  record.idle_timeout = absl::Seconds(7);
  record.abandoned_from = 3;
  record.request = 13;
  record.written = absl::FromUnixMillis(1234);
  record.chunks = {{"c1", 3}, {"c2", 2}};
  record.owns_chunks = true;
  record.states = {2, 6};  // after all tokens and the bos
  return record;
}

TEST(SessionRecordTest, BytesHoldAllOfIt) {
  const std::string bytes = EncodeRecord(Full());
  const absl::StatusOr<SessionRecord> read = DecodeRecord(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(EncodeRecord(*read), bytes);
  EXPECT_EQ(read->chunks, Full().chunks);
  EXPECT_EQ(read->request, Full().request);
  EXPECT_EQ(read->states, Full().states);
  EXPECT_TRUE(read->owns_chunks);
  SessionRecord empty = Full();
  empty.abandoned_from.reset();
  empty.request.reset();
  const auto without = DecodeRecord(EncodeRecord(empty));
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE(without->abandoned_from || without->request);
}

TEST(SessionRecordTest, DamageIsFoundAtEveryByte) {
  const std::string bytes = EncodeRecord(Full());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(DecodeRecord(damaged).status().code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_EQ(DecodeRecord(bytes.substr(0, i)).status().code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST(SessionRecordTest, PartsThatContradictEachOtherAreRefused) {
  const auto refused = [](auto change) {
    SessionRecord record = Full();
    change(&record);
    return GetErrorDetail(DecodeRecord(EncodeRecord(record)).status()).reason ==
           "SESSION_RECORD_DAMAGED";
  };
  EXPECT_TRUE(refused([](SessionRecord* r) { r->position = 6; })) << "chunks end before it";
  EXPECT_TRUE(refused([](SessionRecord* r) { r->marks["c"] = 6; }));
  EXPECT_TRUE(refused([](SessionRecord* r) { r->marks["\xff"] = 1; })) << "no client can read it";
  EXPECT_TRUE(refused([](SessionRecord* r) { r->numerics_id = "\xff"; }))
      << "no client can read it";
  EXPECT_TRUE(refused([](SessionRecord* r) {
    for (int i = 0; i < 20'000; ++i) r->marks[std::to_string(i)] = 1;
  }));
  EXPECT_TRUE(refused([](SessionRecord* r) { r->states = {7}; }));
  EXPECT_TRUE(refused([](SessionRecord* r) { r->states = {0}; }));
  EXPECT_TRUE(refused([](SessionRecord* r) { r->states = {3, 3}; }));
  EXPECT_TRUE(refused([](SessionRecord* r) { r->abandoned_from = -1; }));
  EXPECT_TRUE(refused([](SessionRecord* r) { r->chunks[0].tokens = INT64_MAX; }));
  EXPECT_TRUE(refused([](SessionRecord* r) { r->idle_timeout = absl::ZeroDuration(); }));
  EXPECT_FALSE(refused([](SessionRecord* r) {
    r->position = INT64_MAX;
    r->chunks = {{"c", INT64_MAX}};
  })) << "no sum overflows";
  SessionRecord closed = Full();
  closed.closed = true;
  closed.chunks.clear();
  EXPECT_TRUE(DecodeRecord(EncodeRecord(closed)).ok()) << "a tombstone needs no tokens";
}

// A store of chunks that covers a history as it grows.
class Chunks {
 public:
  void Cover(const TokenHistory& history) {
    std::vector<StoreChunk> written;
    CoverTokens(history, "t", &uses, &written);
    for (StoreChunk& chunk : written) {
      tokens_written += static_cast<int64_t>(chunk.bytes.size()) / 4;
      bytes[chunk.id] = std::move(chunk.bytes);
    }
  }
  TokenHistory Read() const {
    TokenHistory history;
    for (const ChunkUse& use : uses) {
      EXPECT_TRUE(AppendTokens(use, bytes.at(use.id), "t", &history).ok());
    }
    return history;
  }
  std::vector<ChunkUse> uses;
  std::map<std::string, std::string> bytes;
  int64_t tokens_written = 0;
};

TEST(SessionRecordTest, ChunksHoldTheTokensHoweverTheyCame) {
  Chunks chunks;
  TokenHistory history;
  for (int64_t step = 1; step <= 300; ++step) {
    for (int64_t i = 0; i < step % 17; ++i) {
      history.Append(static_cast<int32_t>(history.size() % 50), i % 2 == 0);
    }
    chunks.Cover(history);
    ASSERT_EQ(chunks.Read().hash(), history.hash()) << step;
  }
  const TokenHistory read = chunks.Read();
  for (int64_t i = 0; i < history.size(); ++i) {
    ASSERT_EQ(read.generated(i), history.generated(i)) << i;
  }
  EXPECT_LE(chunks.uses.size(), 16u) << "of " << history.size() << " tokens in 300 writes";
  EXPECT_LE(chunks.tokens_written, 16 * history.size());
}

TEST(SessionRecordTest, ALongHistoryIsCutIntoChunks) {
  Chunks chunks;
  const TokenHistory history = HistoryOf(200'000);
  chunks.Cover(history);
  EXPECT_EQ(chunks.uses.size(), 4u);
  for (const auto& [id, bytes] : chunks.bytes) EXPECT_LT(bytes.size(), size_t{1} << 20);
  EXPECT_EQ(chunks.Read().hash(), history.hash());
}

TEST(SessionRecordTest, ARewoundSessionUsesLessOfItsChunks) {
  Chunks chunks;
  TokenHistory history = HistoryOf(100);
  chunks.Cover(history);
  const auto before = chunks.uses;
  history.Truncate(40);
  chunks.uses = FirstTokens(before, 40);
  for (int i = 0; i < 10; ++i) history.Append(49, false);
  chunks.Cover(history);
  EXPECT_EQ(chunks.Read().hash(), history.hash());
  EXPECT_EQ(CommonTokens(before, chunks.uses), 40);
  EXPECT_EQ(CommonTokens(before, before), 100);
}

TEST(SessionRecordTest, AWrongChunkIsRefused) {
  const TokenHistory history = HistoryOf(20);
  const std::string bytes = EncodeTokens(history, 0, 10, "t");
  TokenHistory read;
  EXPECT_FALSE(AppendTokens({"c", 11}, bytes, "t", &read).ok()) << "it has ten";
  EXPECT_FALSE(AppendTokens({"c", 10}, bytes, "u", &read).ok()) << "another tenant's";
  EXPECT_FALSE(AppendTokens({"c", 10}, "", "t", &read).ok());
  EXPECT_TRUE(AppendTokens({"c", 4}, bytes, "t", &read).ok());
  EXPECT_FALSE(AppendTokens({"c", 10}, bytes, "t", &read).ok()) << "it begins at 0, not at 4";
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(AppendTokens({"c", 10}, bytes.substr(0, i), "t", &read).ok());
  }
  EXPECT_EQ(read.size(), 4) << "what is refused adds nothing";
}

}  // namespace
}  // namespace rivulet
