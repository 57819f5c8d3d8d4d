// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/session_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "model/base/error.h"
#include "tests/unit/server/engine/loop/stub_request.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SessionGateTest : public ::testing::Test {
 protected:
  static SessionLimits Limits() {
    SessionLimits limits;
    limits.max_waiting = 2;
    return limits;
  }
  void SetUp() override {
    session_ = *gate_.table()->Open("tenant", absl::Minutes(1), kNow);
    for (StubRequest* request : {&one_, &two_, &three_, &four_}) {
      request->session_ref = {session_->id, "tenant", std::nullopt, ""};
    }
  }

  StateStore states_{{}, {}, {}, [] {}};
  SessionGate gate_{Limits(), /*with_bos=*/false, &states_};
  Session* session_ = nullptr;
  StubRequest one_{1}, two_{2}, three_{3}, four_{4};
};

TEST_F(SessionGateTest, ARequestWithoutASessionGoesAtOnce) {
  one_.session_ref.reset();
  EXPECT_TRUE(*gate_.Enter(&one_));
  EXPECT_FALSE(SessionGate::HasTurn(one_));
  EXPECT_EQ(session_->active, nullptr);
}

TEST_F(SessionGateTest, RequestsTakeTurnsInTheOrderOfTheirArrival) {
  EXPECT_TRUE(*gate_.Enter(&one_));
  EXPECT_EQ(one_.session, session_);
  EXPECT_FALSE(*gate_.Enter(&two_));
  EXPECT_FALSE(*gate_.Enter(&three_));
  EXPECT_TRUE(SessionGate::HasTurn(one_));
  EXPECT_FALSE(SessionGate::HasTurn(two_));
  EXPECT_EQ(gate_.Release(session_, kNow), &two_);
  EXPECT_TRUE(SessionGate::HasTurn(two_));
  EXPECT_EQ(gate_.Release(session_, kNow), &three_);
  EXPECT_EQ(gate_.Release(session_, kNow + absl::Seconds(5)), nullptr);
  EXPECT_EQ(session_->active, nullptr);
  EXPECT_EQ(session_->last_used, kNow + absl::Seconds(5));
  EXPECT_TRUE(*gate_.Enter(&four_));
}

TEST_F(SessionGateTest, WhatEndsWhileItWaitsLosesItsTurn) {
  EXPECT_TRUE(*gate_.Enter(&one_));
  EXPECT_FALSE(*gate_.Enter(&two_));
  EXPECT_FALSE(*gate_.Enter(&three_));
  SessionGate::Leave(&two_);
  EXPECT_EQ(gate_.Release(session_, kNow), &three_);
}

TEST_F(SessionGateTest, AtMostSoManyWait) {
  EXPECT_TRUE(*gate_.Enter(&one_));
  EXPECT_FALSE(*gate_.Enter(&two_));
  EXPECT_FALSE(*gate_.Enter(&three_));
  const absl::Status refused = gate_.Enter(&four_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused).reason, "SESSION_BUSY");
  EXPECT_EQ(GetErrorDetail(refused).field, "session_id");
  EXPECT_GT(GetErrorDetail(refused).retry_after, absl::ZeroDuration());
  EXPECT_EQ(gate_.Release(session_, kNow), &two_);
}

TEST_F(SessionGateTest, ASessionOfAnotherTenantIsNotFound) {
  one_.session_ref->tenant = "other";
  EXPECT_EQ(GetErrorDetail(gate_.Enter(&one_).status()).reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(one_.session, nullptr);
  EXPECT_EQ(GetErrorDetail(gate_.Close(&one_).status()).reason, "SESSION_NOT_FOUND");
}

TEST_F(SessionGateTest, ACloseEndsWhatWaitsAndThenWhatHasTheSession) {
  EXPECT_TRUE(*gate_.Enter(&one_));
  EXPECT_FALSE(*gate_.Enter(&two_));
  EXPECT_FALSE(*gate_.Enter(&three_));
  EXPECT_THAT(*gate_.Close(&four_), ElementsAre(&two_, &three_, &one_));
  EXPECT_EQ(gate_.table()->size(), 1);  // until the one that has it lets go
  EXPECT_EQ(GetErrorDetail(gate_.Close(&four_).status()).reason, "SESSION_NOT_FOUND");
  SessionGate::Leave(&two_);
  SessionGate::Leave(&three_);
  EXPECT_EQ(gate_.Release(session_, kNow), nullptr);
  EXPECT_EQ(gate_.table()->size(), 0);
}

TEST_F(SessionGateTest, AnIdleSessionIsClosedAtOnce) {
  EXPECT_THAT(*gate_.Close(&four_), IsEmpty());
  EXPECT_EQ(gate_.table()->size(), 0);
}

}  // namespace
}  // namespace rivulet
