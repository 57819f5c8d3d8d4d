// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session.h"

#include <gtest/gtest.h>

#include <set>

#include "server/sessions/session_table.h"

namespace rivulet {
namespace {

SessionLimits SmallLimits() {
  SessionLimits limits;
  limits.max_open_sessions = 3;
  return limits;
}

TEST(SessionIdTest, TextFormIsThirtyTwoLowerCaseHexadecimalDigits) {
  const SessionId id{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(id.ToString(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(SessionId::Parse(id.ToString()), id);
  for (const char* bad :
       {"", "0123", "0123456789ABCDEFFEDCBA9876543210", "0123456789abcdeffedcba987654321g",
        "0123456789abcdeffedcba98765432100", "00000000000000000000000000000000"}) {
    EXPECT_EQ(SessionId::Parse(bad), std::nullopt) << bad;
  }
}

TEST(SessionIdTest, RandomIdsDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(SessionId::Random().ToString());
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(TokenHistoryTest, HashIsFnv1aOverFourBytesOfEachIdAndFollowsTruncation) {
  TokenHistory history;
  EXPECT_EQ(history.hash(), 0xcbf29ce484222325u);
  history.Append(97, false);
  // FNV-1a of the bytes 61 00 00 00, computed by hand from the published constants.
  uint64_t want = 0xcbf29ce484222325u;
  for (const uint64_t byte : {0x61u, 0u, 0u, 0u}) want = (want ^ byte) * 0x100000001b3u;
  EXPECT_EQ(history.hash(), want);
  history.Append(300, true);
  EXPECT_NE(history.hash(), want);
  history.Truncate(1);
  EXPECT_EQ(history.hash(), want);
  EXPECT_FALSE(history.generated(0));
}

class SessionTableTest : public ::testing::Test {
 protected:
  StateStore states_{{}, {}, {}, {}, [] {}};
  SessionTable table_{SmallLimits(), /*with_bos=*/true, &states_};
  const absl::Time start_ = absl::FromUnixSeconds(1000);

  Session* Open(const std::string& tenant = "a") {
    return *table_.Open(tenant, absl::Seconds(10), start_);
  }
  // Nobody looks into it.
  LiveRequest* AnyRequest() { return reinterpret_cast<LiveRequest*>(&states_); }
  KeptCheckpoint State(int64_t fed) { return {fed, states_.Keep({1, 2, 3, 4})}; }
};

TEST_F(SessionTableTest, FindsASessionForItsTenantOnly) {
  const Session* session = Open("a");
  EXPECT_EQ(*table_.Find(session->id, "a"), session);
  for (const absl::StatusOr<Session*>& none :
       {table_.Find(session->id, "b"), table_.Find(session->id, ""), table_.Find({1, 2}, "a")}) {
    EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(table_.Of("a").size(), 1u);
  EXPECT_TRUE(table_.Of("b").empty());
}

TEST_F(SessionTableTest, ErasesWhatWasIdleForTooLongButNothingBusy) {
  Session* idle = Open();
  Session* used = Open();
  Session* busy = Open();
  EXPECT_TRUE(*table_.Enter(busy, AnyRequest()));
  table_.Expire(start_ + absl::Seconds(9));
  EXPECT_EQ(table_.size(), 3);
  EXPECT_TRUE(*table_.Enter(used, AnyRequest()));
  table_.Release(used, start_ + absl::Seconds(5));
  EXPECT_EQ(table_.next_expiry(), start_ + absl::Seconds(10));
  table_.Expire(start_ + absl::Seconds(10));
  EXPECT_EQ(table_.size(), 2);
  EXPECT_EQ(table_.Of("a").front(), busy);
  EXPECT_EQ(table_.next_expiry(), start_ + absl::Seconds(15));
  table_.Release(busy, start_ + absl::Seconds(20));
  table_.Expire(start_ + absl::Seconds(30));
  EXPECT_EQ(table_.size(), 0);
  EXPECT_EQ(table_.next_expiry(), absl::InfiniteFuture());
  (void)idle;
}

TEST_F(SessionTableTest, AForgottenStateIsNoneToGoOnFrom) {
  StateStore small{StateLimits{4 * 4 * 2, 0, 0}, {}, {}, {}, [] {}};  // two states of four floats
  Session session{{1, 1}, "a", /*with_bos=*/true, 1};
  for (int i = 0; i < 10; ++i) session.history.Append(i, false);
  for (const int64_t fed : {1, 2, 3}) session.Keep({fed, small.Keep({1, 2, 3, 4})});
  EXPECT_EQ(session.From(1).fed, 0);
  EXPECT_EQ(session.From(2).fed, 2);
  EXPECT_FALSE(session.Keeps(1));
  EXPECT_TRUE(session.Keeps(3));
  EXPECT_EQ(session.Info(start_).state_bytes, 32);
  session.Keep({1, small.Keep({1, 2, 3, 4})});
  EXPECT_EQ(session.From(1).fed, 1) << "it was computed again";
}

TEST_F(SessionTableTest, AStateSharedByForksIsCountedOnce) {
  Session* parent = Open();
  parent->Keep(State(1));
  Open()->CopyFrom(*parent);
  EXPECT_EQ(states_.totals().memory_bytes, 16);
  table_.Close(parent);
  EXPECT_EQ(states_.totals().memory_bytes, 16);
}

TEST_F(SessionTableTest, GoesOnFromTheLatestCheckpointThatFits) {
  Session* session = Open();
  for (int i = 0; i < 10; ++i) session->history.Append(i, false);
  session->Keep(State(3));
  session->Keep(State(8));
  EXPECT_EQ(session->From(7).fed, 3);
  EXPECT_EQ(session->From(8).fed, 8);
  EXPECT_EQ(session->From(2).fed, 0);
  EXPECT_EQ(session->From(2).state, nullptr);
  session->Rewind(6);  // seven fed tokens, the bos counted
  EXPECT_EQ(session->From(100).fed, 3);
}

TEST_F(SessionTableTest, KeepsFewCheckpointsButThoseThatMarksNeed) {
  Session* session = Open();
  for (int i = 0; i < 40; ++i) {
    session->history.Append(i, false);
    if (i == 4) session->Mark("early");  // position 5: six fed tokens, five before the last
    session->Keep(State(session->total() - 1));
  }
  EXPECT_EQ(session->From(39).fed, 39);
  EXPECT_EQ(session->From(30).fed, 6);
  EXPECT_EQ(session->From(5).fed, 5);
  EXPECT_EQ(session->From(4).fed, 0);
  session->Rewind(4);
  EXPECT_TRUE(session->marks().empty());
}

TEST_F(SessionTableTest, GoingBackFeedsFewTokensAgainAndFewStatesAreKept) {
  constexpr int64_t kInterval = 10, kLength = 20000;
  Session session{{1, 1}, "a", /*with_bos=*/true, kInterval};
  for (int64_t i = 0; i < kLength; ++i) {
    session.history.Append(1, true);
    if (session.total() % kInterval == 0) session.Keep(State(session.total()));
  }
  for (int64_t fed = 0; fed <= session.total(); ++fed) {
    const int64_t again = fed - session.From(fed).fed;
    ASSERT_LE(again, std::max(kInterval, (session.total() - fed) / 2 + kInterval)) << fed;
  }
  EXPECT_LE(session.Info(start_).state_bytes, 40 * 16);
  EXPECT_EQ(states_.totals().memory_bytes, session.Info(start_).state_bytes);
}

}  // namespace
}  // namespace rivulet
