// SPDX-License-Identifier: Apache-2.0
#include "server/health/listener_watch.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace rivulet {
namespace {

constexpr ListenerWatchOptions kShort{absl::Milliseconds(1), absl::Milliseconds(1),
                                      absl::Milliseconds(50)};

// Watches a listener that answers every call with what `answer` returns, until the watch has failed
// or made `calls` calls. Returns how often the failure was told.
template <typename Answer>
int FailuresOf(const Answer& answer, bool full, int calls) {
  std::atomic<int> made = 0, failures = 0;
  const ListenerWatch watch(
      kShort, [&](absl::Duration) { return answer(made++); }, [full] { return full; },
      [&](const absl::Status& status) {
        EXPECT_FALSE(status.ok());
        ++failures;
      });
  while (!watch.failed() && made < calls) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(watch.failed(), failures > 0);
  return failures;
}

TEST(ListenerWatchTest, FailsWhenNobodyAnswersForLong) {
  const auto never = [](int) { return absl::UnavailableError("refused"); };
  EXPECT_EQ(FailuresOf(never, false, 1 << 30), 1);
}

TEST(ListenerWatchTest, OneAnswerIsEnough) {
  // Two calls in a row that fail must be less than fail_after apart, however busy the machine is.
  constexpr ListenerWatchOptions kPatient{absl::Milliseconds(1), absl::Milliseconds(1),
                                          absl::Seconds(2)};
  std::atomic<int> made = 0;
  const ListenerWatch watch(
      kPatient,
      [&](absl::Duration) {
        return made++ % 3 == 0 ? absl::OkStatus() : absl::UnavailableError("refused");
      },
      [] { return false; }, [](const absl::Status& status) { ADD_FAILURE() << status; });
  absl::SleepFor(2 * kPatient.fail_after);
  EXPECT_FALSE(watch.failed());
  EXPECT_GT(made, 3);
}

TEST(ListenerWatchTest, WhatSaysNothingAboutTheListenerIsNoFailure) {
  const auto never = [](int) { return absl::UnavailableError("refused"); };
  const auto none_left = [](int) { return absl::ResourceExhaustedError("no descriptor"); };
  EXPECT_EQ(FailuresOf(never, true, 200), 0) << "no more connections are taken";
  EXPECT_EQ(FailuresOf(none_left, false, 200), 0);
}

TEST(ListenerWatchTest, CallsOftenEnoughWhateverTheTime) {
  EXPECT_EQ(ListenerWatchFor(absl::Seconds(60)).period, absl::Seconds(5));
  EXPECT_EQ(ListenerWatchFor(absl::Seconds(86400)).period, absl::Seconds(5));
  EXPECT_EQ(ListenerWatchFor(absl::Seconds(1)).call_timeout, absl::Seconds(1));
  EXPECT_LT(ListenerWatchFor(absl::Seconds(1)).period, absl::Seconds(1));
}

}  // namespace
}  // namespace rivulet
