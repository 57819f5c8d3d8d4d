// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace rivulet {
namespace {

TEST(LogTest, ALineIsOneJsonObject) {
  EXPECT_EQ(FormatLogLine(
                "T", LogLevel::kWarning, "slow_reader",
                {{"text", "a\"b\n\xff"}, {"count", int64_t{3}}, {"share", 0.5}, {"good", true}}),
            "{\"ts\":\"T\",\"level\":\"warning\",\"event\":\"slow_reader\",\"text\":"
            "\"a\\\"b\\n\xEF\xBF\xBD\","
            "\"count\":3,\"share\":0.5,\"good\":true}");
}

TEST(LogTest, HeldLinesAppearOnceServingAndNotAfterAFailure) {
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "before_any_mode");
  SetLogMode(LogMode::kHeld);
  Log(LogLevel::kInfo, "dropped");
  SetLogMode(LogMode::kOff);
  SetLogMode(LogMode::kHeld);
  Log(LogLevel::kInfo, "kept");
  SetLogMode(LogMode::kOn);
  Log(LogLevel::kInfo, "direct");
  SetLogMode(LogMode::kOff);
  Log(LogLevel::kInfo, "after");
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(output.find("before_any_mode"), std::string::npos);
  EXPECT_EQ(output.find("dropped"), std::string::npos);
  EXPECT_EQ(output.find("after"), std::string::npos);
  EXPECT_LT(output.find("kept"), output.find("direct"));
  EXPECT_NE(output.find("direct"), std::string::npos);
}

// The `count` of every "suppressed" line about `event`, and the number of lines of the event
// itself.
std::pair<int64_t, int64_t> Counted(const std::string& output, const std::string& event) {
  int64_t lines = 0, left_out = 0;
  for (absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line.begin(), line.end());
    if (json["event"] == event) ++lines;
    if (json["event"] == "suppressed" && json["of"] == event) {
      left_out += json["count"].get<int64_t>();
    }
  }
  return {lines, left_out};
}

TEST(LogTest, LinesBelowTheLevelAreDroppedAndNotCounted) {
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  LogSuppressed(true);
  Log(LogLevel::kDebug, "below_the_default");
  const std::pair<const char*, int> kWritten[] = {
      {"debug", 4}, {"info", 3}, {"warning", 2}, {"error", 1}};
  for (const auto& [name, count] : kWritten) {
    const LogLevel least = LogLevelOf(name);
    SetLogLevel(least);
    for (const LogLevel level :
         {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
      Log(level, name);
    }
  }
  for (int i = 0; i < 3 * kLoggedPerSecond; ++i) LogLimited(LogLevel::kWarning, "dropped");
  SetLogLevel(LogLevel::kInfo);
  LogSuppressed(true);
  SetLogMode(LogMode::kOff);
  const std::string output = ::testing::internal::GetCapturedStderr();
  for (const auto& [name, count] : kWritten) EXPECT_EQ(Counted(output, name).first, count) << name;
  EXPECT_EQ(Counted(output, "below_the_default"), (std::pair<int64_t, int64_t>(0, 0)));
  EXPECT_EQ(Counted(output, "dropped"), (std::pair<int64_t, int64_t>(0, 0)));
}

TEST(LogTest, AFloodOfOneEventIsCountedAndNotWritten) {
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  LogSuppressed(true);
  for (int i = 0; i < 3000; ++i) LogLimited(LogLevel::kInfo, "flood", {{"text", "same"}});
  LogLimited(LogLevel::kInfo, "another");
  for (int i = 0; i < 20; ++i) Log(LogLevel::kInfo, "unlimited");
  LogSuppressed(true);
  LogSuppressed(true);
  SetLogMode(LogMode::kOff);
  const std::string output = ::testing::internal::GetCapturedStderr();
  const auto [lines, left_out] = Counted(output, "flood");
  EXPECT_EQ(lines + left_out, 3000) << "every event is written or counted, once";
  EXPECT_LE(lines, 10 * kLoggedPerSecond) << "a machine that takes ten seconds for this";
  EXPECT_EQ(Counted(output, "another").first, 1);
  EXPECT_EQ(Counted(output, "unlimited").first, 20);
}

TEST(LogTest, TheNextSecondTellsOfTheLast) {
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  for (int i = 0; i < 3 * kLoggedPerSecond; ++i) LogLimited(LogLevel::kInfo, "burst");
  absl::SleepFor(absl::Milliseconds(1100));  // what is tested is the clock
  LogSuppressed();
  LogLimited(LogLevel::kInfo, "burst");
  SetLogMode(LogMode::kOff);
  const std::string output = ::testing::internal::GetCapturedStderr();
  const auto [lines, left_out] = Counted(output, "burst");
  EXPECT_EQ(lines + left_out, 3 * kLoggedPerSecond + 1);
  EXPECT_GE(left_out, kLoggedPerSecond);
  EXPECT_LT(output.find("suppressed"), output.rfind("burst"));
}

}  // namespace
}  // namespace rivulet
