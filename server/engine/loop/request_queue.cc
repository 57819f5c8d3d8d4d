// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/request_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/base/fair_share.h"

namespace rivulet {
namespace {

constexpr absl::Duration kSaveWait = absl::Seconds(5);

absl::Status Unavailable(absl::string_view reason, absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  return MakeError(absl::StatusCode::kUnavailable, message, detail);
}

}  // namespace

absl::Status RequestQueue::CheckOpen(bool while_draining) const {
  if (!health_.ok()) {
    return Unavailable("BACKEND_FAILED", "The model's backend has failed.");
  }
  if (arrivals_.stop) return Unavailable("SHUTDOWN", "The server is shutting down.");
  if (draining_ && (!while_draining || arrivals_.end_all)) {
    return Unavailable("DRAINING", "The server takes no new requests.");
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> RequestQueue::NewId() {
  MutexLock lock(&mutex_);
  RIVULET_RETURN_IF_ERROR(CheckOpen(/*while_draining=*/false));
  return ++last_id_;
}

absl::StatusOr<RequestId> RequestQueue::Submit(std::unique_ptr<LiveRequest> request) {
  MutexLock lock(&mutex_);
  RIVULET_RETURN_IF_ERROR(CheckOpen(request->while_draining));
  const absl::Time now = clock_();
  KeyAccount* const key = request->account.key.get();
  if (key != nullptr) RIVULET_RETURN_IF_ERROR(key->CheckTokens(now));
  request->account.places = std::max(1, request->num_slots);
  absl::Status room = CheckLimits(*request);
  if (!room.ok()) {
    ++refused_;
    return room;
  }
  for (Accepted* accepted : {&accepted_, &accepted_of_[request->account.tenant]}) {
    accepted->places += request->account.places;
    accepted->tokens += request->account.queued_tokens();
  }
  if (key != nullptr) key->TakeTokens(request->account.num_tokens, now);
  if (CallerTokens* const usage = request->account.usage.get(); usage != nullptr) {
    usage->given += request->account.num_tokens;
  }
  request->id = ++last_id_;
  request->times.arrival = now;
  arrivals_.requests.push_back(std::move(request));
  NotifyLoop();
  return last_id_;
}

absl::Status RequestQueue::CheckLimits(const LiveRequest& request) const {
  const int64_t most = int64_t{limits_.slots} + limits_.max_queue;
  if (accepted_.places + request.account.places > most) {
    return Exhausted("QUEUE_FULL", TimeFor(accepted_.places - limits_.slots),
                     absl::StrCat("The queue is full: ", accepted_.places, " running or waiting, ",
                                  request.account.places, " asked for, ", most, " allowed."));
  }
  // The size of a message bounds one request; this bounds many requests together.
  if (accepted_.tokens > 0 &&
      accepted_.tokens + request.account.queued_tokens() > limits_.max_tokens) {
    return Exhausted(
        "QUEUE_FULL", TimeFor(accepted_.places - limits_.slots),
        absl::StrCat("The queue is full: requests with ", accepted_.tokens,
                     " given tokens are running or waiting, ", request.account.queued_tokens(),
                     " more are asked for, ", limits_.max_tokens, " allowed."));
  }
  const auto found = accepted_of_.find(request.account.tenant);
  return CheckTenantRoom(request, found == accepted_of_.end() ? Accepted() : found->second);
}

absl::Status RequestQueue::CheckTenantRoom(const LiveRequest& request, const Accepted& own) const {
  // Slots that other tenants leave free are not counted: a lone tenant may use all of them.
  const int64_t others = accepted_.places - own.places;
  const int64_t uncounted = std::max<int64_t>(0, limits_.slots - others);
  const int64_t held = std::max<int64_t>(own.places, uncounted);
  int64_t most = uncounted + MostFor(int64_t{limits_.slots} + limits_.max_queue, others + held,
                                     held - uncounted);
  if (own.places == 0)
    most = std::max<int64_t>(most, request.account.places);  // there is room for it
  if (limits_.max_tenant_queue > 0) {
    most = std::min(most, int64_t{limits_.slots} + limits_.max_tenant_queue);
  }
  // The tenant shares the rate evenly with the other tenants here.
  const int64_t ahead = own.places * static_cast<int64_t>(accepted_of_.size());
  if (own.places + request.account.places > most) {
    return Exhausted("TENANT_QUEUE_FULL", TimeFor(ahead),
                     absl::StrCat("The tenant's queue is full: ", own.places,
                                  " running or waiting, ", request.account.places, " asked for, ",
                                  most, " allowed now; the rest is for other tenants."));
  }
  if (own.tokens == 0 || request.account.queued_tokens() == 0) return absl::OkStatus();
  const int64_t most_tokens = MostFor(limits_.max_tokens, accepted_.tokens, own.tokens);
  if (own.tokens + request.account.queued_tokens() <= most_tokens) return absl::OkStatus();
  return Exhausted("TENANT_QUEUE_FULL", TimeFor(ahead),
                   absl::StrCat("The tenant's queue is full: requests with ", own.tokens,
                                " given tokens are running or waiting, ",
                                request.account.queued_tokens(), " more are asked for, ",
                                most_tokens, " allowed now; the rest is for other tenants."));
}

// The time in which `places` become free, at the rate of the last seconds.
absl::Duration RequestQueue::TimeFor(int64_t places) const {
  const double rate = ended_rate_.PerSecond(clock_());
  if (rate <= 0) return absl::Seconds(1);  // nobody knows
  return std::clamp(absl::Seconds(static_cast<double>(places) / rate), absl::Milliseconds(100),
                    absl::Minutes(1));
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

void RequestQueue::NoteRead(RequestId id) {
  MutexLock lock(&mutex_);
  arrivals_.read.push_back(id);
  NotifyLoop();
}

bool RequestQueue::StartDrain(bool end_rest) {
  MutexLock lock(&mutex_);
  draining_ = true;
  NotifyLoop();
  if (accepted_.places == 0 && !handing_) return true;
  arrivals_.end_all |= end_rest;
  return false;
}

bool RequestQueue::Drain(absl::Time deadline) {
  StartDrain(false);
  MutexLock lock(&mutex_);
  while (accepted_.places > 0 || handing_) {
    const absl::Duration left = deadline - clock_();
    if (left <= absl::ZeroDuration()) break;
    ended_.WaitFor(&mutex_, left);
  }
  if (accepted_.places > 0 || handing_) {
    arrivals_.end_all = true;
    NotifyLoop();
  }
  while (accepted_.places > 0 || handing_) ended_.Wait(&mutex_);
  if (!std::exchange(saves_awaited_, true)) AwaitSaves();
  // False if another drain of the queue, with an earlier deadline, made the rest end.
  return !arrivals_.end_all;
}

void RequestQueue::AwaitSaves() {
  const absl::Duration until = clock_.Steady() + kSaveWait;
  while (limits_.saves && load_.unsaved != 0 && !arrivals_.stop && health_.ok()) {
    const absl::Duration left = until - clock_.Steady();
    if (left <= absl::ZeroDuration()) return;
    ended_.WaitFor(&mutex_, left);
  }
}

void RequestQueue::Stop() {
  MutexLock lock(&mutex_);
  arrivals_.stop = true;
  NotifyLoop();
}

EngineLoad RequestQueue::load() const {
  MutexLock lock(&mutex_);
  EngineLoad load = load_;
  load.slots = limits_.slots;
  load.max_queue = limits_.max_queue;
  load.max_tenant_queue = limits_.max_queue - limits_.max_queue / 8;
  if (limits_.max_tenant_queue > 0) {
    load.max_tenant_queue = std::min(load.max_tenant_queue, limits_.max_tenant_queue);
  }
  load.refused = refused_;
  load.draining = draining_;
  load.health = health_;
  load.queued = accepted_.places - load.running;
  const absl::Time now = clock_();
  load.tokens_per_second = rate_.PerSecond(now);
  absl::Time oldest = oldest_;
  for (const auto& request : arrivals_.requests) {  // the loop has not seen them yet
    load.queued_by_priority[static_cast<size_t>(request->account.priority)] += request->num_slots;
    oldest = std::min(oldest, request->times.arrival);
  }
  load.oldest_wait = std::max(absl::ZeroDuration(), now - oldest);
  return load;
}

void RequestQueue::Exchange(absl::Time now, const EngineLoad& load, std::vector<Ended>* ended,
                            Arrivals* arrivals) {
  arrivals->requests.clear();
  arrivals->cancelled.clear();
  arrivals->read.clear();
  MutexLock lock(&mutex_);
  woken_ = false;
  arrivals->requests.swap(arrivals_.requests);
  arrivals->cancelled.swap(arrivals_.cancelled);
  arrivals->read.swap(arrivals_.read);
  arrivals->draining = draining_;
  arrivals->end_all = arrivals_.end_all;
  arrivals->stop = arrivals_.stop;
  NoteLocked(now, load, ended);
}

void RequestQueue::Note(absl::Time now, const EngineLoad& load, std::vector<Ended>* ended) {
  MutexLock lock(&mutex_);
  NoteLocked(now, load, ended);
}

void RequestQueue::NoteLocked(absl::Time now, const EngineLoad& load, std::vector<Ended>* ended) {
  const auto computed = [](const EngineLoad& of) {  // forced tokens are fed, too
    return of.tokens_total + of.fed_total - of.forced_total;
  };
  const int64_t tokens = computed(load) - computed(load_);
  if (tokens > 0) rate_.Add(now, tokens);
  load_ = load;
  if (draining_) ended_.NotifyAll();
  oldest_ = now - load.oldest_wait;
  if (!ended->empty()) handing_ = true;
  for (const Ended& request : *ended) {
    ended_rate_.Add(now, request.places);
    const auto found = accepted_of_.find(request.tenant);
    for (Accepted* accepted : {&accepted_, &found->second}) {
      accepted->places -= request.places;
      accepted->tokens -= request.tokens;
    }
    if (found->second.places == 0) accepted_of_.erase(found);
  }
  ended->clear();
}

void RequestQueue::EndsHanded() {
  MutexLock lock(&mutex_);
  handing_ = false;
  if (draining_) ended_.NotifyAll();
}

void RequestQueue::WaitForArrivals(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  if (woken_) return;
  waiting_ = true;
  arrived_.WaitFor(&mutex_,
                   timeout);  // woken early by chance, the loop finds nothing and comes back
  waiting_ = false;
}

void RequestQueue::Poison(const absl::Status& health) {
  MutexLock lock(&mutex_);
  health_ = health;
}

void RequestQueue::NotifyLoop() {
  woken_ = true;
  if (waiting_) arrived_.NotifyOne();
}

}  // namespace rivulet
