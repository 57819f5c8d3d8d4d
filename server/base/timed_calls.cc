// SPDX-License-Identifier: Apache-2.0
#include "server/base/timed_calls.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "model/base/thread.h"
#include "server/base/leave_behind.h"
#include "server/base/mutex.h"

namespace rivulet {
namespace {

// Why a call is refused.
constexpr char kLate[] = " gave no answer in time.";
constexpr char kFull[] = " has too many calls waiting.";
constexpr char kIsClosed[] = " is closed.";

using SteadyTime = std::chrono::steady_clock::time_point;

SteadyTime After(absl::Duration time) {
  if (time == absl::InfiniteDuration()) return SteadyTime::max();
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(time);
}
absl::Duration Left(SteadyTime until) {
  return std::max(absl::FromChrono(until - std::chrono::steady_clock::now()), absl::ZeroDuration());
}

}  // namespace

// The state that both threads share; a thread that is left behind keeps it.
class TimedCalls::Queue {
 public:
  explicit Queue(TimedCallsOptions options) : options_(std::move(options)) {}

  void Push(Call call);
  // The threads run these until Stop. Watch then goes on until every call is answered.
  void Work();
  void Watch();
  void Stop();
  // Whether Work has returned, or does so within end_time.
  bool HasEnded();

 private:
  struct Timed {
    Call call;
    SteadyTime until;
  };
  struct Refused {
    Call call;
    const char* why;
  };
  using Ask = decltype(Call::ask);

  // The next call; nullptr: it is time to sweep, or to stop.
  Ask Next(SteadyTime sweep_at, bool* stop);
  // Whether the running call has no answer yet; then the caller of EndRunning answers.
  bool EndRunning();
  // Waits for calls that must be refused. False: every call is answered, and there are no more.
  bool AwaitRefused(std::vector<Refused>* refused);

  const TimedCallsOptions options_;
  Mutex mutex_;
  CondVar work_, watch_, ended_;
  std::deque<Timed> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<Call> excess_ ABSL_GUARDED_BY(mutex_);      // found the queue full
  std::optional<Timed> running_ ABSL_GUARDED_BY(mutex_);  // none, too, once it was refused
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;            // it was refused because of since_begin
  SteadyTime looks_at_ ABSL_GUARDED_BY(mutex_) = SteadyTime::max();  // when Watch looks again
  bool stop_ ABSL_GUARDED_BY(mutex_) = false, has_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

void TimedCalls::Queue::Push(Call call) {
  MutexLock lock(&mutex_);
  const SteadyTime until = After(options_.since_push);
  const bool full = waiting_.size() >= options_.most_waiting;
  if (full || hangs_ || until < looks_at_) watch_.NotifyOne();
  if (full) return excess_.push_back(std::move(call));
  waiting_.push_back({std::move(call), until});
  work_.NotifyOne();
}

TimedCalls::Queue::Ask TimedCalls::Queue::Next(SteadyTime sweep_at, bool* stop) {
  MutexLock lock(&mutex_);
  if (!stop_ && waiting_.empty()) work_.WaitFor(&mutex_, Left(sweep_at));
  *stop = stop_;
  if (stop_ || waiting_.empty()) return nullptr;
  running_ = std::move(waiting_.front());
  waiting_.pop_front();
  running_->until = std::min(running_->until, After(options_.since_begin));
  if (running_->until < looks_at_) watch_.NotifyOne();
  return std::move(running_->call.ask);
}

bool TimedCalls::Queue::EndRunning() {
  MutexLock lock(&mutex_);
  const bool late = !running_.has_value();
  running_.reset();
  hangs_ = false;
  if (stop_) watch_.NotifyOne();
  return !late;
}

void TimedCalls::Queue::Work() {
  NameThread(options_.name);
  SteadyTime sweep_at = After(options_.sweep_every);
  while (true) {
    bool stop = false;
    if (const auto ask = Next(sweep_at, &stop); ask != nullptr) {
      const std::function<void()> answer = ask();
      if (EndRunning()) answer();
    }
    if (stop) break;
    if (Left(sweep_at) > absl::ZeroDuration()) continue;
    const bool again = options_.sweep();
    sweep_at = After(again ? absl::ZeroDuration() : options_.sweep_every);
  }
  MutexLock lock(&mutex_);
  has_ended_ = true;
  ended_.NotifyOne();
}

bool TimedCalls::Queue::AwaitRefused(std::vector<Refused>* refused) {
  MutexLock lock(&mutex_);
  const bool refuses =
      !excess_.empty() || ((stop_ || hangs_) && !waiting_.empty()) || (stop_ && !running_);
  // Calls that came while this thread refused calls have not woken it.
  looks_at_ = SteadyTime::max();
  if (!waiting_.empty()) looks_at_ = waiting_.front().until;
  if (running_) looks_at_ = running_->until;
  if (!refuses) watch_.WaitFor(&mutex_, Left(looks_at_));
  const SteadyTime now = After(absl::ZeroDuration());
  for (Call& call : excess_) refused->push_back({std::move(call), kFull});
  excess_.clear();
  if (running_ && running_->until <= now) {
    hangs_ = options_.since_begin < absl::InfiniteDuration();
    refused->push_back({std::move(running_->call), kLate});
    running_.reset();
  }
  for (; !waiting_.empty() && (stop_ || hangs_ || waiting_.front().until <= now);
       waiting_.pop_front()) {
    refused->push_back({std::move(waiting_.front().call), stop_ ? kIsClosed : kLate});
  }
  return !stop_ || running_;
}

void TimedCalls::Queue::Watch() {
  NameThread("disk-watch");
  std::vector<Refused> refused;
  for (bool go_on = true; go_on;) {
    go_on = AwaitRefused(&refused);
    for (const auto& [call, why] : refused) {
      call.refuse(absl::UnavailableError(absl::StrCat(options_.whose, why)));
    }
    refused.clear();
  }
}

void TimedCalls::Queue::Stop() {
  MutexLock lock(&mutex_);
  stop_ = true;
  if (running_) running_->until = std::min(running_->until, After(options_.end_time));
  work_.NotifyOne();
  watch_.NotifyOne();
}

bool TimedCalls::Queue::HasEnded() {
  MutexLock lock(&mutex_);
  const SteadyTime end = After(options_.end_time);
  while (!has_ended_ && Left(end) > absl::ZeroDuration()) ended_.WaitFor(&mutex_, Left(end));
  return has_ended_;
}

TimedCalls::TimedCalls(TimedCallsOptions options)
    : queue_(std::make_shared<Queue>(std::move(options))),
      work_([queue = queue_] { queue->Work(); }),
      watch_([queue = queue_] { queue->Watch(); }) {}

TimedCalls::~TimedCalls() {
  queue_->Stop();
  watch_.join();
  queue_->HasEnded() ? work_.join() : LeaveBehind(std::move(work_));
}

void TimedCalls::Push(Call call) { queue_->Push(std::move(call)); }

}  // namespace rivulet
