// SPDX-License-Identifier: Apache-2.0
#include "server/engine/request_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

absl::Status Unavailable(absl::string_view reason, absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  return MakeError(absl::StatusCode::kUnavailable, message, detail);
}

absl::Status QueueFull(absl::string_view message) {
  ErrorDetail detail;
  detail.reason = "QUEUE_FULL";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kResourceExhausted, message, detail);
}

}  // namespace

RequestQueue::RequestQueue(int slots, int max_queue, int64_t max_queue_tokens, Clock clock)
    : max_accepted_(int64_t{slots} + max_queue),
      max_accepted_tokens_(max_queue_tokens),
      clock_(std::move(clock)) {
  MutexLock lock(&mutex_);
  load_.slots = slots;
  load_.max_queue = max_queue;
}

absl::Status RequestQueue::CheckOpen() const {
  if (!load_.health.ok()) {
    return Unavailable("BACKEND_FAILED", "The model's backend has failed.");
  }
  if (arrivals_.stop) return Unavailable("SHUTDOWN", "The server is shutting down.");
  if (load_.draining) return Unavailable("DRAINING", "The server takes no new requests.");
  return absl::OkStatus();
}

absl::StatusOr<RequestId> RequestQueue::NewId() {
  MutexLock lock(&mutex_);
  RIVULET_RETURN_IF_ERROR(CheckOpen());
  return ++last_id_;
}

absl::StatusOr<RequestId> RequestQueue::Submit(std::unique_ptr<Request> request) {
  MutexLock lock(&mutex_);
  RIVULET_RETURN_IF_ERROR(CheckOpen());
  request->places = std::max(1, request->num_slots);
  if (accepted_ + request->places > max_accepted_) {
    return QueueFull(absl::StrCat("The queue is full: ", accepted_, " running or waiting, ",
                                  request->places, " asked for, ", max_accepted_, " allowed."));
  }
  // One request alone is bounded by the size of a message; many of them are bounded here.
  if (accepted_tokens_ > 0 && accepted_tokens_ + request->num_tokens > max_accepted_tokens_) {
    return QueueFull(absl::StrCat("The queue is full: requests with ", accepted_tokens_,
                                  " given tokens are running or waiting, ", request->num_tokens,
                                  " more are asked for, ", max_accepted_tokens_, " allowed."));
  }
  accepted_ += request->places;
  accepted_tokens_ += request->num_tokens;
  request->id = ++last_id_;
  request->arrival = clock_();
  arrivals_.requests.push_back(std::move(request));
  NotifyLoop();
  return last_id_;
}

void RequestQueue::Cancel(RequestId id) {
  MutexLock lock(&mutex_);
  if (id != 0 && id <= last_id_) arrivals_.cancelled.push_back(id);
  NotifyLoop();
}

void RequestQueue::Wake() {
  MutexLock lock(&mutex_);
  NotifyLoop();
}

bool RequestQueue::StartDrain(bool end_rest) {
  MutexLock lock(&mutex_);
  load_.draining = true;
  if (accepted_ == 0 && !handing_) return true;
  arrivals_.end_all |= end_rest;
  NotifyLoop();
  return false;
}

bool RequestQueue::Drain(absl::Time deadline) {
  StartDrain(false);
  MutexLock lock(&mutex_);
  while (accepted_ > 0 || handing_) {
    const absl::Duration left = deadline - clock_();
    if (left <= absl::ZeroDuration()) break;
    ended_.WaitFor(&mutex_, left);
  }
  // Not so where another drain of the same queue, with an earlier deadline, had the rest ended.
  if (accepted_ == 0 && !handing_) return !arrivals_.end_all;
  arrivals_.end_all = true;
  NotifyLoop();
  while (accepted_ > 0 || handing_) ended_.Wait(&mutex_);
  return false;
}

void RequestQueue::Stop() {
  MutexLock lock(&mutex_);
  arrivals_.stop = true;
  NotifyLoop();
}

EngineLoad RequestQueue::load() const {
  MutexLock lock(&mutex_);
  EngineLoad load = load_;
  load.queued = accepted_ - load.running;
  load.tokens_per_second = rate_.PerSecond(clock_());
  return load;
}

void RequestQueue::Exchange(absl::Time now, const Progress& progress, Arrivals* arrivals) {
  arrivals->requests.clear();
  arrivals->cancelled.clear();
  MutexLock lock(&mutex_);
  woken_ = false;
  arrivals->requests.swap(arrivals_.requests);
  arrivals->cancelled.swap(arrivals_.cancelled);
  arrivals->end_all = arrivals_.end_all;
  arrivals->stop = arrivals_.stop;
  NoteLocked(now, progress);
}

void RequestQueue::Note(absl::Time now, const Progress& progress) {
  MutexLock lock(&mutex_);
  NoteLocked(now, progress);
}

void RequestQueue::NoteLocked(absl::Time now, const Progress& progress) {
  load_.slots_used = load_.running = progress.slots_used;
  load_.client_sessions = progress.client_sessions;
  load_.states = progress.states;
  load_.cache_hits = progress.cache_hits;
  load_.cache_misses = progress.cache_misses;
  load_.cache_bytes = progress.cache_bytes;
  load_.tokens_total += progress.sampled;
  if (progress.sampled + progress.fed > 0) rate_.Add(now, progress.sampled + progress.fed);
  accepted_ -= progress.ended;
  accepted_tokens_ -= progress.ended_tokens;
  if (progress.ended > 0) handing_ = true;
}

void RequestQueue::EndsHanded() {
  MutexLock lock(&mutex_);
  handing_ = false;
  if (load_.draining) ended_.NotifyAll();
}

void RequestQueue::WaitForArrivals(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  if (woken_) return;
  waiting_ = true;
  arrived_.WaitFor(&mutex_,
                   timeout);  // woken early by chance, the loop finds nothing and comes back
  waiting_ = false;
}

void RequestQueue::NoteFileError(const absl::Status& error) {
  MutexLock lock(&mutex_);
  load_.state_file_error = std::string(error.message());
}

void RequestQueue::Poison(const absl::Status& health) {
  MutexLock lock(&mutex_);
  load_.health = health;
}

void RequestQueue::NotifyLoop() {
  woken_ = true;
  if (waiting_) arrived_.NotifyOne();
}

}  // namespace rivulet
