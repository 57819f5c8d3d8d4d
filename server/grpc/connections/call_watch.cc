// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/call_watch.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "server/base/mutex.h"
#include "server/log.h"

namespace rivulet {
namespace {

// A look costs some 30 us a connection. The watch looks at once when there are many calls, else at
// this interval, for calls of gRPC's own services, which are not counted here.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);
constexpr absl::Duration kLookAgainAfter = absl::Milliseconds(20);
constexpr int kIdleShare = 50;  // looks take at most 1 / kIdleShare of the time
constexpr int kBusyShare = 10;  // the same while there are many calls

// The CPU time of this thread: what a look costs others, also if it waited for a core.
absl::Duration ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

struct CallWatch::State {
  explicit State(int64_t many_calls) : many(many_calls) {}

  void Count() {
    if (calls.fetch_add(1, std::memory_order_relaxed) != many) return;
    MutexLock lock(&mutex);
    changed.NotifyAll();
  }
  // Returns when `timeout` has passed, when stopped, or, if `or_many`, when there are many calls.
  void Wait(absl::Duration timeout, bool or_many) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const absl::Time end = absl::Now() + timeout;
    while (!stopped && !(or_many && calls.load(std::memory_order_relaxed) > many)) {
      const absl::Duration left = end - absl::Now();
      if (left <= absl::ZeroDuration()) return;
      changed.WaitFor(&mutex, left);
    }
  }

  const int64_t many;
  std::atomic<int64_t> calls = 0;
  Mutex mutex;
  CondVar changed;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

namespace {

// gRPC calls New... when a call arrives, before it waits for a thread, and Release when it has
// ended. Without a context from here it makes its own.
template <typename State>
class CallCounter final : public grpc::ContextAllocator {
 public:
  explicit CallCounter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  grpc::CallbackServerContext* NewCallbackServerContext() override {
    state_->Count();
    return nullptr;
  }
  grpc::GenericCallbackServerContext* NewGenericCallbackServerContext() override {
    state_->Count();
    return nullptr;
  }
  void Release(grpc::CallbackServerContext*) override { --state_->calls; }
  void Release(grpc::GenericCallbackServerContext*) override { --state_->calls; }

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace

CallWatch::CallWatch(int max_streams, Close close, List list)
    : rates_(max_streams),
      list_(std::move(list)),
      close_(std::move(close)),
      state_(std::make_shared<State>(rates_.many())),
      thread_([this] { Run(); }) {}

CallWatch::~CallWatch() {
  {
    MutexLock lock(&state_->mutex);
    state_->stopped = true;
    state_->changed.NotifyAll();
  }
  thread_.join();
}

std::unique_ptr<grpc::ContextAllocator> CallWatch::Counter() {
  return std::make_unique<CallCounter<State>>(state_);
}

void CallWatch::Run() {
  State& state = *state_;
  absl::Duration took;
  MutexLock lock(&state.mutex);
  while (!state.stopped) {
    state.Wait(std::max(kLookAgainAfter, kBusyShare * took), false);
    state.Wait(std::max(kLookEvery, kIdleShare * took), true);
    if (state.stopped) return;
    state.mutex.Unlock();
    const absl::Duration begin = ThreadTime();
    Look();
    took = ThreadTime() - begin;
    state.mutex.Lock();
  }
}

void CallWatch::Look() {
  for (const ConnectionCalls& offender : rates_.Offenders(list_(), absl::Now())) {
    if (!close_(offender.peer)) continue;
    LogLimited(LogLevel::kWarning, "connections_closed",
               {{"reason", std::string("calls reset")},
                {"peer", offender.peer},
                {"calls", offender.unfinished()},
                {"started", offender.started},
                {"succeeded", offender.succeeded}});
  }
}

}  // namespace rivulet
