// SPDX-License-Identifier: Apache-2.0
#include "server/request_log/request_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "server/log.h"

namespace rivulet {
namespace {

// How long the thread waits for more lines after the first, so that many requests wake it seldom.
constexpr absl::Duration kGatherTime = absl::Milliseconds(20);

// Microseconds are enough, and digits beyond them noise.
double Seconds(absl::Duration duration) {
  return static_cast<double>(absl::ToInt64Microseconds(duration)) / 1e6;
}

// The time that a disk or a reader may take for the last lines.
constexpr absl::Duration kLastRequestsTime = absl::Milliseconds(900);

// -1 with errno set if the file cannot be opened. A pipe that nobody reads is an error, too: there
// is no wait.
int OpenForAppending(const std::string& path, int more_flags = O_CREAT) {
  return open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | more_flags,
              0640);
}

absl::Status CannotOpenLog(const std::string& path) {
  return InvalidField(
      "CONFIG_INVALID", "request-log",
      absl::StrCat("request-log is ", path, ", which cannot be written: ", std::strerror(errno)));
}

// Reports lost lines to the log, and writes between the lines of the log.
class LogSink : public LineSink {
 public:
  explicit LogSink(const RequestLogOptions& options) : options_(options) {}

  int64_t Write(absl::string_view lines, absl::FunctionRef<bool()> go_on) override {
    return LogLines(lines, go_on);
  }
  void Behind() override {
    Log(LogLevel::kWarning, "request_log_behind",
        {{"path", options_.target}, {"waiting_limit", static_cast<int64_t>(options_.max_waiting)}});
  }
  void Failed(int error) override {
    Log(LogLevel::kError, "request_log_failed",
        {{"path", options_.target}, {"reason", std::string(std::strerror(error))}});
  }
  void Recovered(int64_t lost) override {
    Log(LogLevel::kInfo, "request_log_recovered", {{"path", options_.target}, {"lost", lost}});
  }

 protected:
  const RequestLogOptions options_;
};

class FileSink final : public LogSink {
 public:
  FileSink(const RequestLogOptions& options, int fd) : LogSink(options), fd_(fd) {}
  ~FileSink() override { close(fd_); }

  int64_t Write(absl::string_view lines, absl::FunctionRef<bool()> go_on) override {
    if (torn_ && WriteWhile(fd_, "\n", go_on) == 1) torn_ = false;
    const size_t done = WriteWhile(fd_, lines, go_on);
    if (done > 0) torn_ = lines[done - 1] != '\n';
    return std::count(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(done), '\n');
  }
  void Reopen() override {
    const int fd = OpenForAppending(options_.target);
    if (fd < 0) {
      Log(LogLevel::kError, "request_log_reopen_failed",
          {{"path", options_.target}, {"reason", std::string(std::strerror(errno))}});
      return;
    }
    close(std::exchange(fd_, fd));
    torn_ = false;
  }

 private:
  int fd_;
  bool torn_ = false;  // the file ends within a line
};

}  // namespace

std::string FormatRequestLine(const RequestLine& line) {
  nlohmann::ordered_json json;
  json["ts"] = LogTime(line.end);
  json["event"] = "request";
  const auto put = [&json](const char* name, const std::string& text) {
    if (!text.empty()) json[name] = text;
  };
  put("request_id", line.request_id);
  put("method", line.method);
  if (line.code) put("code", absl::StatusCodeToString(*line.code));
  put("reason", line.reason);
  put("tenant", line.tenant);
  put("key", line.key);
  put("model", line.model);
  put("session", line.session);
  if (line.prompt_tokens) json["prompt_tokens"] = *line.prompt_tokens;
  if (line.generated_tokens) json["generated_tokens"] = *line.generated_tokens;
  if (line.queue_time) json["queue_seconds"] = Seconds(*line.queue_time);
  if (line.first_token_time) json["first_token_seconds"] = Seconds(*line.first_token_time);
  json["duration_seconds"] = Seconds(line.end - line.begin);
  put("trace_id", line.trace_id);
  put("peer", line.peer);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::unique_ptr<RequestLog>> RequestLog::Open(const RequestLogOptions& options) {
  std::unique_ptr<LineSink> sink;
  if (options.target == kRequestLogStderr) {
    sink = std::make_unique<LogSink>(options);
  } else {
    const int fd = OpenForAppending(options.target);
    if (fd < 0) return CannotOpenLog(options.target);
    sink = std::make_unique<FileSink>(options, fd);
  }
  return std::unique_ptr<RequestLog>(new RequestLog(options, std::move(sink)));
}

absl::Status RequestLog::Check(const std::string& target) {
  if (target.empty() || target == "none" || target == kRequestLogStderr) return absl::OkStatus();
  const int fd = OpenForAppending(target, /*more_flags=*/0);
  if (fd >= 0) {
    close(fd);
    return absl::OkStatus();
  }
  if (errno != ENOENT) return CannotOpenLog(target);
  const std::string folder = std::filesystem::path(target).parent_path().string();
  const char* const at = folder.empty() ? "." : folder.c_str();
  const bool may_make = faccessat(AT_FDCWD, at, W_OK | X_OK, AT_EACCESS) == 0;
  return may_make ? absl::OkStatus() : CannotOpenLog(target);
}

RequestLog::RequestLog(const RequestLogOptions& options, std::unique_ptr<LineSink> sink)
    : options_(options),
      writer_({"request-log", options.max_waiting, kGatherTime}, std::move(sink)) {}

RequestLog::~RequestLog() { writer_.Stop(absl::Now() + kLastRequestsTime); }

bool RequestLog::Takes(bool error) const { return error || RandomFraction() < options_.sample; }

void RequestLog::Add(RequestLine line) {
  writer_.Add([line = std::move(line)](std::string* text) {
    absl::StrAppend(text, FormatRequestLine(line), "\n");
  });
}

bool RequestLog::Reopen() {
  if (options_.target == kRequestLogStderr) return false;
  writer_.Reopen();
  return true;
}

}  // namespace rivulet
