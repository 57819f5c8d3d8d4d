// SPDX-License-Identifier: Apache-2.0
// How many sessions a SessionTable holds, in all and of one tenant, and what a refusal says.
#include <gtest/gtest.h>

#include "model/base/error.h"
#include "server/sessions/session_table.h"

namespace rivulet {
namespace {

class SessionLimitsTest : public ::testing::Test {
 protected:
  void Start(int max_open_sessions, int max_tenant_sessions) {
    SessionLimits limits;
    limits.max_open_sessions = max_open_sessions;
    limits.max_tenant_sessions = max_tenant_sessions;
    table_.emplace(limits, /*with_bos=*/true, &states_);
  }
  // Opens one session after another until one is refused; how many.
  int OpenAll(const std::string& tenant, absl::Duration idle = absl::Hours(24)) {
    int opened = 0;
    while (table_->Open(tenant, idle, now_).ok()) ++opened;
    return opened;
  }
  struct Refusal {
    std::string reason;
    absl::Duration retry_after;
    std::string message;
  };
  Refusal CheckLimits(const std::string& tenant, int count = 1, const KeyShare& key = {}) const {
    const absl::Status status = table_->CheckLimits(tenant, count, now_, key);
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    const ErrorDetail detail = GetErrorDetail(status);
    return {detail.reason, detail.retry_after, std::string(status.message())};
  }
  // Nobody looks into it.
  LiveRequest* AnyRequest() { return reinterpret_cast<LiveRequest*>(&states_); }

