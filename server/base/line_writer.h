// SPDX-License-Identifier: Apache-2.0
// LineWriter: writes the lines of a log on a thread of its own. The threads that add lines never
// wait for the disk, or for the reader of a pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rivulet {

// Writes `text` to a descriptor, whole lines at a time, so that lines of several writers of a pipe
// are not mixed, unless they are longer than 4 KiB. Returns the number of bytes written: fewer
// after an error (then errno is set) or if `go_on` returned false. `go_on` is asked each time that
// nothing was written for kWritePatienceMs, even if the descriptor blocks, unless another process
// fills the same pipe at that moment. Async-signal-safe if `go_on` is. Thread: any.
size_t WriteWhile(int fd, absl::string_view text, absl::FunctionRef<bool()> go_on);
inline constexpr int kWritePatienceMs = 50;

// The target of lines. The writer's thread calls all functions except Behind.
class LineSink {
 public:
  virtual ~LineSink() = default;
  // Writes lines, each with its newline, and returns the number written; if not all were, errno is
  // set. If the reader is slow, it waits as long as `go_on` says.
  virtual int64_t Write(absl::string_view lines, absl::FunctionRef<bool()> go_on) = 0;
  // The next three report lost lines: Behind or Failed once when the loss begins, Recovered when it
  // is over. Behind: too many lines wait. Thread: the thread that adds a line.
  virtual void Behind() {}
  virtual void Failed(int error) { static_cast<void>(error); }
  virtual void Recovered(int64_t lost) { static_cast<void>(lost); }
  // Called for LineWriter::Reopen.
  virtual void Reopen() {}
};

struct LineWriterOptions {
  const char* thread = "";    // its name
  size_t max_waiting = 8192;  // lines; further lines are dropped
  // How long the thread waits for more lines after the first, so that many lines wake it rarely.
  absl::Duration gather = absl::ZeroDuration();
};

// Lines since start.
struct LineCounts {
  int64_t written = 0;
  int64_t dropped = 0;  // too many waited
  int64_t failed = 0;   // the sink did not take them
};

// Thread: any, but Stop and the destructor once each.
class LineWriter {
 public:
  // Appends one or more lines, each with its newline. Called on the writer's thread, so that the
  // thread that adds a line does not pay for formatting it.
  using Line = absl::AnyInvocable<void(std::string* text) &&>;

  LineWriter(LineWriterOptions options, std::unique_ptr<LineSink> sink);
  // Writes all waiting lines, however long this takes, unless Stop was called.
  ~LineWriter();

  // Never waits. After Stop: drops `line`.
  void Add(Line line);
  // Has the thread call the sink's Reopen. A write that waits for a reader ends first.
  void Reopen();
  // Writes waiting lines until `deadline` at most; the rest is lost. If the system keeps the thread
  // longer, for example a file system that hangs, the thread is left behind
  // (server/base/leave_behind.h).
  void Stop(absl::Time deadline);

  LineCounts counts() const;

 private:
  struct State;
  static void Run(State* state);

  const std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

}  // namespace rivulet
