// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_load.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <stop_token>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/bench/bench_schedule.h"
#include "client/cli/bench/bench_workload.h"
#include "client/cli/output/exit_code.h"

namespace rivulet {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kTick = 100'000'000;
// In a closed loop a worker waits after a failed request, so that a target that refuses everything
// does not get requests at full speed.
constexpr int64_t kPauseAfterError = 100'000'000;

int64_t Nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Load {
 public:
  Load(const BenchOptions& options, const v1::GetModelReply& model, std::vector<Client> clients,
       const LoadCallbacks& callbacks, Measurements* measurements)
      : options_(options),
        workload_(options, model),
        clients_(std::move(clients)),
        callbacks_(callbacks),
        measured_(*measurements) {}

  absl::Status Run();

 private:
  struct Request {
    int64_t index, intended, sent;
    bool is_measured;
    int64_t first = 0, last = 0;  // times of messages with tokens; 0: none yet
    int64_t tokens = 0;
    int64_t promised = -1;  // tokens that the server says it sent
  };

  void RunOpen();
  void RunClosed();
  void CountUnsent(ArrivalSchedule* schedule, int64_t intended);
  void AwaitReplies();
  void FinishWindow();

  // Sends one request, unless the run sends no more.
  void Send(int64_t intended);
  std::unique_ptr<Request> Claim(int64_t intended);
  // The error of a reply that ended with OK but lacks tokens.
  static absl::Status Incomplete(const Request& request) {
    return absl::InternalError(absl::StrCat("a reply held ", request.tokens, " tokens where ",
                                            request.promised, " were sent"));
  }
  bool OnPart(Request* request, const v1::GenerateReply& part);
  void OnEnd(std::unique_ptr<Request> request, const absl::Status& status);
  void Count(const Request& request, const absl::Status& status, int64_t now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Waits until `time`, or `condition_` is signalled, or the next tick is due, and ticks.
  void Wait(int64_t time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Stop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool InWindow(int64_t time) const { return time >= window_begin_ && time < window_end_; }

  const BenchOptions& options_;
  const Workload workload_;
  const std::vector<Client> clients_;
  const LoadCallbacks& callbacks_;
  std::stop_source stop_;
  int64_t start_ = 0, next_tick_ = 0;  // of the thread of Run()

  absl::Mutex mutex_;
  absl::CondVar condition_;  // of the thread of Run()
  // Guarded by mutex_, except the histograms, which are thread-safe.
  Measurements& measured_;
  int64_t next_index_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t measured_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_end_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stopped_at_ ABSL_GUARDED_BY(mutex_) = kNever;
  bool all_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool reached_requests_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);
  // Closed loop: the times at which paused workers send again, soonest first.
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> due_ ABSL_GUARDED_BY(mutex_);

  std::atomic<int64_t> window_begin_{kNever}, window_end_{kNever};
  std::atomic<int64_t> window_tokens_{0}, window_messages_{0}, window_requests_{0};
};

absl::Status Load::Run() {
  const double cpu_before = CpuSeconds();
  start_ = next_tick_ = Now();
  if (options_.warmup_requests == 0) {
    window_begin_ = start_ + Nanoseconds(options_.warmup_seconds);
    if (options_.duration_seconds.has_value()) {
      window_end_ = window_begin_ + Nanoseconds(*options_.duration_seconds);
    }
  }
  options_.rate > 0 ? RunOpen() : RunClosed();
  AwaitReplies();
  FinishWindow();
  measured_.run_seconds = static_cast<double>(Now() - start_) * 1e-9;
  measured_.cpu_seconds = CpuSeconds() - cpu_before;
  absl::MutexLock lock(&mutex_);
  return fatal_;
}

void Load::RunOpen() {
  ArrivalSchedule schedule(options_.rate, options_.poisson, *options_.sampling.seed);
  while (true) {
    const int64_t intended = start_ + schedule.Next();
    {
      absl::MutexLock lock(&mutex_);
      // A request that is due after the end is not sent.
      if (intended >= window_end_) all_sent_ = true;
      while (stopped_at_ == kNever && !all_sent_ && Now() < intended) Wait(intended);
      while (stopped_at_ == kNever && !all_sent_ && in_flight_ >= options_.max_in_flight) {
        Wait(kNever);
      }
      Tick();
      if (stopped_at_ == kNever && all_sent_) return;
    }
    if (stop_.stop_requested()) return CountUnsent(&schedule, intended);
    Send(intended);
  }
}

void Load::CountUnsent(ArrivalSchedule* schedule, int64_t intended) {
  absl::MutexLock lock(&mutex_);
  int64_t left = options_.requests.value_or(kNever) - measured_sent_;
  for (; intended <= stopped_at_ && intended < window_end_ && left > 0; --left) {
    if (intended >= window_begin_) ++measured_.unsent;
    intended = start_ + schedule->Next();
  }
}

void Load::RunClosed() {
  for (int64_t i = 0; i < options_.concurrency; ++i) Send(Now());
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const int64_t now = Now();
      if (now >= window_end_) all_sent_ = true;
      if (stopped_at_ != kNever || all_sent_) return;
      if (due_.empty() || due_.top() > now) {
        Wait(std::min<int64_t>(due_.empty() ? kNever : due_.top(), window_end_));
        continue;
      }
      due_.pop();
    }
    Send(Now());
  }
}

