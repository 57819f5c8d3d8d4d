// SPDX-License-Identifier: Apache-2.0
// The server's log: one JSON object a line on stderr, {"ts":..., "level":..., "event":...,
// fields...}. Never holds prompts, replies or anything else that a client sent, except field names
// of bad requests. A thread of its own writes the lines: nobody who logs waits for the reader.
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
// Lines below `level` are dropped from now on; before the first call, those below kInfo.
void SetLogLevel(LogLevel level);

// What becomes of the lines. A process begins with kOff: only `rivulet-server` logs, never the
// `rivulet` command with a server inside.
enum class LogMode : uint8_t {
  kOff,   // dropped, those held back too
  kHeld,  // kept until the mode changes: a start that fails leaves one plain line on stderr and no
          // log
  kOn,    // queued for the thread that writes, those held back first. Where 8192 wait, one more is
          // dropped; once lines are written again, "log_lines_lost" says how many
  kDirect,  // for the last lines of a process: written before Log returns
};
// From kOn, what waits is written first: to kDirect in at most a second, which the lines that
// follow share. Thread: one at a time.
void SetLogMode(LogMode mode);
// Of the mode kOn, since start. Thread: any.
LineCounts LogCounts();

using LogValue = std::variant<bool, int64_t, double, std::string>;
using LogFields = std::initializer_list<std::pair<absl::string_view, LogValue>>;

// `event` is one or two snake_case words, stable: people search for it. Thread: any.
void Log(LogLevel level, absl::string_view event, LogFields fields = {});

// As Log, for what clients can cause as often as they like: of one event at most
// kLoggedPerSecond lines in a second. How many were left out is told once the second is over, by
// the event "suppressed" with `of` and `count`. `event` is a literal. Thread: any.
inline constexpr int kLoggedPerSecond = 10;
void LogLimited(LogLevel level, absl::string_view event, LogFields fields = {});
// Tells what was left out in seconds that are over; with `now`, also in those that are not. For
// whoever waits in the process's main thread: a flood may end without another event.
void LogSuppressed(bool now = false);

// Writes finished lines, each with its newline, of another log that shares stderr with this one,
// unless the mode says otherwise, and waits for the reader: for a LineSink. Returns how many whole
// lines were taken, or dropped as the mode says. Thread: any.
int64_t LogLines(absl::string_view lines, absl::FunctionRef<bool()> go_on);

// A time as lines have it: RFC 3339 in UTC, in milliseconds.
std::string LogTime(absl::Time time);

// The line that Log writes, without the newline, for a time already formatted.
std::string FormatLogLine(absl::string_view time, LogLevel level, absl::string_view event,
                          LogFields fields);

}  // namespace rivulet
