// SPDX-License-Identifier: Apache-2.0
// The server's log: one JSON object per line on stderr, {"ts":..., "level":..., "event":...,
// fields...}. Never holds prompts, replies or anything else that a client sent, except field names
// of bad requests. A thread of its own writes the lines, so that callers never wait for the reader.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/line_writer.h"

namespace rivulet {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// The level of a name: "debug", "info", "warning" or "error"; kInfo for any other.
LogLevel LogLevelOf(absl::string_view name);
// The name of a level.
const char* LogLevelName(LogLevel level);
// Lines below `level` are dropped from now on; before the first call, lines below kInfo.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
// As SetLogLevel while the process runs: logs the event "log_level". Returns the level before.
LogLevel ChangeLogLevel(LogLevel level);

// What happens to lines. A process begins with kOff: only `rivulet-server` logs, never the
// `rivulet` command with a server inside.
enum class LogMode : uint8_t {
  kOff,   // dropped, held lines too
  kHeld,  // kept until the mode changes: a start that fails leaves one plain line on stderr and no
          // log
  kOn,    // queued for the thread that writes, after the held lines. While 8192 wait, further lines
          // are dropped; once lines are written again, "log_lines_lost" has their number
  kDirect,  // for the last lines of a process: written before Log returns
};
// To leave kOn writes the waiting lines first. With kDirect these and the lines that follow may
// take one second in all. Thread: one at a time.
void SetLogMode(LogMode mode);
// The lines of mode kOn since start. Thread: any.
LineCounts LogCounts();

using LogValue = std::variant<bool, int64_t, double, std::string>;
using LogFields = std::initializer_list<std::pair<absl::string_view, LogValue>>;

// `event` is one or two snake_case words, stable: people search for it. Thread: any.
void Log(LogLevel level, absl::string_view event, LogFields fields = {});

// As Log, for events that clients can cause at any rate: writes at most kLoggedPerSecond lines of
// an event in a second. Once the second is over, the event "suppressed" names the event (`of`) and
// says how many lines were left out (`count`). `event` is a literal. Thread: any.
inline constexpr int kLoggedPerSecond = 10;
void LogLimited(LogLevel level, absl::string_view event, LogFields fields = {});
// Logs "suppressed" for seconds that are over; with `now`, for the current one, too. The process's
// main thread calls it, because no other event may follow a flood.
void LogSuppressed(bool now = false);

// Writes finished lines of another log that shares stderr with this one, each with its newline, and
// waits for the reader; the mode applies to them, too. For a LineSink. Returns how many whole lines
// were written, or dropped because of the mode. Thread: any.
int64_t LogLines(absl::string_view lines, absl::FunctionRef<bool()> go_on);

// A time as the lines show it: RFC 3339 in UTC, in milliseconds.
std::string LogTime(absl::Time time);

// The line that Log writes, without the newline, for a time already formatted.
std::string FormatLogLine(absl::string_view time, LogLevel level, absl::string_view event,
                          LogFields fields);

}  // namespace rivulet
