// SPDX-License-Identifier: Apache-2.0
// LineWriter: writes the lines of a log on a thread of its own. Whoever adds a line never waits for
// the disk, or for the reader of a pipe.
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
// are not mixed, unless they are longer than 4 KiB. Returns how many bytes were taken: fewer after
// an error, which errno then says, or where `go_on` returned false. `go_on` is asked each time that
// nothing was taken for kWritePatienceMs: also where the descriptor blocks, unless another process
// fills the same pipe at that moment. Async-signal-safe where `go_on` is. Thread: any.
size_t WriteWhile(int fd, absl::string_view text, absl::FunctionRef<bool()> go_on);
inline constexpr int kWritePatienceMs = 50;

// Where lines go. Its functions are called by the writer's thread, except Behind.
class LineSink {
 public:
  virtual ~LineSink() = default;
  // Writes lines, each with its newline, and returns how many were taken, with errno set where not
  // all. Where the reader is slow it waits for as long as `go_on` says.
  virtual int64_t Write(absl::string_view lines, absl::FunctionRef<bool()> go_on) = 0;
  // The following tell that lines are lost: once when that begins and once when it is over.
  // Too many wait. Thread: that which adds a line.
  virtual void Behind() {}
  virtual void Failed(int error) { static_cast<void>(error); }
  virtual void Recovered(int64_t lost) { static_cast<void>(lost); }
  // Asked for by LineWriter::Reopen.
  virtual void Reopen() {}
};

struct LineWriterOptions {
  const char* thread = "";    // its name
  size_t max_waiting = 8192;  // lines; one more is dropped
  // How long the thread waits for more lines after the first, so that many wake it seldom.
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
  // Appends one or more lines, each with its newline. Called on the writer's thread: what it costs
  // to format a line is not paid by those who add it.
  using Line = absl::AnyInvocable<void(std::string* text) &&>;

  LineWriter(LineWriterOptions options, std::unique_ptr<LineSink> sink);
  // Writes what waits, however long that takes, unless Stop was called.
  ~LineWriter();

  // Never waits. After Stop: drops it.
  void Add(Line line);
  // Has the thread call the sink's Reopen. A write that waits for a reader ends first.
  void Reopen();
  // Writes what waits, but no longer than until `deadline`: what is left is lost. A thread that the
  // system keeps beyond that, as a file system that hangs does, is left behind
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
