// SPDX-License-Identifier: Apache-2.0
#include "server/request_log/request_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "server/log.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

class RequestLogTest : public ::testing::Test {
 protected:
  RequestLogTest() {
    // As rivulet-server does: the thread of a log that ended may still write to its pipe.
    signal(SIGPIPE, SIG_IGN);
    std::string pattern = ::testing::TempDir() + "request_log.XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "log";
  }
  ~RequestLogTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<RequestLog> Open(const std::string& target, double sample = 1,
                                   size_t max_waiting = 1 << 20) {
    auto log = RequestLog::Open({target, sample, max_waiting});
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  static RequestLine Line(const std::string& id) {
    RequestLine line;
    line.request_id = id;
    line.code = absl::StatusCode::kOk;
    return line;
  }
  static std::vector<std::string> LinesOf(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  static std::string IdOf(const std::string& line) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    return json.is_object() ? json.value("request_id", "") : "";
  }
  template <typename Holds>
  static void Await(const char* what, const Holds& holds) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (!holds()) {
      ASSERT_LT(absl::Now(), end) << what;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  std::filesystem::path folder_, path_;
};

TEST(RequestLineTest, SaysWhatIsKnown) {
  RequestLine line;
  line.end = absl::FromUnixMillis(1763843467123);
  line.request_id = "id";
  line.method = "Generate";
  line.code = absl::StatusCode::kOk;
  line.model = "m";
  line.tenant = "t";
  line.key = "k";
  line.session = "s";
  line.prompt_tokens = 3;
  line.generated_tokens = 0;
  line.queue_time = absl::Microseconds(1500);
  line.first_token_time = absl::Nanoseconds(2500999);
  line.begin = line.end - absl::Seconds(2);
  line.trace_id = "trace";
  line.peer = "ipv4:127.0.0.1:1";
  EXPECT_EQ(FormatRequestLine(line),
            R"({"ts":"2025-11-22T20:31:07.123Z","event":"request","request_id":"id",)"
            R"("method":"Generate","code":"OK","tenant":"t","key":"k","model":"m","session":"s",)"
            R"("prompt_tokens":3,"generated_tokens":0,"queue_seconds":0.0015,)"
            R"("first_token_seconds":0.0025,"duration_seconds":2.0,"trace_id":"trace",)"
            R"("peer":"ipv4:127.0.0.1:1"})");
}

TEST(RequestLineTest, LeavesOutWhatIsNot) {
  RequestLine line;
  line.begin = line.end = absl::UnixEpoch();
  line.request_id = "id";
  line.method = "ListModels";
  line.code = absl::StatusCode::kUnavailable;
  line.reason = "DRAINING";
  EXPECT_EQ(FormatRequestLine(line),
            R"({"ts":"1970-01-01T00:00:00.000Z","event":"request","request_id":"id",)"
            R"("method":"ListModels","code":"UNAVAILABLE","reason":"DRAINING",)"
            R"("duration_seconds":0.0})");
}

TEST_F(RequestLogTest, LinesAreAppendedAndTheLastAreWrittenAtTheEnd) {
  std::ofstream(path_) << "before\n";
  {
    const auto log = Open(path_);
    for (int i = 0; i < 1000; ++i) log->Add(Line(absl::StrCat(i)));
  }
  const std::vector<std::string> lines = LinesOf(path_);
  ASSERT_EQ(lines.size(), 1001u);
  EXPECT_EQ(lines[0], "before");
  for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(IdOf(lines[i + 1]), absl::StrCat(i));
}

TEST_F(RequestLogTest, ErrorsAreAlwaysTakenAndOthersByRate) {
  const auto all = Open(path_, 1), none = Open(path_, 0), half = Open(path_, 0.5);
  int taken = 0;
  for (int i = 0; i < 10000; ++i) {
    EXPECT_TRUE(all->Takes(false));
    EXPECT_FALSE(none->Takes(false));
    for (const auto* log : {&all, &none, &half}) EXPECT_TRUE((*log)->Takes(true));
    if (half->Takes(false)) ++taken;
  }
  EXPECT_GT(taken, 4000) << "20 standard deviations from the middle";
  EXPECT_LT(taken, 6000);
}

TEST_F(RequestLogTest, RenamedFilesLoseNoLine) {
  constexpr int kThreads = 4, kLines = 5000, kRenames = 5;
  std::set<std::string> seen;
  {
    const auto log = Open(path_);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < kLines; ++i) log->Add(Line(absl::StrCat(t, "/", i)));
      });
    }
    for (int i = 0; i < kRenames; ++i) {
      std::filesystem::rename(path_, folder_ / absl::StrCat("log.", i));
      EXPECT_TRUE(log->Reopen());
      Await("the file is made again", [this] { return std::filesystem::exists(path_); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const auto& file : std::filesystem::directory_iterator(folder_)) {
    for (const std::string& line : LinesOf(file.path())) {
      EXPECT_TRUE(seen.insert(IdOf(line)).second) << line;
    }
  }
  EXPECT_EQ(seen.size(), size_t{kThreads} * kLines);
  EXPECT_FALSE(seen.contains(""));
}

TEST_F(RequestLogTest, ADiskThatTakesNothingIsNotWaitedFor) {
  // A pipe holds some lines; then the writer waits for whoever reads it.
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  constexpr int kLines = 20000;
  auto log = Open(path_, 1, 100);
  for (int i = 0; i < kLines; ++i) log->Add(Line(absl::StrCat(i, std::string(200, 'x'))));
  EXPECT_GT(log->counts().dropped, 0);
  std::string text;
  std::thread drain([&] {
    fcntl(reader, F_SETFL, 0);
    char buffer[1 << 16];
    for (ssize_t got = 0; (got = read(reader, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
  });
  Await("all that was not dropped is written", [&] {
    const LineCounts counts = log->counts();
    return counts.written + counts.dropped == kLines;
  });
  const LineCounts counts = log->counts();
  EXPECT_EQ(counts.failed, 0);
  log.reset();  // closes the pipe
  drain.join();
  close(reader);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_EQ(static_cast<int64_t>(lines.size()), counts.written);
  for (const std::string& line : lines) EXPECT_NE(IdOf(line), "");
}

TEST_F(RequestLogTest, APipeThatNobodyReadsIsToldAndDelaysNeitherReopeningNorTheEnd) {
  const std::filesystem::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  ASSERT_GE(fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
  const int writer = open(pipe.c_str(), O_WRONLY | O_NONBLOCK);
  ASSERT_GE(writer, 0);
  const std::string page(4096, '\n');
  while (write(writer, page.data(), page.size()) > 0) {
  }  // until no line fits
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  for (const bool reopen : {true, false}) {
    std::filesystem::remove(path_);
    std::filesystem::create_symlink(pipe, path_);
    auto log = Open(path_, 1, 10);
    const auto taken = [&log] {
      const int64_t before = log->counts().dropped;
      log->Add(Line(std::string(1000, 'x')));
      return log->counts().dropped == before;
    };
    // Ten may wait, so with the eleventh the thread has some, which it cannot write.
    int accepted = 0;
    Await("the thread waits for the reader, and lines are dropped", [&] {
      const bool full = !taken();
      accepted += full ? 0 : 1;
      return full && accepted > 10;
    });
    EXPECT_EQ(log->counts().failed, 0);
    if (!reopen) continue;  // the end: else for ever
    std::filesystem::remove(path_);
    EXPECT_TRUE(log->Reopen());
    Await("a file takes its place", [this] { return std::filesystem::exists(path_); });
    EXPECT_GT(log->counts().failed, 0) << "those that waited for the pipe";
    log->Add(Line("after"));
  }
  SetLogMode(LogMode::kOff);
  close(writer);
  close(reader);
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(output, HasSubstr(R"("event":"request_log_behind","path":)"));
  EXPECT_THAT(output, HasSubstr(R"("event":"request_log_failed","path":)"));
  EXPECT_THAT(output, HasSubstr(R"("event":"request_log_recovered","path":)"));
}

TEST_F(RequestLogTest, AFullDiskIsCountedAndReportedOnce) {
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_symlink("/dev/full", link);
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  {
    const auto log = Open(link);
    for (int i = 1; i <= 3; ++i) {
      log->Add(Line("a"));
      Await("the line has failed", [&log, i] { return log->counts().failed == i; });
    }
    EXPECT_EQ(log->counts().written, 0);
    // There is room again.
    std::filesystem::remove(link);
    EXPECT_TRUE(log->Reopen());
    Await("the file is made", [&link] { return std::filesystem::exists(link); });
    log->Add(Line("b"));
    Await("the line is written", [&log] { return log->counts().written == 1; });
  }
  SetLogMode(LogMode::kOff);
  const std::string output = ::testing::internal::GetCapturedStderr();
  const std::vector<std::string> events = absl::StrSplit(output, '\n', absl::SkipEmpty());
  ASSERT_EQ(events.size(), 2u) << output;
  EXPECT_THAT(events[0], HasSubstr(R"("level":"error","event":"request_log_failed","path":)"));
  EXPECT_THAT(events[0], HasSubstr("No space left on device"));
  EXPECT_THAT(events[1], HasSubstr(R"("event":"request_log_recovered","path":)"));
  EXPECT_THAT(events[1], HasSubstr(R"("lost":3})"));
  EXPECT_EQ(LinesOf(link).size(), 1u);
}

TEST_F(RequestLogTest, AFileThatCannotBeMadeAgainKeepsTheOldOne) {
  const std::filesystem::path place = folder_ / "place", moved = folder_ / "moved";
  std::filesystem::create_directory(place);
  {
    const auto log = Open(place / "log");
    log->Add(Line("first"));
    std::filesystem::rename(place, moved);
    EXPECT_TRUE(log->Reopen());
    log->Add(Line("second"));
  }
  const std::vector<std::string> lines = LinesOf(moved / "log");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(IdOf(lines[1]), "second");
}

TEST_F(RequestLogTest, AFileThatCannotBeOpenedIsAnErrorOfTheSetting) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const std::string nobody_reads = path_, folder = folder_, missing = folder_ / "no" / "log";
  for (const std::string& target : {folder, missing, nobody_reads}) {
    const absl::Status status = RequestLog::Open({target}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(GetErrorDetail(status).reason, "CONFIG_INVALID");
    EXPECT_EQ(GetErrorDetail(status).field, "request-log");
    EXPECT_THAT(std::string(status.message()), HasSubstr(target));
  }
}

TEST_F(RequestLogTest, StderrFollowsTheModeOfTheLog) {
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kHeld);
  const auto log = Open(kRequestLogStderr);
  log->Add(Line("held"));
  Await("it is written", [&log] { return log->counts().written == 1; });
  SetLogMode(LogMode::kOn);
  log->Add(Line("direct"));
  EXPECT_FALSE(log->Reopen());
  Await("it is written", [&log] { return log->counts().written == 2; });
  SetLogMode(LogMode::kOff);
  const std::string output = ::testing::internal::GetCapturedStderr();
  const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u) << output;
  EXPECT_EQ(IdOf(lines[0]), "held");
  EXPECT_EQ(IdOf(lines[1]), "direct");
}

}  // namespace
}  // namespace rivulet
