// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
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

// Takes the place of stderr: a pipe that nobody reads until ReadToTheEnd.
class UnreadStderr {
 public:
  UnreadStderr() : before_(dup(STDERR_FILENO)) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    EXPECT_GE(fcntl(ends[1], F_SETPIPE_SZ, PIPE_BUF), PIPE_BUF);
    EXPECT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[1]);
    reader_ = ends[0];
  }
  ~UnreadStderr() {
    if (reader_ >= 0) Restore();
  }
  // Begins to read, then calls `end`, and returns all that came until its return.
  template <typename End>
  std::string ReadToTheEnd(const End& end) {
    std::string text;
    std::thread reader([&] {
      char buffer[PIPE_BUF];
      for (ssize_t got = 0; (got = read(reader_, buffer, sizeof buffer)) > 0;) {
        text.append(buffer, static_cast<size_t>(got));
      }
    });
    end();
    dup2(before_, STDERR_FILENO);
    reader.join();
    Restore();
    return text;
  }

 private:
  void Restore() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(std::exchange(reader_, -1));
  }
  const int before_;
  int reader_ = -1;
};

TEST(LogTest, WhoLogsDoesNotWaitForTheReaderAndWhatIsLostIsTold) {
  UnreadStderr unread;
  const LineCounts before = LogCounts();
  SetLogMode(LogMode::kOn);
  constexpr int kLines = 20000;  // more than wait
  for (int i = 0; i < kLines; ++i) Log(LogLevel::kInfo, "unread");
  const int64_t dropped = LogCounts().dropped - before.dropped;
  EXPECT_GT(dropped, 0);
  const std::string output = unread.ReadToTheEnd([] { SetLogMode(LogMode::kOff); });
  EXPECT_EQ(Counted(output, "unread").first, kLines - dropped);
  int64_t told = 0;
  for (absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line.begin(), line.end());
    if (json["event"] == "log_lines_lost") told += json["count"].get<int64_t>();
  }
  EXPECT_EQ(told, dropped);
  EXPECT_EQ(LogCounts().written - before.written, kLines - dropped);
}

TEST(LogTest, TheLastLinesDoNotWaitForAReaderForLong) {
  UnreadStderr unread;
  SetLogMode(LogMode::kOn);
  for (int i = 0; i < 1000; ++i) Log(LogLevel::kInfo, "unread");
  SetLogMode(LogMode::kDirect);  // else for ever
  for (int i = 0; i < 10; ++i) Log(LogLevel::kInfo, "direct");
  SetLogMode(LogMode::kOff);
}

TEST(LogTest, DirectLinesFollowThoseThatWaited) {
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  Log(LogLevel::kInfo, "waited");
  SetLogMode(LogMode::kDirect);
  Log(LogLevel::kInfo, "direct");
  const std::string output = ::testing::internal::GetCapturedStderr();
  SetLogMode(LogMode::kOff);
  ASSERT_NE(output.find("direct"), std::string::npos);
  EXPECT_LT(output.find("waited"), output.find("direct"));
}

}  // namespace
}  // namespace rivulet
