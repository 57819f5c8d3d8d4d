// SPDX-License-Identifier: Apache-2.0
// Whose turn it is on a session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/base/error.h"
#include "server/sessions/session_table.h"
#include "tests/unit/server/engine/loop/stub_request.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SessionTurnsTest : public ::testing::Test {
 protected:
  static SessionLimits Limits() {
    SessionLimits limits;
    limits.max_waiting = 2;
    return limits;
  }
  std::string ReasonOfFind() {
    return GetErrorDetail(table_.Find(session_->id, "tenant").status()).reason;
  }

  StateStore states_{{}, {}, {}, {}, [] {}};
  SessionTable table_{Limits(), /*with_bos=*/false, &states_};
  Session* const session_ = *table_.Open("tenant", absl::Minutes(1), kNow);
  StubRequest one_{1}, two_{2}, three_{3}, four_{4};
};

TEST_F(SessionTurnsTest, RequestsTakeTurnsInTheOrderOfTheirArrival) {
  EXPECT_TRUE(*table_.Enter(session_, &one_));
  EXPECT_FALSE(*table_.Enter(session_, &two_));
  EXPECT_FALSE(*table_.Enter(session_, &three_));
  EXPECT_EQ(session_->active, &one_);
  EXPECT_EQ(table_.Release(session_, kNow), &two_);
  EXPECT_EQ(session_->active, &two_);
  EXPECT_EQ(table_.Release(session_, kNow), &three_);
  EXPECT_EQ(table_.Release(session_, kNow + absl::Seconds(5)), nullptr);
  EXPECT_EQ(session_->active, nullptr);
  EXPECT_EQ(session_->last_used, kNow + absl::Seconds(5));
  EXPECT_TRUE(*table_.Enter(session_, &four_));
}

TEST_F(SessionTurnsTest, WhatEndsWhileItWaitsLosesItsTurn) {
  EXPECT_TRUE(*table_.Enter(session_, &one_));
  EXPECT_FALSE(*table_.Enter(session_, &two_));
  EXPECT_FALSE(*table_.Enter(session_, &three_));
  SessionTable::Leave(session_, &two_);
  EXPECT_EQ(table_.Release(session_, kNow), &three_);
}

TEST_F(SessionTurnsTest, AtMostSoManyWait) {
  EXPECT_TRUE(*table_.Enter(session_, &one_));
  EXPECT_FALSE(*table_.Enter(session_, &two_));
  EXPECT_FALSE(*table_.Enter(session_, &three_));
  const absl::Status refused = table_.Enter(session_, &four_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused).reason, "SESSION_BUSY");
  EXPECT_EQ(GetErrorDetail(refused).field, "session_id");
  EXPECT_GT(GetErrorDetail(refused).retry_after, absl::ZeroDuration());
  EXPECT_EQ(table_.Release(session_, kNow), &two_);
}

TEST_F(SessionTurnsTest, WhatIsBusyDoesNotExpire) {
  EXPECT_TRUE(*table_.Enter(session_, &one_));
  table_.Expire(kNow + absl::Hours(1));
  EXPECT_EQ(table_.size(), 1);
  EXPECT_EQ(table_.Release(session_, kNow), nullptr);
  table_.Expire(kNow + absl::Hours(1));
  EXPECT_EQ(table_.size(), 0);
}

TEST_F(SessionTurnsTest, ACloseEndsWhatWaitsAndThenWhatHasTheSession) {
  EXPECT_TRUE(*table_.Enter(session_, &one_));
  EXPECT_FALSE(*table_.Enter(session_, &two_));
  EXPECT_FALSE(*table_.Enter(session_, &three_));
  EXPECT_THAT(table_.Close(session_), ElementsAre(&two_, &three_, &one_));
  EXPECT_EQ(table_.size(), 1);  // until the one that has it lets go
  EXPECT_EQ(ReasonOfFind(), "SESSION_NOT_FOUND");
  SessionTable::Leave(session_, &two_);
  SessionTable::Leave(session_, &three_);
  EXPECT_EQ(table_.Release(session_, kNow), nullptr);
  EXPECT_EQ(table_.size(), 0);
}

TEST_F(SessionTurnsTest, AnIdleSessionIsClosedAtOnce) {
  EXPECT_THAT(table_.Close(session_), IsEmpty());
  EXPECT_EQ(table_.size(), 0);
}

}  // namespace
}  // namespace rivulet
