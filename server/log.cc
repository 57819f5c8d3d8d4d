// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace rivulet {
namespace {

constexpr absl::Duration kLimitPeriod = absl::Seconds(1);

ABSL_CONST_INIT absl::Mutex log_mutex(absl::kConstInit);
LogMode log_mode ABSL_GUARDED_BY(log_mutex) = LogMode::kOff;
std::atomic<LogLevel> least_level = LogLevel::kInfo;

// Never destroyed: threads of libraries may log while the process ends.
std::string& HeldLines() {
  static auto* lines = new std::string;
  return *lines;
}

// Of one event, in the second that began at `begin`.
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

const char* Name(LogLevel level) {
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

bool IsDropped(LogLevel level) { return level < least_level.load(std::memory_order_relaxed); }

void Write(absl::string_view lines) { std::fwrite(lines.data(), 1, lines.size(), stderr); }

}  // namespace

LogLevel LogLevelOf(absl::string_view name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kWarning, LogLevel::kError}) {
    if (name == Name(level)) return level;
  }
  return LogLevel::kInfo;
}

void SetLogLevel(LogLevel level) { least_level = level; }

void SetLogMode(LogMode mode) {
  absl::MutexLock lock(&log_mutex);
  if (mode == LogMode::kOn) Write(HeldLines());
  if (mode != LogMode::kHeld) HeldLines().clear();
  log_mode = mode;
}

std::string LogTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

std::string FormatLogLine(absl::string_view time, LogLevel level, absl::string_view event,
                          LogFields fields) {
  nlohmann::ordered_json line;
  line["ts"] = std::string(time);
  line["level"] = Name(level);
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
  const std::string line =
      absl::StrCat(FormatLogLine(LogTime(absl::Now()), level, event, fields), "\n");
  if (log_mode == LogMode::kHeld) {
    absl::StrAppend(&HeldLines(), line);
  } else {
    Write(line);
  }
}

void TellLeftOut(absl::string_view event, Limit* limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_mutex) {
  const int64_t left_out = std::exchange(limit->left_out, 0);
  if (left_out == 0) return;  // whatever the level: lines that would have been written are missing
  LogLocked(LogLevel::kWarning, "suppressed", {{"of", std::string(event)}, {"count", left_out}});
}

}  // namespace

void Log(LogLevel level, absl::string_view event, LogFields fields) {
  if (IsDropped(level)) return;
  absl::MutexLock lock(&log_mutex);
  LogLocked(level, event, fields);
}

void LogLines(absl::string_view lines) {
  absl::MutexLock lock(&log_mutex);
  if (log_mode == LogMode::kHeld) absl::StrAppend(&HeldLines(), lines);
  if (log_mode == LogMode::kOn) Write(lines);
}

void LogLimited(LogLevel level, absl::string_view event, LogFields fields) {
  if (IsDropped(level)) return;
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&log_mutex);
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
  absl::MutexLock lock(&log_mutex);
  for (auto& [event, limit] : Limits()) {
    if (now || time - limit.begin >= kLimitPeriod) TellLeftOut(event, &limit);
  }
}

}  // namespace rivulet
