// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_session_store.h"

#include <gmock/gmock.h>

#include "tests/unit/server/sessions/session_store_contract.h"

namespace rivulet {
namespace {

using Kind = StoreAnswer::Kind;

// By a clock that goes on when a test says so.
class MemoryBacking final : public StoreBacking {
 public:
  std::unique_ptr<SessionStore> Open() override {
    return std::make_unique<MemoryStoreThread>(&server_);
  }
  void Empty() override { server_.Empty(); }
  void Pass(absl::Duration time) override { now_ms_ += absl::ToInt64Milliseconds(time); }

 private:
  std::atomic<int64_t> now_ms_ = 1'800'000'000'000;
  MemoryStoreServer server_{[this] { return absl::FromUnixMillis(now_ms_); }};
};

INSTANTIATE_TEST_SUITE_P(Memory, SessionStoreContract,
                         ::testing::Values(StoreCase{
                             "Memory", [] { return std::make_unique<MemoryBacking>(); }}),
                         NameOfCase);

struct MemorySessionStoreTest : public ::testing::Test {
  MemoryStoreServer server;
  MemorySessionStore store{&server};
  std::vector<absl::StatusOr<StoreAnswer>> answers;

  SessionStore::Done Collect() {
    return [this](absl::StatusOr<StoreAnswer> answer) { answers.push_back(std::move(answer)); };
  }
  std::string ClaimInServer() { return server.Read(SessionName(1))->found.claim; }
};

TEST_F(MemorySessionStoreTest, AnswersWhenItIsToldTo) {
  store.Write(MakeWrite(1, 0, 1), Collect());
  store.Read(SessionName(1), Collect());
  EXPECT_EQ(store.pending(), 2u);
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(ClaimInServer(), "");
  EXPECT_TRUE(store.Deliver());
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0]->kind, Kind::kDone);
  EXPECT_TRUE(store.Deliver());
  EXPECT_EQ(answers[1]->found.claim, ClaimOf(1));
  EXPECT_FALSE(store.Deliver());
}

TEST_F(MemorySessionStoreTest, LosesRequestsAndAnswers) {
  store.Write(MakeWrite(1, 0, 1), Collect());
  store.Deliver(StoreFate::kRequestLost);
  EXPECT_EQ(answers.back().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ClaimInServer(), "");
  store.Write(MakeWrite(1, 0, 2), Collect());
  store.Deliver(StoreFate::kAnswerLost);
  EXPECT_EQ(answers.back().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ClaimInServer(), ClaimOf(2));
}

TEST_F(MemorySessionStoreTest, AWriteHappensLateOrTwice) {
  store.Write(MakeWrite(1, 0, 1), Collect());
  store.Deliver(StoreFate::kRequestLost);
  ASSERT_EQ(server.writes(), 1u);
  server.Repeat(0);
  EXPECT_EQ(ClaimInServer(), ClaimOf(1));
  store.Write(MakeWrite(1, 1, 2), Collect());
  store.Deliver();
  server.Repeat(0);
  EXPECT_EQ(ClaimInServer(), ClaimOf(2)) << "what comes too late changes nothing";
}

TEST_F(MemorySessionStoreTest, GoesBackToAnEarlierImage) {
  store.Write(MakeWrite(1, 0, 1), Collect());
  store.Deliver();
  const MemoryStoreImage image = server.Image();
  store.Write(MakeWrite(1, 1, 2), Collect());
  store.Deliver();
  const std::string id = answers.back()->store_id;
  server.Restore(image);
  EXPECT_EQ(ClaimInServer(), ClaimOf(1));
  EXPECT_EQ(server.Read(SessionName(1))->store_id, id) << "nobody can tell by the id";
}

TEST_F(MemorySessionStoreTest, AFullStoreTakesNoNewSession) {
  store.Write(MakeWrite(1, 0, 1), Collect());
  store.Deliver();
  server.SetMostRecords(1);
  store.Write(MakeWrite(2, 0, 1), Collect());
  store.Deliver();
  EXPECT_EQ(answers.back().status().code(), absl::StatusCode::kResourceExhausted);
  store.Write(MakeWrite(1, 1, 2), Collect());
  store.Deliver();
  EXPECT_EQ(answers.back()->kind, Kind::kDone);
}

}  // namespace
}  // namespace rivulet
