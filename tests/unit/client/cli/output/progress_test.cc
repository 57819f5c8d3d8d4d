// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace rivulet {
namespace {

TEST(ProgressLineTest, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(ProgressLine(500, 1000, "pixels", absl::Seconds(100), 53),
            "[==========          ] 500/1k pixels  5/s  1:40 left");
}

TEST(ProgressLineTest, LeavesTheBarOutWhereItDoesNotFit) {
  EXPECT_EQ(ProgressLine(500, 1000, "pixels", absl::Seconds(100), 20),
            "500/1k pixels  5/s  1:40 left");
}

TEST(ProgressLineTest, BearsAnUnknownTotalAndNothingDone) {
  EXPECT_EQ(ProgressLine(12345, 0, "items", absl::Seconds(10), 80), "12.3k items  1.23k/s");
  EXPECT_EQ(ProgressLine(0, 10, "items", absl::ZeroDuration(), 40),
            "[                     ] 0/10 items  0/s");
}

TEST(ProgressLineTest, EndsAtItsTotal) {
  EXPECT_EQ(ProgressLine(8, 4, "seconds", absl::Seconds(8), 20), "4/4 seconds  0.5/s  0:00 left");
}

TEST(ProgressTest, ShowsNothingUnlessStderrIsATerminal) {
  if (isatty(STDERR_FILENO) == 1) GTEST_SKIP() << "stderr is a terminal";
  ::testing::internal::CaptureStderr();
  {
    Progress progress(10, "items");
    EXPECT_FALSE(progress.visible());
    progress.Update(5, {"above"});
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressTest, PrintsALineOnceAPeriodWhereStderrIsNoTerminal) {
  if (isatty(STDERR_FILENO) == 1) GTEST_SKIP() << "stderr is a terminal";
  ::testing::internal::CaptureStderr();
  Progress often(10, "items", absl::ZeroDuration()), seldom(10, "items", absl::Hours(1));
  often.Update(5, {"2 errors"});
  seldom.Update(5, {"2 errors"});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("5/10 items  .* left, 2 errors\n"));
}

}  // namespace
}  // namespace rivulet
