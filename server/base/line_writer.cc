// SPDX-License-Identifier: Apache-2.0
#include "server/base/line_writer.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "model/base/thread.h"
#include "server/base/leave_behind.h"
#include "server/base/mutex.h"

namespace rivulet {
namespace {

// The lines to write at once: a pipe takes a piece of this size as a whole or not at all.
absl::string_view Piece(absl::string_view text) {
  const absl::string_view most = text.substr(0, PIPE_BUF);
  const size_t newline = most.rfind('\n');
  return newline == absl::string_view::npos ? most : most.substr(0, newline + 1);
}

}  // namespace

size_t WriteWhile(int fd, absl::string_view text, absl::FunctionRef<bool()> go_on) {
  size_t done = 0;
  while (done < text.size()) {
    // A blocking descriptor without a reader would keep the thread in write().
    pollfd room{fd, POLLOUT, 0};
    const int ready = poll(&room, 1, kWritePatienceMs);
    const absl::string_view piece = Piece(text.substr(done));
    const ssize_t wrote = ready > 0 ? write(fd, piece.data(), piece.size()) : -1;
    if (wrote > 0) {
      done += static_cast<size_t>(wrote);
      continue;
    }
    if (ready == 0) errno = EAGAIN;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !go_on()) break;
  }
  return done;
}

struct LineWriter::State {
  State(LineWriterOptions opts, std::unique_ptr<LineSink> to)
      : options(opts), sink(std::move(to)) {}

  // Waits for something to do; false at the end, when nothing is left.
  bool Take(std::vector<Line>* lines, bool* reopen);
  void Write(std::vector<Line>* lines);
  bool GoOn();
  void NoteLost(int64_t failed, int error);

  const LineWriterOptions options;
  const std::unique_ptr<LineSink> sink;
  Mutex mutex;
  CondVar wake;  // the thread
  CondVar idle;  // Stop
  std::vector<Line> waiting ABSL_GUARDED_BY(mutex);
  bool reopen ABSL_GUARDED_BY(mutex) = false;
  absl::Time stop_by ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  bool behind ABSL_GUARDED_BY(mutex) = false;  // since the thread last caught up
  bool in_sink ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  std::atomic<int64_t> written = 0, dropped = 0, failed = 0;

  // Used only by the thread.
  int64_t lost_before = 0;  // dropped and failed, when it last caught up
  bool failing = false;
};

bool LineWriter::State::Take(std::vector<Line>* lines, bool* reopen_now) {
  lines->clear();
  MutexLock lock(&mutex);
  in_sink = false;
  while (waiting.empty() && !reopen && !stopped) wake.Wait(&mutex);
  if (options.gather > absl::ZeroDuration() && !reopen && !stopped) {
    wake.WaitFor(&mutex, options.gather);
  }
  lines->swap(waiting);
  *reopen_now = std::exchange(reopen, false);
  in_sink = !lines->empty() || *reopen_now;
  return in_sink;
}

bool LineWriter::State::GoOn() {
  MutexLock lock(&mutex);
  return !reopen && absl::Now() < stop_by;
}

void LineWriter::State::Write(std::vector<Line>* lines) {
  std::string text;
  for (Line& line : *lines) std::move(line)(&text);
  lines->clear();
  const int64_t count = std::count(text.begin(), text.end(), '\n');
  const int64_t taken = sink->Write(text, [this] { return GoOn(); });
  const int error = errno;
  written += taken;
  failed += count - taken;
  NoteLost(count - taken, error);
}

void LineWriter::State::NoteLost(int64_t now, int error) {
  if (now > 0) {
    if (!std::exchange(failing, true)) sink->Failed(error);
    return;
  }
  failing = false;
  int64_t lost = 0;
  {
    MutexLock lock(&mutex);
    if (waiting.size() >= options.max_waiting) return;  // still behind
    behind = false;
    const int64_t lost_now = dropped + failed;
    lost = lost_now - std::exchange(lost_before, lost_now);
  }
  if (lost > 0) sink->Recovered(lost);
}

LineWriter::LineWriter(LineWriterOptions options, std::unique_ptr<LineSink> sink)
    : state_(std::make_shared<State>(options, std::move(sink))),
      thread_([state = state_] { Run(state.get()); }) {}

LineWriter::~LineWriter() { Stop(absl::InfiniteFuture()); }

void LineWriter::Run(State* state) {
  NameThread(state->options.thread);
  std::vector<Line> lines;
  for (bool reopen = false; state->Take(&lines, &reopen);) {
    if (reopen) state->sink->Reopen();
    if (!lines.empty()) state->Write(&lines);
  }
  MutexLock lock(&state->mutex);
  state->ended = true;
  state->idle.NotifyOne();
}

void LineWriter::Add(Line line) {
  bool first = false, behind = false;
  {
    MutexLock lock(&state_->mutex);
    if (state_->stopped || state_->waiting.size() >= state_->options.max_waiting) {
      ++state_->dropped;
      behind = !state_->stopped && !std::exchange(state_->behind, true);
    } else {
      first = state_->waiting.empty();
      state_->waiting.push_back(std::move(line));
    }
  }
  if (first) state_->wake.NotifyOne();
  if (behind) state_->sink->Behind();
}

void LineWriter::Reopen() {
  {
    MutexLock lock(&state_->mutex);
    state_->reopen = true;
  }
  state_->wake.NotifyOne();
}

void LineWriter::Stop(absl::Time deadline) {
  if (!thread_.joinable()) return;
  // From the deadline until the thread has noticed it.
  static constexpr absl::Duration kGrace = absl::Milliseconds(2 * kWritePatienceMs);
  bool ended = false;
  {
    MutexLock lock(&state_->mutex);
    state_->stopped = true;
    state_->stop_by = deadline;
    state_->wake.NotifyOne();
    while (!state_->ended && (!state_->in_sink || absl::Now() < deadline + kGrace)) {
      state_->idle.WaitFor(&state_->mutex, kGrace);
    }
    ended = state_->ended;
  }
  ended ? thread_.join() : LeaveBehind(std::move(thread_));
}

LineCounts LineWriter::counts() const {
  return {state_->written.load(), state_->dropped.load(), state_->failed.load()};
}

}  // namespace rivulet
