// SPDX-License-Identifier: Apache-2.0
#include "server/base/file_watch.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "model/base/thread.h"
#include "server/base/leave_behind.h"
#include "server/base/mutex.h"

namespace rivulet {

struct FileWatch::State {
  State(const char* thread, absl::Duration time, std::function<void(bool asked)> what)
      : name(thread), period(time), look(std::move(what)) {}

  const char* const name;
  const absl::Duration period;
  const std::function<void(bool asked)> look;
  Mutex mutex;
  CondVar wake;  // the thread
  CondVar idle;  // the destructor
  bool asked ABSL_GUARDED_BY(mutex) = false;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool looking ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
};

FileWatch::FileWatch(const char* name, absl::Duration period, std::function<void(bool asked)> look)
    : state_(std::make_shared<State>(name, period, std::move(look))),
      thread_([state = state_] { Run(state.get()); }) {}

FileWatch::~FileWatch() {
  static constexpr absl::Duration kPatience = absl::Milliseconds(500);
  bool ended = false;
  {
    MutexLock lock(&state_->mutex);
    state_->stop = true;
    state_->wake.NotifyOne();
    const absl::Time end = absl::Now() + kPatience;
    while (!state_->ended && (!state_->looking || absl::Now() < end)) {
      state_->idle.WaitFor(&state_->mutex, kPatience);
    }
    ended = state_->ended;
  }
  ended ? thread_.join() : LeaveBehind(std::move(thread_));
}

void FileWatch::Ask() {
  MutexLock lock(&state_->mutex);
  state_->asked = true;
  state_->wake.NotifyOne();
}

void FileWatch::Run(State* state) {
  NameThread(state->name);
  for (;;) {
    bool asked = false;
    {
      MutexLock lock(&state->mutex);
      state->looking = false;
      const absl::Time begin = absl::Now();
      // A clock that is set back must not make the wait longer.
      for (absl::Time now = begin; !state->asked && !state->stop; now = absl::Now()) {
        if (now < begin || now >= begin + state->period) break;
        state->wake.WaitFor(&state->mutex, begin + state->period - now);
      }
      if (state->stop) break;
      asked = std::exchange(state->asked, false);
      state->looking = true;
    }
    state->look(asked);
  }
  MutexLock lock(&state->mutex);
  state->ended = true;
  state->idle.NotifyOne();
}

}  // namespace rivulet