void Load::AwaitReplies() {
  absl::MutexLock lock(&mutex_);
  all_sent_ = true;
  while (in_flight_ > 0) Wait(kNever);
}

void Load::FinishWindow() {
  absl::MutexLock lock(&mutex_);
  int64_t end = window_end_;
  if (stopped_at_ != kNever) {
    end = std::min(end, stopped_at_);
    measured_.was_interrupted = true;
  } else if (reached_requests_ || end == kNever) {
    end = std::min(end, last_end_);
  }
  measured_.window_seconds = static_cast<double>(std::max<int64_t>(end - window_begin_, 0)) * 1e-9;
  measured_.window_tokens = window_tokens_;
  measured_.window_messages = window_messages_;
  measured_.window_requests = window_requests_;
}

void Load::Send(int64_t intended) {
  std::unique_ptr<Request> claimed = Claim(intended);
  if (claimed == nullptr) return;
  const Client& client = clients_[static_cast<size_t>(claimed->index) % clients_.size()];
  CallOptions call = {.stop = stop_.get_token(), .resume = false};  // a lost reply has failed
  if (options_.deadline_seconds.has_value()) {
    call.deadline = absl::Now() + absl::Seconds(*options_.deadline_seconds);
  }
  // std::function requires copyable captures. The last callback takes ownership back.
  Request* const request = claimed.release();
  if (options_.score) {
    client.ScoreAsync(
        workload_.Score(request->index),
        [this, request](const absl::StatusOr<v1::ScoreReply>& reply) {
          if (reply.ok()) request->tokens = reply->num_scored();
          if (InWindow(Now())) window_tokens_ += request->tokens;
          OnEnd(std::unique_ptr<Request>(request), reply.status());
        },
        call);
    return;
  }
  client.GenerateAsync(
      workload_.Generate(request->index),
      [this, request](const v1::GenerateReply& part) { return OnPart(request, part); },
      [this, request](const absl::Status& status) {
        const bool whole = !status.ok() || request->tokens == request->promised;
        OnEnd(std::unique_ptr<Request>(request), whole ? status : Incomplete(*request));
      },
      call);
}

std::unique_ptr<Load::Request> Load::Claim(int64_t intended) {
  absl::MutexLock lock(&mutex_);
  if (stopped_at_ != kNever || all_sent_) return nullptr;
  const bool warmed_up = next_index_ >= options_.warmup_requests;
  if (warmed_up && window_begin_ == kNever) {
    window_begin_ = intended;
    if (options_.duration_seconds.has_value()) {
      window_end_ = intended + Nanoseconds(*options_.duration_seconds);
    }
  }
  reached_requests_ = options_.requests.has_value() && measured_sent_ >= *options_.requests;
  if (reached_requests_ || intended >= window_end_) {
    all_sent_ = true;
    condition_.Signal();
    return nullptr;
  }
  auto request = std::make_unique<Request>();
  request->index = next_index_++;
  request->intended = intended;
  request->sent = Now();
  // A worker may have read the clock before the worker that began the window. With a warm-up in
  // requests, only the number of requests decides.
  const bool begun = options_.warmup_requests > 0 || intended >= window_begin_;
  request->is_measured = warmed_up && begun;
  ++in_flight_;
  if (!request->is_measured) {
    ++measured_.warmup;
    return request;
  }
  ++measured_sent_;
  const int64_t delay = request->sent - intended;
  measured_.send_delay.Record(delay);
  if (delay > kLateNanoseconds) ++measured_.late;
  return request;
}

