// SPDX-License-Identifier: Apache-2.0
#include "server/base/key_account.h"

#include <gtest/gtest.h>

#include "model/base/error.h"

namespace rivulet {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'800'000'000);

TEST(KeyAccountTest, WithoutLimitsEverythingMayBeTaken) {
  KeyAccount account("k", {}, kStart);
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(account.TakeRequest(kStart), absl::OkStatus());
}

TEST(KeyAccountTest, RequestsBeyondTheRateAreToldWhenToComeBack) {
  KeyAccount account("k", {.requests_per_minute = 2}, kStart);
  EXPECT_EQ(account.TakeRequest(kStart), absl::OkStatus());
  EXPECT_EQ(account.TakeRequest(kStart), absl::OkStatus());
  for (int i = 0; i < 3; ++i) {
    const absl::Status refused = account.TakeRequest(kStart + absl::Seconds(10));
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(GetErrorDetail(refused).reason, "API_KEY_REQUEST_RATE");
    EXPECT_EQ(GetErrorDetail(refused).retry_after, absl::Seconds(20)) << "a refusal takes nothing";
    EXPECT_EQ(refused.message(),
              "The key has made as many requests as it may, 2 a minute; it may make the next one "
              "in 20s.");
  }
  EXPECT_EQ(account.TakeRequest(kStart + absl::Seconds(30)), absl::OkStatus());
}

TEST(KeyAccountTest, LimitsThatComeChangeAndGoAreInForceAtOnce) {
  KeyAccount account("k", {}, kStart);
  account.SetLimits({.requests_per_minute = 3}, kStart);
  EXPECT_TRUE(account.TakeRequest(kStart).ok());
  account.SetLimits({.requests_per_minute = 600}, kStart);
  EXPECT_TRUE(account.TakeRequest(kStart).ok());
  EXPECT_TRUE(account.TakeRequest(kStart).ok());
  EXPECT_EQ(GetErrorDetail(account.TakeRequest(kStart)).retry_after, absl::Milliseconds(100));
  account.SetLimits({}, kStart);
  EXPECT_TRUE(account.TakeRequest(kStart).ok());
}

TEST(KeyAccountTest, AnEmptyTokenQuotaSaysWhenItHasSomeAgain) {
  KeyAccount account("k", {.tokens_per_minute = 60}, kStart);
  EXPECT_EQ(account.CheckTokens(kStart), absl::OkStatus());
  account.TakeTokens(59, kStart);
  EXPECT_EQ(account.CheckTokens(kStart), absl::OkStatus()) << "one is left";
  account.TakeTokens(101, kStart);
  const absl::Status refused = account.CheckTokens(kStart + absl::Seconds(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused).reason, "API_KEY_TOKEN_QUOTA");
  EXPECT_EQ(GetErrorDetail(refused).retry_after, absl::Seconds(100));
  EXPECT_EQ(refused.message(),
            "The requests of the key have taken as many tokens as they may, 60 a minute; the next "
            "one may come in 1m40s.");
  EXPECT_EQ(account.TakeRequest(kStart), absl::OkStatus()) << "requests are counted apart";
  EXPECT_EQ(account.CheckTokens(kStart + absl::Seconds(101)), absl::OkStatus());
}

TEST(KeyAccountTest, ATextMayBeLongerThanWhatIsLeftAndTheNextThenWaits) {
  KeyAccount account("k", {.text_bytes_per_minute = 600}, kStart);
  EXPECT_EQ(account.TakeText(500, kStart), absl::OkStatus());
  EXPECT_EQ(account.TakeText(701, kStart), absl::OkStatus());
  const absl::Status refused = account.TakeText(1, kStart);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused).reason, "API_KEY_TEXT_RATE");
  EXPECT_EQ(GetErrorDetail(refused).retry_after, absl::Milliseconds(60'200));
  EXPECT_EQ(refused.message(),
            "The texts of the key's requests have as many bytes as they may, 600 a minute; the "
            "next one may come in 1m0.2s.");
  EXPECT_EQ(account.TakeText(0, kStart), absl::OkStatus()) << "a request without a text";
  EXPECT_EQ(account.TakeText(1, kStart + absl::Milliseconds(60'200)), absl::OkStatus());
}

TEST(KeyAccountTest, SlotsAndSessionsAreThoseOfTheLimitsInForce) {
  KeyAccount account("k", {.slots = 3}, kStart);
  EXPECT_EQ(account.slots().key, "k");
  EXPECT_EQ(account.slots().most, 3);
  EXPECT_EQ(account.sessions().most, KeyShare().most) << "no limit";
  account.SetLimits({.sessions = 4}, kStart);
  EXPECT_EQ(account.slots().most, KeyShare().most);
  EXPECT_EQ(account.sessions().most, 4);
}

}  // namespace
}  // namespace rivulet
