// SPDX-License-Identifier: Apache-2.0
#include "server/request_log/request_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "model/base/thread.h"
#include "server/log.h"

namespace rivulet {
namespace {

// How long the thread waits for more lines after the first, so that many requests wake it seldom.
constexpr absl::Duration kGatherTime = absl::Milliseconds(20);

// Microseconds are enough, and digits beyond them noise.
double Seconds(absl::Duration duration) {
  return static_cast<double>(absl::ToInt64Microseconds(duration)) / 1e6;
}

// -1 with errno set where it cannot be opened. A pipe that nobody reads is such an error, and not
// waited for.
int OpenForAppending(const std::string& path) {
  const int fd =
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);
  if (fd >= 0) fcntl(fd, F_SETFL, O_APPEND);
  return fd;
}

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
  std::unique_ptr<RequestLog> log(new RequestLog(options));
  if (log->to_file()) {
    log->fd_ = OpenForAppending(options.target);
    if (log->fd_ < 0) {
      return InvalidField("CONFIG_INVALID", "request-log",
                          absl::StrCat("request-log is ", options.target,
                                       ", which cannot be written: ", std::strerror(errno)));
    }
  }
  log->thread_ = std::thread([raw = log.get()] { raw->Run(); });
  return log;
}

RequestLog::~RequestLog() {
  if (thread_.joinable()) {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
    }
    wake_.NotifyOne();
    thread_.join();
  }
  if (fd_ >= 0) close(fd_);
}

bool RequestLog::Takes(bool error) const { return error || RandomFraction() < options_.sample; }

void RequestLog::Add(RequestLine line) {
  bool first = false;
  {
    MutexLock lock(&mutex_);
    if (waiting_.size() >= options_.max_waiting) {
      ++dropped_;
      return;
    }
    first = waiting_.empty();
    waiting_.push_back(std::move(line));
  }
  if (first) wake_.NotifyOne();
}

bool RequestLog::Reopen() {
  if (!to_file()) return false;
  {
    MutexLock lock(&mutex_);
    reopen_ = true;
  }
  wake_.NotifyOne();
  return true;
}

RequestLog::Counts RequestLog::counts() const {
  return {written_.load(), dropped_.load(), failed_.load()};
}

void RequestLog::Run() {
  NameThread("request-log");
  std::vector<RequestLine> lines;
  for (bool stop = false; !stop;) {
    bool reopen = false;
    lines.clear();
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !reopen_ && !stop_) wake_.Wait(&mutex_);
      if (!reopen_ && !stop_) wake_.WaitFor(&mutex_, kGatherTime);
      lines.swap(waiting_);
      reopen = std::exchange(reopen_, false);
      stop = stop_;  // nothing is added any more: these lines are the last
    }
    if (reopen) OpenAgain();
    if (!lines.empty()) Write(lines);
    TellDropped();
  }
}

void RequestLog::OpenAgain() {
  const int fd = OpenForAppending(options_.target);
  if (fd < 0) {
    Log(LogLevel::kError, "request_log_reopen_failed",
        {{"path", options_.target}, {"reason", std::string(std::strerror(errno))}});
    return;
  }
  close(std::exchange(fd_, fd));
  torn_ = false;
}

void RequestLog::Write(const std::vector<RequestLine>& lines) {
  std::string text;
  for (const RequestLine& line : lines) absl::StrAppend(&text, FormatRequestLine(line), "\n");
  const auto count = static_cast<int64_t>(lines.size());
  if (!to_file()) {
    LogLines(text);
    written_ += count;
    return;
  }
  const int64_t written = WriteToFile(text);
  const int error = errno;
  written_ += written;
  failed_ += count - written;
  TellLost(count - written, &failed_in_a_row_, [this, error] {
    Log(LogLevel::kError, "request_log_failed",
        {{"path", options_.target}, {"reason", std::string(std::strerror(error))}});
  });
}

void RequestLog::TellLost(int64_t lines, int64_t* in_a_row, absl::FunctionRef<void()> begin) const {
  const int64_t before = *in_a_row;
  *in_a_row = lines > 0 ? before + lines : 0;
  if (lines > 0 && before == 0) begin();
  if (lines == 0 && before > 0) {
    Log(LogLevel::kInfo, "request_log_recovered", {{"path", options_.target}, {"lost", before}});
  }
}

int64_t RequestLog::WriteToFile(const std::string& text) {
  if (torn_ && write(fd_, "\n", 1) == 1) torn_ = false;
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = write(fd_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  if (done > 0) torn_ = text[done - 1] != '\n';
  return std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(done), '\n');
}

void RequestLog::TellDropped() {
  const int64_t dropped = dropped_;
  TellLost(dropped - std::exchange(dropped_before_, dropped), &dropped_in_a_row_, [this] {
    Log(LogLevel::kWarning, "request_log_behind",
        {{"waiting_limit", static_cast<int64_t>(options_.max_waiting)}});
  });
}

}  // namespace rivulet