bool Load::OnPart(Request* request, const v1::GenerateReply& part) {
  if (part.has_usage()) request->promised = part.usage().completion_tokens();
  if (part.tokens_size() == 0) return true;
  const int64_t now = Now();
  if (InWindow(now)) {
    window_tokens_.fetch_add(part.tokens_size(), std::memory_order_relaxed);
    window_messages_.fetch_add(1, std::memory_order_relaxed);
  }
  request->tokens += part.tokens_size();
  if (request->first == 0) {
    request->first = now;
  } else if (request->is_measured) {
    measured_.message_gap.Record(now - request->last);
  }
  request->last = now;
  return true;
}

void Load::OnEnd(std::unique_ptr<Request> request, const absl::Status& status) {
  const int64_t now = Now();
  if (status.ok() && InWindow(now)) ++window_requests_;
  bool sends_again = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ExitCodeOf(status) == kExitBadInput && fatal_.ok()) {
      fatal_ = status;
      stopped_at_ = std::min(stopped_at_, now);
    } else if (request->is_measured) {
      last_end_ = now;
      Count(*request, status, now);
    }
    if (options_.rate == 0 && stopped_at_ == kNever && !all_sent_) {
      const int64_t pause = status.ok() ? Nanoseconds(options_.think_ms / 1000) : kPauseAfterError;
      sends_again = pause == 0;
      if (!sends_again) due_.push(now + pause);
    }
  }
  if (sends_again) Send(Now());
  // Last, because the thread of Run() may destroy this object after it.
  absl::MutexLock lock(&mutex_);
  --in_flight_;
  condition_.Signal();
}

void Load::Count(const Request& request, const absl::Status& status, int64_t now) {
  if (status.ok()) {
    ++measured_.succeeded;
    measured_.tokens += request.tokens;
    measured_.end_to_end.Record(now - request.intended);
    measured_.end_to_end_sent.Record(now - request.sent);
    if (request.first == 0) return;
    measured_.first_token.Record(request.first - request.intended);
    measured_.first_token_sent.Record(request.first - request.sent);
    return;
  }
  if (status.code() == absl::StatusCode::kCancelled && stopped_at_ != kNever) {
    ++measured_.interrupted;
    return;
  }
  ++measured_.failed;
  if (status.code() == absl::StatusCode::kResourceExhausted) ++measured_.rejected;
  if (measured_.first_error.ok()) measured_.first_error = status;
  Measurements::Error& error =
      measured_.errors[{absl::StatusCodeToString(status.code()), GetErrorInfo(status).reason}];
  if (error.count++ == 0) error.message = Description(status);
}

void Load::Wait(int64_t time) {
  const int64_t now = Now();
  const int64_t until = std::min(time, next_tick_);
  if (until > now) condition_.WaitWithTimeout(&mutex_, absl::Nanoseconds(until - now));
  Tick();
}

void Load::Tick() {
  const int64_t now = Now();
  if (stopped_at_ != kNever && !stop_.stop_requested()) Stop();
  if (now < next_tick_) return;
  next_tick_ = now + kTick;
  LoadState state;
  state.seconds = static_cast<double>(now - start_) * 1e-9;
  state.sent = next_index_;
  state.in_flight = in_flight_;
  state.failed = measured_.failed;
  state.ended = measured_.succeeded + measured_.failed;
  state.tokens = window_tokens_;
  state.window_seconds = static_cast<double>(std::max<int64_t>(now - window_begin_, 0)) * 1e-9;
  state.waiting = all_sent_;
  mutex_.Unlock();
  const bool goes_on = !callbacks_.on_tick || callbacks_.on_tick(state);
  mutex_.Lock();
  if (!goes_on && stopped_at_ == kNever) {
    stopped_at_ = Now();
    Stop();
  }
}

void Load::Stop() {
  // Cancelling runs gRPC's code.
  mutex_.Unlock();
  stop_.request_stop();
  mutex_.Lock();
}

}  // namespace

absl::Status RunLoad(const BenchOptions& options, const v1::GetModelReply& model,
                     std::vector<Client> clients, const LoadCallbacks& callbacks,
                     Measurements* measurements) {
  return Load(options, model, std::move(clients), callbacks, measurements).Run();
}

}  // namespace rivulet
