// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace rivulet {
namespace {

constexpr absl::Duration kLimitPeriod = absl::Seconds(1);

// The time that the reader of the log may take for the last lines.
constexpr absl::Duration kLastLinesTime = absl::Milliseconds(900);

// Not held during a write, except for the last lines.
ABSL_CONST_INIT Mutex log_mutex;
LogMode log_mode ABSL_GUARDED_BY(log_mutex) = LogMode::kOff;
LineWriter* log_writer ABSL_GUARDED_BY(log_mutex) = nullptr;  // with kOn alone
absl::Time direct_until ABSL_GUARDED_BY(log_mutex);           // with kDirect
LineCounts counts_before ABSL_GUARDED_BY(log_mutex);          // of writers that have ended
std::atomic<LogLevel> least_level = LogLevel::kInfo;

// Never destroyed: threads of libraries may log while the process ends.
std::string& HeldLines() {
  static auto* lines = new std::string;
  return *lines;
}

// The lines of one event in the second that began at `begin`.
struct Limit {
  absl::Time begin = absl::InfinitePast();
  int logged = 0;
  int64_t left_out = 0;
};
// By event; only literals come in, so it stays small.
std::map<std::string, Limit, std::less<>>& Limits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex) {
  static auto* limits = new std::map<std::string, Limit, std::less<>>;
  return *limits;
}

bool IsDropped(LogLevel level) { return level < least_level.load(std::memory_order_relaxed); }

int64_t WriteToStderr(absl::string_view lines, absl::FunctionRef<bool()> go_on) {
  const size_t done = WriteWhile(STDERR_FILENO, lines, go_on);
  return std::count(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(done), '\n');
}

// Takes no lock: SetLogMode waits for it.
class StderrSink final : public LineSink {
 public:
  int64_t Write(absl::string_view lines, absl::FunctionRef<bool()> go_on) override {
    return WriteToStderr(lines, go_on);
  }
  // Not by Log, so that the line stands where lines are missing.
  void Recovered(int64_t lost) override {
    const std::string line = FormatLogLine(LogTime(absl::Now()), LogLevel::kWarning,
                                           "log_lines_lost", {{"count", lost}});
    WriteToStderr(absl::StrCat(line, "\n"), [] { return false; });
  }
};

LineCounts CountsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex) {
  LineCounts counts = counts_before;
  if (log_writer == nullptr) return counts;
  const LineCounts now = log_writer->counts();
  counts.written += now.written;
  counts.dropped += now.dropped;
  counts.failed += now.failed;
  return counts;
}

void PutLocked(std::string lines) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex) {
  switch (log_mode) {
    case LogMode::kOff:
      return;
    case LogMode::kHeld:
      HeldLines() += lines;
      return;
    case LogMode::kOn:
      log_writer->Add([lines = std::move(lines)](std::string* text) { text->append(lines); });
      return;
    case LogMode::kDirect:
      const absl::Time end = direct_until;
      WriteWhile(STDERR_FILENO, lines, [end] { return absl::Now() < end; });
      return;
  }
}

void EndWriter(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex) {
  if (log_writer == nullptr) return;
  log_writer->Stop(deadline);
  counts_before = CountsLocked();
  delete std::exchange(log_writer, nullptr);
}

}  // namespace

const char* LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

LogLevel LogLevelOf(absl::string_view name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kWarning, LogLevel::kError}) {
    if (name == LogLevelName(level)) return level;
  }
  return LogLevel::kInfo;
}

void SetLogLevel(LogLevel level) { least_level = level; }

LogLevel GetLogLevel() { return least_level; }

void SetLogMode(LogMode mode) {
  MutexLock lock(&log_mutex);
  if (mode == log_mode) return;
  direct_until = mode == LogMode::kDirect ? absl::Now() + kLastLinesTime : absl::InfiniteFuture();
  EndWriter(direct_until);
  log_mode = mode;
  if (mode == LogMode::kOn) {
    log_writer = new LineWriter({.thread = "log"}, std::make_unique<StderrSink>());
  }
  if (mode == LogMode::kHeld) return;
  std::string held = std::exchange(HeldLines(), "");
  if (mode != LogMode::kOff) PutLocked(std::move(held));
}

LineCounts LogCounts() {
  MutexLock lock(&log_mutex);
  return CountsLocked();
}

std::string LogTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

std::string FormatLogLine(absl::string_view time, LogLevel level, absl::string_view event,
                          LogFields fields) {
  nlohmann::ordered_json line;
  line["ts"] = std::string(time);
  line["level"] = LogLevelName(level);
  line["event"] = std::string(event);
  for (const auto& [name, value] : fields) {
    auto& slot = line[std::string(name)];
    std::visit([&slot](const auto& held) { slot = held; }, value);
  }
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

namespace {

void LogLocked(LogLevel level, absl::string_view event, LogFields fields)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex) {
  if (log_mode == LogMode::kOff) return;
  PutLocked(absl::StrCat(FormatLogLine(LogTime(absl::Now()), level, event, fields), "\n"));
}

void TellLeftOut(absl::string_view event, Limit* limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex) {
  const int64_t left_out = std::exchange(limit->left_out, 0);
  if (left_out == 0) return;  // at any level: written lines are missing
  LogLocked(LogLevel::kWarning, "suppressed", {{"of", std::string(event)}, {"count", left_out}});
}

}  // namespace

LogLevel ChangeLogLevel(LogLevel level) {
  const LogLevel before = least_level.exchange(level);
  MutexLock lock(&log_mutex);
  // At any level: a reader must learn why lines appear or stop.
  LogLocked(
      LogLevel::kWarning, "log_level",
      {{"from", std::string(LogLevelName(before))}, {"to", std::string(LogLevelName(level))}});
  return before;
}

void Log(LogLevel level, absl::string_view event, LogFields fields) {
  if (IsDropped(level)) return;
  MutexLock lock(&log_mutex);
  LogLocked(level, event, fields);
}

int64_t LogLines(absl::string_view lines, absl::FunctionRef<bool()> go_on) {
  const int64_t count = std::count(lines.begin(), lines.end(), '\n');
  {
    MutexLock lock(&log_mutex);
    if (log_mode == LogMode::kHeld) absl::StrAppend(&HeldLines(), lines);
    if (log_mode == LogMode::kHeld || log_mode == LogMode::kOff) return count;
  }
  return WriteToStderr(lines, go_on);
}

void LogLimited(LogLevel level, absl::string_view event, LogFields fields) {
  if (IsDropped(level)) return;
  const absl::Time now = absl::Now();
  MutexLock lock(&log_mutex);
  if (log_mode == LogMode::kOff) return;
  auto found = Limits().find(event);
  if (found == Limits().end()) found = Limits().emplace(std::string(event), Limit()).first;
  Limit& limit = found->second;
  if (now - limit.begin >= kLimitPeriod || now < limit.begin) {
    TellLeftOut(event, &limit);
    limit.begin = now;
    limit.logged = 0;
  }
  if (limit.logged == kLoggedPerSecond) {
    ++limit.left_out;
  } else {
    ++limit.logged;
    LogLocked(level, event, fields);
  }
}

void LogSuppressed(bool now) {
  const absl::Time time = absl::Now();
  MutexLock lock(&log_mutex);
  for (auto& [event, limit] : Limits()) {
    if (now || time - limit.begin >= kLimitPeriod) TellLeftOut(event, &limit);
  }
}

}  // namespace rivulet