  StateStore states_{{}, {}, {}, {}, [] {}};
  std::optional<SessionTable> table_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(SessionLimitsTest, ATenantThatTakesAllItCanGetLeavesRoomForOthers) {
  Start(1000, 0);
  EXPECT_EQ(OpenAll("greedy"), 875);
  EXPECT_EQ(CheckLimits("greedy").reason, "TENANT_SESSION_LIMIT");
  EXPECT_EQ(CheckLimits("newcomer").reason, "");
  EXPECT_GT(OpenAll("another"), 50);
  EXPECT_GT(OpenAll("a third"), 0);
  EXPECT_EQ(CheckLimits("newcomer").reason, "");
  EXPECT_LT(table_->size(), 1000);
}

TEST_F(SessionLimitsTest, AFixedLimitCountsForEachTenant) {
  Start(10, 3);
  EXPECT_EQ(OpenAll("a"), 3);
  EXPECT_EQ(OpenAll("b"), 3);
  EXPECT_EQ(CheckLimits("c", 4).reason, "TENANT_SESSION_LIMIT");
  EXPECT_EQ(CheckLimits("c", 3).reason, "");
  EXPECT_EQ(CheckLimits("c", 5).reason, "SESSION_LIMIT") << "of all";
  EXPECT_EQ(CheckLimits("a").message,
            "the tenant has 3 open sessions and asks for 1 more; it may now have 3 of 10. Close "
            "sessions that are not needed, or open them with a shorter idle_timeout.");
}

TEST_F(SessionLimitsTest, EndedSessionsCountNoMore) {
  Start(10, 3);
  Session* const closed = *table_->Open("a", absl::Hours(1), now_);
  OpenAll("a", absl::Seconds(5));
  table_->Close(closed);
  EXPECT_EQ(CheckLimits("a").reason, "");
  EXPECT_EQ(CheckLimits("a", 2).reason, "TENANT_SESSION_LIMIT");
  now_ += absl::Seconds(5);
  table_->Expire(now_);
  EXPECT_EQ(table_->size(), 0);
  EXPECT_EQ(CheckLimits("a", 3).reason, "");
}

TEST_F(SessionLimitsTest, WhatMayBeForkedAtOnceCanThenBeOpenedOneByOne) {
  Start(1000, 0);
  OpenAll("greedy");
  int most = 0;
  while (CheckLimits("a", most + 1).reason.empty()) ++most;
  EXPECT_EQ(OpenAll("a"), most);
}

TEST_F(SessionLimitsTest, ARefusalSaysWhenEnoughOfThoseThatCountWillHaveExpired) {
  Start(6, 4);
  *table_->Open("a", absl::Seconds(7), now_);
  *table_->Open("a", absl::Seconds(9), now_);
  Session* const busy = *table_->Open("a", absl::Seconds(5), now_);
  *table_->Open("a", absl::Hours(2), now_);
  *table_->Open("b", absl::Seconds(1), now_);
  EXPECT_TRUE(*table_->Enter(busy, AnyRequest()));
  // Of its own, those that nobody uses: the first ends after 7 s, the second after 9 s.
  EXPECT_EQ(CheckLimits("a", 1).retry_after, absl::Seconds(7));
  now_ += absl::Seconds(3);
  EXPECT_EQ(CheckLimits("a", 1).retry_after, absl::Seconds(4));
  table_->Release(busy, now_);
  EXPECT_EQ(CheckLimits("a", 1).retry_after, absl::Seconds(4)) << "after 7 s";
  *table_->Open("b", absl::Seconds(100), now_);
  const Refusal of_all = CheckLimits("b", 1);
  EXPECT_EQ(of_all.reason, "SESSION_LIMIT");
  EXPECT_EQ(of_all.retry_after, absl::Milliseconds(100)) << "b's own has expired already";
  EXPECT_EQ(CheckLimits("b", 4).retry_after, absl::Seconds(6)) << "1, 7, 8 and 9 s after the start";
  EXPECT_EQ(CheckLimits("b", 6).retry_after, absl::ZeroDuration()) << "not within two hours";
  EXPECT_EQ(CheckLimits("b", 7).retry_after, absl::ZeroDuration()) << "never";
}

TEST_F(SessionLimitsTest, NothingIsPromisedWhereNothingEndsSoon) {
  Start(3, 0);
  OpenAll("a");
  const Refusal refused = CheckLimits("b");
  EXPECT_EQ(refused.reason, "SESSION_LIMIT");
  EXPECT_EQ(refused.retry_after, absl::ZeroDuration());
  EXPECT_EQ(refused.message,
            "3 sessions are open and 1 more are asked for; 3 are allowed. Close sessions that are "
            "not needed, or open them with a shorter idle_timeout.");
}

TEST_F(SessionLimitsTest, AKeyHasALimitOfItsOwnBesideThatOfItsTenant) {
  Start(100, 5);
  const KeyShare two{.key = "k", .most = 2}, other{.key = "other", .most = 9};
  const auto open = [&](const KeyShare& key, absl::Duration idle) {
    return table_->Open("a", idle, now_, key);
  };
  EXPECT_EQ(CheckLimits("a", 3, two).reason, "API_KEY_SESSION_LIMIT");
  Session* const first = *open(two, absl::Seconds(7));
  Session* const second = *open(two, absl::Seconds(9));
  const Refusal refused = CheckLimits("a", 1, two);
  EXPECT_EQ(refused.reason, "API_KEY_SESSION_LIMIT");
  EXPECT_EQ(refused.retry_after, absl::Seconds(7));
  EXPECT_EQ(refused.message,
            "the key has 2 open sessions and asks for 1 more; it may have 2. Close sessions that "
            "are not needed, or open them with a shorter idle_timeout.");
  EXPECT_EQ(CheckLimits("a", 3).reason, "") << "who has no key";
  EXPECT_EQ(CheckLimits("a", 3, other).reason, "");
  EXPECT_EQ(CheckLimits("a", 4, other).reason, "TENANT_SESSION_LIMIT") << "the tighter one counts";
  EXPECT_TRUE(*table_->Enter(first, AnyRequest()));
  EXPECT_EQ(CheckLimits("a", 1, two).retry_after, absl::Seconds(9)) << "the first is in use";
  now_ += absl::Seconds(3);
  table_->Release(first, now_);
  EXPECT_EQ(CheckLimits("a", 1, two).retry_after, absl::Seconds(6)) << "of the second";
  EXPECT_EQ(open(two, absl::Seconds(1)).status().code(), absl::StatusCode::kResourceExhausted);
  table_->Close(second);
  EXPECT_EQ(CheckLimits("a", 1, two).reason, "");
  now_ += absl::Seconds(7);
  table_->Expire(now_);
  EXPECT_EQ(CheckLimits("a", 2, two).reason, "");
  EXPECT_EQ(CheckLimits("a", 1, {.key = "k", .most = 1}).reason, "");
  ASSERT_TRUE(open(two, absl::Hours(1)).ok());
  EXPECT_EQ(CheckLimits("a", 1, {.key = "k", .most = 1}).reason, "API_KEY_SESSION_LIMIT")
      << "a limit that was lowered";
}

}  // namespace
}  // namespace rivulet
