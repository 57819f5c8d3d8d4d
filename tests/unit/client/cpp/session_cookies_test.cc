// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/session_cookies.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

// Sets cookies of `count` sessions that no test names.
void SetOthers(SessionCookies* cookies, size_t count) {
  for (size_t i = 0; i < count; ++i) cookies->Set(absl::StrCat("other", i), "x");
}

TEST(SessionCookiesTest, TheOldestIsForgottenBeyondTheMost) {
  SessionCookies cookies;
  cookies.Set("first", "a");
  cookies.Set("second", "b");
  SetOthers(&cookies, SessionCookies::kMost - 2);
  EXPECT_EQ(cookies.Get("first"), "a");
  cookies.Set("one more", "c");
  EXPECT_EQ(cookies.Get("first"), "");
  EXPECT_EQ(cookies.Get("second"), "b");
  EXPECT_EQ(cookies.Get("one more"), "c");
}

TEST(SessionCookiesTest, ACookieThatIsSetAgainTakesNoSecondPlace) {
  SessionCookies cookies;
  cookies.Set("first", "a");
  SetOthers(&cookies, SessionCookies::kMost - 2);
  for (int i = 0; i < 3; ++i) cookies.Set("again", absl::StrCat("b", i));
  EXPECT_EQ(cookies.Get("first"), "a");
  EXPECT_EQ(cookies.Get("again"), "b2");
}

TEST(SessionCookiesTest, AForgottenSessionTakesNoPlace) {
  SessionCookies cookies;
  cookies.Set("first", "a");
  cookies.Set("ended", "b");
  cookies.Forget("ended");
  cookies.Forget("never there");
  EXPECT_EQ(cookies.Get("ended"), "");
  SetOthers(&cookies, SessionCookies::kMost - 1);
  EXPECT_EQ(cookies.Get("first"), "a");
  cookies.Forget("first");
  cookies.Set("first", "c");
  cookies.Set("one more", "d");
  EXPECT_EQ(cookies.Get("first"), "c");
}

TEST(SessionCookiesTest, AnEmptyCookieChangesNothing) {
  SessionCookies cookies;
  cookies.Set("first", "a");
  cookies.Set("first", "");
  cookies.Set("second", "");
  EXPECT_EQ(cookies.Get("first"), "a");
  EXPECT_EQ(cookies.Get("second"), "");
}

}  // namespace
}  // namespace rivulet
